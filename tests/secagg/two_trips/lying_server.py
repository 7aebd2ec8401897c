"""What a lying server learns from answers to lists of its choice, by linear algebra alone.

Nothing of the proof is used: no weight of a code, no counting. A dealer's polynomials are all those
of degree below n that agree with what the server knows of them. The server asks holders for sums of
values over lists, and knows each vector plus the secrets. So what it learns about secrets is what
it learns about vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tests.secagg.two_trips.finite_fields import (
    Field,
    Numbers,
    Prime,
    known_about,
    reduced,
    vandermonde,
)

FIELD = Prime(65521)
Lists = NDArray[np.bool_]
"""For each strategy, answer and dealer, whether the dealer is in the list of that answer."""


@dataclass(frozen=True)
class Sharing:
    """How vectors are shared among n devices. The last `colluders` work with the server."""

    n: int
    drops: int
    losses: int
    secrets: int
    colluders: int = 0
    field: Field = FIELD
    points: tuple[int, ...] = ()
    """Of holders, of what is published, and of secrets, in this order: 0, 1, 2, ... unless given."""

    @property
    def honest(self) -> int:
        """N."""
        return self.n - self.colluders

    @property
    def doubled_threshold(self) -> int:
        """2 T'."""
        return 2 * (self.honest - self.drops - self.losses - self.secrets + 1)

    def values(self) -> tuple[Numbers, Numbers]:
        """What the honest holders' values of a polynomial are made of, a row for each holder: the
        coefficients of numbers that mean nothing, and those of the secrets."""
        publics = self.drops + self.losses
        count = self.n + publics + self.secrets
        points = np.array(self.points or range(count), np.int64)
        holders, colluders = points[: self.honest], points[self.honest : self.n]
        seen = np.concatenate([colluders, points[self.n : self.n + publics]])
        order = np.concatenate([seen, points[self.n + publics :], holders])
        rows = reduced(self.field, vandermonde(self.field, order, self.n)[None])[0]
        free = rows[len(seen) :, len(seen) :]  # polynomials that vanish wherever the server sees
        secrets, other = free[: self.secrets], free[self.secrets :]
        assert np.array_equal(secrets[:, : self.secrets], np.eye(self.secrets, dtype=np.int64))
        assert not other[:, : self.secrets].any()
        return other[:, self.secrets :].T, secrets[:, self.secrets :].T


def learnt(sharing: Sharing, holders: Numbers, lists: Lists) -> Numbers:
    """The combinations of honest devices' numbers that follow from answers, for each strategy: a
    row for each, by dealers, by places of the vector. `holders` says who gives which answer."""
    other, secrets = sharing.values()
    kinds, kind = np.unique(
        lists, axis=2, return_inverse=True
    )  # dealers in the same lists are alike

    def coefficients(values: Numbers) -> Numbers:
        products = kinds[:, :, :, None] * values[holders][None, :, None, :]
        return products.reshape(*kinds.shape[:2], -1)

    found = known_about(sharing.field, coefficients(other), coefficients(secrets))
    return found.reshape(*kinds.shape, sharing.secrets)[:, :, kind.ravel()]


@dataclass(frozen=True)
class Verdict:
    """Of each strategy: whether it learns anything, whether that is anything else than one sum with
    equal coefficients, and the fewest devices in what it learns."""

    learns: NDArray[np.bool_]
    breaks: NDArray[np.bool_]
    fewest: Numbers


def judge(found: Numbers) -> Verdict:
    """Judge what strategies learn: `found` is what `learnt` returns."""
    support = found.any(axis=3)
    rows = support.any(axis=2)
    union = support.any(axis=1)
    # The one combination that a row may be: the same coefficients for everyone in the union.
    same = np.where(union[:, None, :, None], found.max(axis=2)[:, :, None, :], 0)
    breaks = (found != same).any(axis=(1, 2, 3))
    fewest = np.where(rows, support.sum(axis=2), support.shape[2] + 1).min(axis=1)
    return Verdict(rows.any(axis=1), breaks, fewest)


def small_subsets(count: int, most: int) -> Lists:
    """All lists of `count` devices that leave out `most` at most."""
    left_out = [out for size in range(most + 1) for out in combinations(range(count), size)]
    lists = np.ones((len(left_out), count), np.bool_)
    for row, out in zip(lists, left_out, strict=True):
        row[list(out)] = False
    return lists


def all_strategies(sharing: Sharing, at_once: int = 20_000) -> Iterator[Lists]:
    """Every choice of a list for each honest holder, in parts."""
    choices = small_subsets(sharing.honest, sharing.drops)
    shape = (len(choices),) * sharing.honest
    total = len(choices) ** sharing.honest
    for start in range(0, total, at_once):
        numbers = np.arange(start, min(start + at_once, total))
        yield choices[np.stack(np.unravel_index(numbers, shape), axis=1)]


def random_lists(
    rng: np.random.Generator, strategies: int, holders: int, dealers: int, drops: int
) -> Lists:
    """Few lists, each shown to many, or a list for each holder; half of the time around common members."""
    lists = np.ones((strategies, holders, dealers), np.bool_)
    for strategy in lists:
        common = rng.permutation(dealers)[: rng.integers(0, drops + 1)]
        kinds = rng.integers(1, 5) if rng.random() < 0.7 else holders
        shown = np.ones((kinds, dealers), np.bool_)
        for one in shown:
            pool = common if rng.random() < 0.5 else rng.permutation(dealers)
            one[pool[: rng.integers(0, drops + 1)]] = False
        cut = np.sort(rng.integers(0, holders + 1, kinds - 1))
        which = np.searchsorted(cut, np.arange(holders), side="right")
        strategy[:] = shown[which if rng.random() < 0.5 else rng.integers(0, kinds, holders)]
    return lists


def tried(sharing: Sharing) -> tuple[int, int, int, int]:
    """How many strategies there are, how many of them learn something, how many break the promise, and
    the fewest devices in what any of them learns."""
    holders = np.arange(sharing.honest)
    verdicts = [judge(learnt(sharing, holders, lists)) for lists in all_strategies(sharing)]
    learns, breaks = (
        np.concatenate([getattr(verdict, name) for verdict in verdicts])
        for name in ("learns", "breaks")
    )
    fewest = min(int(verdict.fewest.min()) for verdict in verdicts)
    return len(learns), int(learns.sum()), int(breaks.sum()), fewest
