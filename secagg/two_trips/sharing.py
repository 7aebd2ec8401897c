"""The sharing: a polynomial through the numbers that a device shares with each holder, and back from the holders' sums.

Point i belongs to holder i of the cohort, the next D + E points are published, and the last P are secret.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..errors import Malformed
from .field import Field, inverses, power, product
from .shape import Shape


def deal(shape: Shape, shares: Field) -> tuple[Field, Field]:
    """Return the published numbers and the secrets of the polynomials that take these values at the holders' points.

    Rows are points and columns are polynomials. The secrets are as long as the vector.
    """
    matrix = _interpolation(shape.n, (), shape.n + shape.publics + shape.secrets, shape.modulus)
    values = product(matrix, shares, shape.modulus)
    return values[: shape.publics], _as_vector(shape, values[shape.publics :])


def join(shape: Shape, answers: dict[int, Field], published: Field) -> Field:
    """Return the secrets of the polynomial that takes the answers at their holders' points and the published numbers at
    theirs. Raise `Malformed` if there is none: then a holder has answered wrongly."""
    places = sorted(answers)
    used, spare = places[: shape.holders], places[shape.holders :]
    end, q = shape.n + shape.publics, shape.modulus
    left_out = tuple(sorted(set(range(shape.n)) - set(used)))
    known = np.concatenate([np.stack([answers[place] for place in used]), published])
    matrix = _interpolation(end, left_out, end + shape.secrets, q)
    rows = [left_out.index(place) for place in spare]
    found = product(matrix[[*rows, *range(len(left_out), len(matrix))]], known, q)
    if any((found[row] != answers[place]).any() for row, place in enumerate(spare)):
        raise Malformed("a client has answered wrongly")
    return _as_vector(shape, found[len(spare) :])


def _as_vector(shape: Shape, secrets: Field) -> Field:
    """Return the numbers at the secret points one polynomial after the other, as many as the vector has."""
    return secrets.T.reshape(-1)[: shape.dim]


@lru_cache(maxsize=8)
def _interpolation(end: int, left_out: tuple[int, ...], last: int, q: int) -> Field:
    """Return the matrix that makes of a polynomial's values at the points below `end`, but those left out, its values
    at those left out and at the points from `end` to `last` (Lagrange)."""
    points = np.arange(last)
    known = np.setdiff1d(points[:end], left_out)
    wanted = np.setdiff1d(points, known)
    # The product of x - j over all known points j but x, for every point x.
    products = _differences(end, last, q) * power(_gaps(left_out, last, q), q - 2, q) % np.uint64(q)
    weights = power(products[known], q - 2, q)
    matrix = _inverse_differences(wanted, known, q)
    np.multiply(matrix, weights, out=matrix)
    np.remainder(matrix, np.uint64(q), out=matrix)
    np.multiply(matrix, products[wanted, None], out=matrix)
    return np.remainder(matrix, np.uint64(q), out=matrix)


def _differences(end: int, last: int, q: int) -> Field:
    """Return, for every x below `last`, the product of x - j over all j below `end` but x."""
    steps = accumulate(range(1, last), lambda a, b: a * b % q, initial=1)
    factorial = np.array(list(steps), dtype=np.uint64)
    inside = factorial[:end] * factorial[:end][::-1] % np.uint64(q)
    inside[end - 2 :: -2] = np.uint64(q) - inside[end - 2 :: -2]  # an odd number of j are above x
    beyond = factorial[end:] * power(factorial[: last - end], q - 2, q) % np.uint64(q)
    return np.concatenate([inside, beyond])


def _gaps(left_out: tuple[int, ...], last: int, q: int) -> Field:
    """Return, for every x below `last`, the product of x - r over all r left out but x."""
    gaps = np.ones(last, dtype=np.uint64)
    for gone in left_out:
        factors = (np.arange(last) - gone) % q
        factors[gone] = 1
        gaps = gaps * factors.astype(np.uint64) % np.uint64(q)
    return gaps


def _inverse_differences(wanted: NDArray[np.int64], known: NDArray[np.int64], q: int) -> Field:
    """Return 1 / (x - i) for all pairs of points."""
    differences = wanted[:, None] - known[None, :]
    table = inverses(int(max(wanted.max(), known.max())) + 1, q)
    found = table[np.abs(differences)]
    return np.where(differences < 0, np.uint64(q) - found, found)
