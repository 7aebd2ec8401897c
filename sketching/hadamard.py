"""The randomised Hadamard sketch: random signs, the Walsh-Hadamard transform, a random sample of the coordinates.

Everything is computed from a seed, and a sketch takes O(d log d) time instead of O(d k). The vector is padded with
zeros to m numbers, the next power of two. The sketch is y = sqrt(m / k) P H D x, where D has random signs, H is the
orthonormal Walsh-Hadamard matrix, and P selects k coordinates. All sets of k coordinates are equally likely, so E[P^T
P] = k/m I, and adjoint(forward(x)) is an unbiased estimate of x; for k = m it is x itself. The entries of S are not
Gaussian, so the theorem of Fed-SGM about a secret R does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from fedsketch.sketching.seeded_sketch import PublicStream, Purpose
from fedsketch.sketching.sketch import SEED_BYTES, DigestPart, Sketch, checked_seed

_RADIX_BITS = 6  # the transform multiplies by a 64 x 64 matrix along each digit of the index
_PADDED_BLOCK = 1 << 22  # numbers that are transformed at a time


class HadamardSketch(Sketch):
    """k of the m coordinates of the transformed vector with random signs, k <= m = 2^ceil(log2 d)."""

    def __init__(self, k: int, d: int, seed: int) -> None:
        super().__init__(k, d)
        self._seed = checked_seed(seed)
        self._padded = 1 << (d - 1).bit_length()
        if not 1 <= k <= self._padded:
            raise ValueError(
                f"A Hadamard sketch of a vector of {d:,} numbers has 1 to {self._padded:,} numbers, not {k:,}."
            )
        signs = PublicStream(seed, Purpose.SIGNS).signs(d)
        coordinates = PublicStream(seed, Purpose.COORDINATES).subset(self._padded, k)
        self._signs = torch.from_numpy(signs)
        self._coordinates = torch.from_numpy(coordinates)
        # This is sqrt(m / k) times 1 / sqrt(m), the factor that makes H orthonormal.
        self._scale = 1.0 / math.sqrt(k)

    @property
    def description_bytes(self) -> int:
        return SEED_BYTES

    def row_norms_squared(self) -> Tensor:
        # Every entry of S is +-1 / sqrt(k).
        return torch.ones(self.shape[1], dtype=torch.float64)

    def forward_rows(self, rows: Tensor) -> Tensor:
        k, d = self.shape
        signs, coordinates = self._signs.to(rows), self._coordinates.to(rows.device)
        result = rows.new_empty(len(rows), k)
        for part in self._batches(len(rows)):
            padded = rows.new_zeros(len(rows[part]), self._padded)
            torch.mul(rows[part], signs, out=padded[:, :d])
            result[part] = walsh_hadamard(padded)[:, coordinates]
        return result.mul_(self._scale)

    def adjoint_rows(self, rows: Tensor) -> Tensor:
        d = self.shape[1]
        signs, coordinates = self._signs.to(rows), self._coordinates.to(rows.device)
        result = rows.new_empty(len(rows), d)
        for part in self._batches(len(rows)):
            padded = rows.new_zeros(len(rows[part]), self._padded)
            padded[:, coordinates] = rows[part] * self._scale
            torch.mul(walsh_hadamard(padded)[:, :d], signs, out=result[part])
        return result

    def digest_parts(self) -> Iterable[DigestPart]:
        return (self._seed,)

    def _batches(self, n: int) -> list[slice]:
        count = max(1, _PADDED_BLOCK // self._padded)
        return [slice(start, start + count) for start in range(0, n, count)]


def walsh_hadamard(rows: Tensor) -> Tensor:
    """Return the unnormalised Walsh-Hadamard transform of each row. The length of a row must be a power of two.

    H_m is a Kronecker product of small matrices (H_64 x H_64 x ...). Each factor acts on one digit of the index, so
    the transform is a few products with small matrices.
    """
    n, size = rows.shape
    if size & (size - 1):
        raise ValueError(f"The transform needs a power of two, not {size} numbers: pad with zeros.")
    bits = size.bit_length() - 1
    done = 0
    while done < bits:
        digit = min(_RADIX_BITS, bits - done)
        factor = _hadamard_matrix(digit).to(rows)
        # The last digit is multiplied from the right, as one large product; the others from the left.
        rows = (
            rows.reshape(-1, 1 << digit) @ factor
            if done == 0
            else factor @ rows.reshape(-1, 1 << digit, 1 << done)
        )
        done += digit
    return rows.reshape(n, size)


@lru_cache
def _hadamard_matrix(bits: int) -> Tensor:
    matrix = torch.ones(1, 1)
    for _ in range(bits):
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix
