"""Principal directions of outer products, described by the factors: far fewer numbers than the directions have.

The gradient of a linear layer's weight for one example is b a^T, where a is the layer's input and b the gradient of its
output. The principal directions of m such gradients are linear combinations of them, v_k = sum_j c_kj b_j a_j^T. So m
inputs, m short vectors and k m coefficients describe k directions.

Every machine computes the same bits from a description. All numbers in the large product are whole multiples of a power
of two, so few that float64 holds every partial sum exactly, in whatever order a library adds them up. This matters:
where singular values are small, the coefficients are large and their products cancel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsketch.sketching.row_space import NEGLIGIBLE
from fedsketch.sketching.seeded_sketch import PublicStream, Purpose

_LARGEST = 2047  # of the whole numbers that stand for an input: float16 holds them exactly
_EXACT_BITS = 53  # of float64


@dataclass(frozen=True)
class OuterDirections:
    """`size` directions of o * i numbers. `right` (m, i) holds whole numbers, `left` (m, o) absorbs their scale, and
    `mix` (size, m) has rows of zeros at the end for directions that are missing; random ones stand for these."""

    left: Tensor
    right: Tensor
    mix: Tensor
    seed: int

    @staticmethod
    def principal(left: Tensor, right: Tensor, size: int, seed: int) -> OuterDirections:
        """Describe the top right singular vectors of the rows left_j right_j^T."""
        units = _unit(right.double().abs().amax(dim=1), _LARGEST)
        whole = (right.double() / units[:, None]).round()
        scaled = (left.double() * units[:, None]).float()
        wide = scaled.double()
        # The Gram matrix of outer products is the product, number by number, of those of their factors.
        squares, vectors = torch.linalg.eigh((wide @ wide.T) * (whole @ whole.T))
        values = squares.clamp(min=0).sqrt().flip(0)
        found = int((values[:size] > NEGLIGIBLE * values[0]).sum())
        mix = torch.zeros(size, len(left), dtype=torch.float64)
        mix[:found] = vectors.flip(1)[:, :found].T / values[:found, None]
        return OuterDirections(scaled, whole.half(), mix, seed)

    @staticmethod
    def of(
        tensors: Mapping[str, Tensor], mixed: tuple[int, int], columns: int, seed: int
    ) -> OuterDirections:
        """Restore what `tensors` returned, if it describes directions of this many columns. `mixed` are the shape of
        the coefficients. Raises ValueError otherwise."""
        left, right, mix = (tensors[name] for name in ("left", "right", "mix"))
        fits = left.ndim == right.ndim == 2 and len(left) == len(right) == mixed[1]
        if not (fits and mix.shape == mixed and left.shape[1] * right.shape[1] == columns):
            raise ValueError("The factors of directions do not fit the model.")
        return OuterDirections(left.float(), right.half(), mix.double(), seed)

    def tensors(self) -> dict[str, Tensor]:
        return {"left": self.left, "right": self.right, "mix": self.mix}

    @property
    def found(self) -> int:
        """How many directions are not random."""
        return int(self.mix.abs().amax(dim=1).count_nonzero())

    def rows(self) -> Tensor:
        """Return the directions in float16, (size, o * i), with lengths near 1."""
        size, width = len(self.mix), self.left.shape[1]
        weights = self.mix[:, :, None] * self.left.double()  # (size, m, o)
        room = _EXACT_BITS - _LARGEST.bit_length() - len(self.left).bit_length()
        units = _unit(weights.abs().amax(dim=(1, 2)), 2**room - 1)
        whole = (weights / units[:, None, None]).round().transpose(1, 2).reshape(size * width, -1)
        made = (whole @ self.right.double()).view(size, -1) * units[:, None]
        for index in range(self.found, size):
            made[index] = self._random(index, made.shape[1])
        return made.half()

    def _random(self, index: int, columns: int) -> Tensor:
        numbers = PublicStream(self.seed, Purpose.DIRECTIONS, index).gaussian(columns)
        return torch.from_numpy(numbers) / math.sqrt(columns)


def _unit(largest: Tensor, count: int) -> Tensor:
    """Return powers of two of which `count` are at least as large as these numbers."""
    exponents = np.frexp(largest.numpy() / count)[1]
    return torch.from_numpy(np.ldexp(1.0, exponents))  # exact, unlike torch's powers
