"""Computes the gradients of several clients at once, each over the client's own batch.

Formal guarantee: the gradient of a client depends on that client alone. This works only for models that are known to
treat the examples of a batch independently (`tasks.gradients.factors`). For all others, the caller processes one
client at a time.

- If the model is a chain of layers (`tasks.gradients.chain`): batched products.
- If all clients have the same parameters: one forward and one backward pass over all examples, and one batched product
  for every layer.
- If each client has its own parameters: `torch.func.vmap` over the clients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedsketch.tasks.data.shards import Batches
from fedsketch.tasks.gradients.chain import Chain, is_chain
from fedsketch.tasks.gradients.factors import GradientPlan, plan_gradients, weighted_slot_gradients
from fedsketch.tasks.models.flat_model import FlatModel


class PerClient:
    """Computes gradients of a model as it is at the time of each call. They equal those of one client at a time up to
    rounding."""

    def __init__(self, model: FlatModel) -> None:
        self.model = model
        self._chain = Chain(model) if is_chain(model) else None
        self._plans: dict[tuple[int, ...], GradientPlan] = {}  # by shape of an example

    def possible(self, example: Tensor) -> bool:
        """Return whether the model is known to treat examples like this one, (1, ...), independently."""
        return self._plan(example).separate

    def scalars(self, example: Tensor) -> int:
        """Return roughly how many numbers an example like this one needs in a pass."""
        return self._plan(example).scalars

    def dense(self, example: Tensor) -> int:
        """Return how many numbers of an example's gradient are not stored as short factors."""
        return self.model.size - self._plan(example).factored

    def gradients(self, batches: Batches) -> Tensor:
        """Return the gradient of each client's mean loss, (n, d)."""
        model, weights = self.model, batches.weights.to(self.model.device)
        chain = self._chain_for(batches)
        if chain is not None:
            return chain.gradients(model.vector, batches)
        inputs = batches.inputs.flatten(0, 1).to(model.device)
        targets = batches.targets.flatten(0, 1).to(model.device)
        slots = weighted_slot_gradients(
            model, self._plan(inputs[:1]), inputs, targets, weights.flatten()
        )
        rows = model.vector.new_empty(len(weights), model.size)
        for slot in model.layout:
            slots.pop(slot.name).write_run_sums(rows[:, slot.start : slot.stop])
        return rows

    def gradients_at(self, vectors: Tensor, batches: Batches) -> Tensor:
        """Return the same gradients, (n, d), but each client has its own parameters: a row of `vectors`."""

        def loss(vector: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
            outputs = functional_call(model.module, model.views(vector), (inputs,))
            return torch.dot(model.task.losses(outputs, targets), weights)

        model, device = self.model, self.model.device
        chain = self._chain_for(batches)
        if chain is not None:
            return chain.gradients(vectors, batches)
        gradients: Tensor = vmap(grad(loss))(
            vectors,
            batches.inputs.to(device),
            batches.targets.to(device),
            batches.weights.to(device),
        )
        return gradients

    def descend(self, vectors: Tensor, batches: Batches, rate: float) -> None:
        """Take a step of gradient descent with this learning rate for each client, at its row of `vectors`, in
        place."""
        chain = self._chain_for(batches)
        if chain is not None:
            chain.descend(vectors, batches, rate)
        else:
            vectors.sub_(self.gradients_at(vectors, batches), alpha=rate)

    def _chain_for(self, batches: Batches) -> Chain | None:
        """Return the model as a chain, if it is one and treats examples like these independently."""
        return self._chain if self.possible(batches.inputs[:1, 0]) else None

    def _plan(self, example: Tensor) -> GradientPlan:
        shape = tuple(example.shape[1:])
        if shape not in self._plans:
            self._plans[shape] = plan_gradients(self.model, example.to(self.model.device))
        return self._plans[shape]
