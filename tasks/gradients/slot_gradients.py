"""The per-example gradients of one parameter tensor (a slot of the model's layout), as factors if that is cheaper than
as rows.

For each example, the gradient of a weight that multiplies its layer's inputs is sum_t b_t a_t^T. a are the inputs and
b the gradients of the outputs. The sum is over the T positions at which the weight is used: one for a linear layer on
vectors, every position of the kernel for a convolution. Norms and weighted sums can be computed from the factors a and
b.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

# The norm from Gram matrices is a sum of terms of both signs. If they cancel to less than this share, rounding errors
# (2^-24 per term and a few for the dot products) could exceed 1e-5 of the norm. Then the norm is computed from the
# gradient itself.
_SHARE_LEFT = 1 / 32


OuterFactors = tuple[Tensor, Tensor | None]  # b (B, out) and a (B, in): rows b_i a_i^T


class SlotGradients(ABC):
    """The gradients g_1, ..., g_B, one per example, of p numbers each."""

    def factors(self) -> OuterFactors:
        """Return b and a if the gradients are outer products b a^T; otherwise the rows and None."""
        return self.rows(), None

    @abstractmethod
    def rows(self) -> Tensor:
        """Return the gradients themselves, (B, p)."""

    @abstractmethod
    def select(self, chosen: Tensor) -> SlotGradients:
        """Return the gradients of the chosen examples."""

    def norms_squared(self) -> Tensor:
        """Return |g_i|^2, (B,)."""
        return _squared(self.rows())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return sum_i w_i g_i, (p,)."""
        return weights @ self.rows()

    def write_run_sums(self, sums: Tensor) -> None:
        """Write the sums of g_i over n runs of consecutive examples into `sums`, (n, p). All runs have the same
        length."""
        rows = self.rows()
        torch.sum(rows.view(len(sums), -1, rows.shape[1]), dim=1, out=sums)

    def projected(self, basis: Tensor) -> Tensor:
        """Return V^T g_i, (B, k), for a matrix V (p, k)."""
        return self.rows() @ basis


class ExplicitRows(SlotGradients):
    """Gradients that are stored as rows, because they are short or no cheaper form is known."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows.flatten(1)

    def rows(self) -> Tensor:
        return self._rows

    def select(self, chosen: Tensor) -> SlotGradients:
        return ExplicitRows(self._rows[chosen])


class OuterProducts(SlotGradients):
    """Gradients of a weight at one position: b_i a_i^T, with the norm |b_i| |a_i|."""

    def __init__(self, inputs: Tensor, outputs: Tensor) -> None:
        self._inputs = inputs  # a, (B, in)
        self._outputs = outputs  # b, (B, out)

    def factors(self) -> OuterFactors:
        return self._outputs, self._inputs

    def rows(self) -> Tensor:
        return (self._outputs.unsqueeze(2) * self._inputs.unsqueeze(1)).flatten(1)

    def select(self, chosen: Tensor) -> SlotGradients:
        return OuterProducts(self._inputs[chosen], self._outputs[chosen])

    def norms_squared(self) -> Tensor:
        return _squared(self._inputs) * _squared(self._outputs)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return ((self._outputs * weights.unsqueeze(1)).T @ self._inputs).flatten()

    def write_run_sums(self, sums: Tensor) -> None:
        outputs, inputs = (
            x.reshape(len(sums), -1, x.shape[1]) for x in (self._outputs, self._inputs)
        )
        torch.bmm(outputs.mT, inputs, out=sums.view(len(sums), outputs.shape[2], -1))

    def projected(self, basis: Tensor) -> Tensor:
        outputs, width = self._outputs.shape[1], basis.shape[1]
        if width >= self._inputs.shape[1]:
            return super().projected(basis)
        # Multiply the inputs first: this needs outputs x numbers per example, instead of outputs x inputs.
        if basis.T.is_contiguous():
            by_number = self._inputs @ basis.T.view(width * outputs, -1).T
            return (by_number.view(-1, width, outputs) * self._outputs.unsqueeze(1)).sum(dim=2)
        by_output = self._inputs @ basis.reshape(outputs, -1, width)
        return (by_output * self._outputs.T.unsqueeze(2)).sum(dim=0)


class SumsOfOuterProducts(SlotGradients):
    """Gradients of a weight at T positions, in G groups: (B, G, in, T) inputs and (B, G, out, T) gradients of outputs.

    The squared norm is the sum over s, t of (a_s . a_t) (b_s . b_t), for which the gradient is not needed. This is
    cheaper if there are few positions and the weight is large. Otherwise the rows are computed once.
    """

    def __init__(self, inputs: Tensor, outputs: Tensor) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._rows: Tensor | None = None

    def rows(self) -> Tensor:
        if self._rows is None:
            self._rows = (self._outputs @ self._inputs.transpose(2, 3)).flatten(1)
        return self._rows

    def select(self, chosen: Tensor) -> SlotGradients:
        if self._rows is not None:
            return ExplicitRows(self._rows[chosen])
        return SumsOfOuterProducts(self._inputs[chosen], self._outputs[chosen])

    def norms_squared(self) -> Tensor:
        if not few_positions(self._inputs.shape[2], self._outputs.shape[2], self._inputs.shape[3]):
            return super().norms_squared()
        terms = self._inputs.transpose(2, 3) @ self._inputs
        terms *= self._outputs.transpose(2, 3) @ self._outputs
        squared = terms.sum(dim=(1, 2, 3))
        cancelled = squared < _SHARE_LEFT * terms.abs().sum(dim=(1, 2, 3))
        if bool(cancelled.any()):
            squared[cancelled] = _squared(self.select(cancelled).rows())
        return squared

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._rows is not None:
            return weights @ self._rows
        weighted = self._outputs * weights.view(-1, 1, 1, 1)
        return torch.einsum("bgot,bgit->goi", weighted, self._inputs).flatten()

    def write_run_sums(self, sums: Tensor) -> None:
        outputs, inputs = (
            x.reshape(len(sums), -1, *x.shape[1:]) for x in (self._outputs, self._inputs)
        )
        sums.copy_(torch.einsum("nbgot,nbgit->ngoi", outputs, inputs).flatten(1))


def few_positions(inputs: int, outputs: int, positions: int) -> bool:
    """Return whether two products positions x positions are clearly cheaper than the gradient, outputs x inputs."""
    return 2 * positions * (inputs + outputs) < inputs * outputs


def _squared(rows: Tensor) -> Tensor:
    # Not by `vector_norm`: its order of summation loses five digits for a million numbers.
    return torch.linalg.vecdot(rows, rows)
