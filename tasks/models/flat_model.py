"""A model as one vector, without copies.

Sketches, clipping and noise work on vectors in R^d, while torch's modules hold many tensors. Here one flat tensor
holds all trained parameters, and every parameter is a view into it. The same holds for the gradients. So writing into
`vector` changes the model, and `backward` writes into `gradient`.

A parameter that does not require a gradient is frozen (`tasks.models.trainable_part`) and not part of the vector.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedsketch.errors import ModelError
from fedsketch.tasks.built_in import CLASSIFICATION
from fedsketch.tasks.models.fixed_norm import FixedNorm
from fedsketch.tasks.task import Task, losses_of


@dataclass(frozen=True)
class Slot:
    """One parameter and its place in the vector: vector[start:stop].view(shape)."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class FlatModel:
    """A module on a device, with its trained parameters and their gradients as float32 vectors of size d.

    The loss is the mean of the task's losses over a batch. Do not move the module to another device afterwards: the
    parameters would no longer be views into the vector.
    """

    def __init__(
        self,
        module: nn.Module,
        device: str | torch.device = "cpu",
        task: Task[Any] = CLASSIFICATION,
    ) -> None:
        _refuse_batch_statistics(module)
        self.task = task
        self.module = module.to(device=device, dtype=torch.float32)
        self._parameters = {
            name: parameter
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        }
        sizes = [parameter.numel() for parameter in self._parameters.values()]
        ends = list(itertools.accumulate(sizes, initial=0))
        self.layout = tuple(
            Slot(name, tuple(parameter.shape), start, stop)
            for (name, parameter), (start, stop) in zip(
                self._parameters.items(), itertools.pairwise(ends), strict=True
            )
        )
        self.vector = torch.empty(ends[-1], device=device)
        self.gradient = torch.zeros_like(self.vector)
        self._gradient_views = self.views(self.gradient)
        for name, view in self.views(self.vector).items():
            view.copy_(self._parameters[name].detach())
            self._parameters[name].data = view

    @property
    def size(self) -> int:
        """The number of trained parameters, d."""
        return len(self.vector)

    @property
    def frozen_size(self) -> int:
        """The number of parameters that are not trained."""
        return sum(p.numel() for p in self.module.parameters() if not p.requires_grad)

    @property
    def frozen(self) -> dict[str, torch.Tensor]:
        """The tensors that are not part of the vector: parameters that are not trained, and fixed statistics of
        layers."""
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {name: x.detach() for name, x in tensors.items() if name not in self._parameters}

    def load_frozen(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy the frozen part into the model."""
        own = self.frozen
        if {name: x.shape for name, x in tensors.items()} != {
            name: x.shape for name, x in own.items()
        }:
            raise ModelError(
                "The received frozen part is that of another model: take it from the same model and data."
            )
        for name, tensor in tensors.items():
            own[name].copy_(tensor)

    @property
    def device(self) -> torch.device:
        return self.vector.device

    def load(self, vector: torch.Tensor) -> None:
        """Copy these parameters into the model."""
        if vector.shape != self.vector.shape:
            raise ModelError(
                f"A model of {self.size:,} parameters cannot load a vector of shape "
                f"{tuple(vector.shape)}: take it from the same model, width and data."
            )
        self.vector.copy_(vector)

    def zero_grad(self) -> None:
        """Set the gradient to zero, and make it the parameters' gradient again if an optimiser has replaced it."""
        self.gradient.zero_()
        for name, parameter in self._parameters.items():
            parameter.grad = self._gradient_views[name]

    def loss_and_gradient(
        self, inputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean loss over the batch and its gradient. The next call overwrites the gradient."""
        if len(targets) == 0:
            raise ModelError("The mean gradient of an empty batch is not defined: leave it out.")
        self.zero_grad()
        outputs = self.module(inputs.to(self.device))
        loss = losses_of(self.task, outputs, targets.to(self.device)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), self.gradient

    def views(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the parameters by name, as views into a vector of size d."""
        # One split, because its derivative is one concatenation. The derivative of each slice would be a sum with d
        # zeros.
        pieces = torch.split(vector, [slot.stop - slot.start for slot in self.layout])
        return {
            slot.name: piece.view(slot.shape)
            for slot, piece in zip(self.layout, pieces, strict=True)
        }


def _refuse_batch_statistics(module: nn.Module) -> None:
    """Raise ModelError for a layer with statistics over a batch. No clip bounds how much one example changes them, and
    they would be released with the model without noise."""
    for name, layer in module.named_modules():
        batch_norm = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        buffers = any(True for _ in layer.buffers(recurse=False))
        if batch_norm or (buffers and type(layer) is not FixedNorm):
            raise ModelError(
                f"Layer {name or 'model'!r} ({type(layer).__name__}) keeps or uses statistics over a batch, which "
                "cannot be made private: replace it by torch.nn.GroupNorm, or freeze it by model.trainable (batch "
                "norm with given statistics)."
            )
