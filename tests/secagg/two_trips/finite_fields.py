"""Linear algebra over finite fields, on many matrices at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class Field(Protocol):
    """A finite field whose elements are the numbers 0, 1, 2, ..."""

    def minus(self, a: Numbers, b: Numbers) -> Numbers:
        """The differences of two arrays."""
        ...

    def times(self, a: Numbers, b: Numbers) -> Numbers:
        """The products of two arrays, entry by entry."""
        ...

    def inverse(self, a: Numbers) -> Numbers:
        """The inverses of numbers other than 0."""
        ...


@dataclass(frozen=True)
class Prime:
    """The numbers modulo a prime below 2^31."""

    q: int

    def minus(self, a: Numbers, b: Numbers) -> Numbers:
        return (a - b) % self.q

    def times(self, a: Numbers, b: Numbers) -> Numbers:
        return a * b % self.q

    def inverse(self, a: Numbers) -> Numbers:
        return np.array([pow(int(one), -1, self.q) for one in a.ravel()], np.int64).reshape(a.shape)


class Binary64:
    """The field with 64 elements: polynomials over two elements modulo z^6 + z + 1. Sums are `xor`."""

    def __init__(self) -> None:
        powers = [1]
        for _ in range(62):
            doubled = powers[-1] << 1
            powers.append(doubled ^ 0b1000011 if doubled & 64 else doubled)
        self.powers: Numbers = np.array(powers, np.int64)
        self.logarithms: Numbers = np.zeros(64, np.int64)
        self.logarithms[self.powers] = np.arange(63)

    def minus(self, a: Numbers, b: Numbers) -> Numbers:
        return a ^ b

    def times(self, a: Numbers, b: Numbers) -> Numbers:
        products: Numbers = self.powers[(self.logarithms[a] + self.logarithms[b]) % 63]
        return np.where((a == 0) | (b == 0), 0, products)

    def inverse(self, a: Numbers) -> Numbers:
        inverses: Numbers = self.powers[-self.logarithms[a] % 63]
        return inverses


def vandermonde(field: Field, points: Numbers, height: int) -> Numbers:
    """The values of 1, z, z^2, ... at the points, a row for each power below `height`."""
    rows = [np.ones_like(points)]
    while len(rows) < height:
        rows.append(field.times(rows[-1], points))
    return np.array(rows)


def reduced(field: Field, matrices: Numbers) -> Numbers:
    """The reduced row echelon form of each matrix of a stack."""
    stack = matrices.copy()
    height = stack.shape[1]
    rank = np.zeros(len(stack), np.int64)
    for column in range(stack.shape[2]):
        below = np.arange(height) >= rank[:, None]
        candidates = (stack[:, :, column] != 0) & below
        which = np.flatnonzero(candidates.any(axis=1))
        _eliminate(field, stack, column, which, rank[which], candidates[which].argmax(axis=1))
        rank[which] += 1
    return stack


def _eliminate(
    field: Field, stack: Numbers, column: int, which: Numbers, row: Numbers, pivot: NDArray[Any]
) -> None:
    """In these matrices, put the pivot's row into its place, and clear its column elsewhere."""
    if not len(which):
        return
    found, displaced = stack[which, pivot], stack[which, row]
    stack[which, pivot] = displaced
    found = field.times(found, field.inverse(found[:, column])[:, None])
    stack[which, row] = 0
    part = stack[which]
    factors = part[:, :, column]
    stack[which] = field.minus(part, field.times(factors[:, :, None], found[:, None, :]))
    stack[which, row] = found


def known_about(field: Field, unknown: Numbers, wanted: Numbers) -> Numbers:
    """What linear observations say about the wanted numbers alone, whatever the unknown ones are.

    Each row of `unknown` and `wanted` is an observation: the coefficients of a sum of unknown and
    wanted numbers whose value is known. Returns, for each matrix of the stack, a basis of the
    linear combinations of wanted numbers that follow, in rows; the other rows are 0.
    """
    both = reduced(field, np.concatenate([unknown, wanted], axis=2))
    width = unknown.shape[2]
    known = both[:, :, width:].copy()
    known[both[:, :, :width].any(axis=2)] = 0
    return known
