"""The accountant composes the releases of a run and says what they cost. There is one for each adversary and delta.

It bounds epsilon in up to five ways and reports the smallest valid bound with the name of its method:

- `rdp`: it adds up Renyi curves (bounds on the Renyi divergence, one for each order). This works for all releases.
- `gaussian`: it treats all Gaussian releases as one exact Gaussian without sampling.
- `profile`: if there is a single release with a dominating pair, the pair's profile is solved for epsilon.
- `pld`: it passes sampled Gaussians, as dominating pairs, to the privacy loss distributions of dp-accounting.
- `adaptive`: it composes cohorts of a fixed size by dynamic programming over the loss.

The guarantee is (epsilon, delta)-DP under adaptive composition, against the adversary of the releases and for their
unit and adjacency. A release that no theorem covers is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsketch.errors import UnsupportedReleaseError
from fedsketch.privacy.accounting import adaptive_draws, exact_gaussian, pld, renyi
from fedsketch.privacy.accounting.costs import Cost, cost
from fedsketch.privacy.accounting.dominating_pairs import (
    GaussianZeroOutPair,
    Pair,
    PlainPair,
    VariancePair,
)
from fedsketch.privacy.accounting.release_json import release_from_json, release_to_json
from fedsketch.privacy.accounting.releases import (
    FullPasses,
    Release,
)
from fedsketch.privacy.accounting.renyi import ORDERS, Curve

__all__ = ["Accountant", "Spent", "UnsupportedReleaseError"]

# Beyond these limits privacy loss distributions are slow, and a tighter bound on so large an epsilon is useless. With
# less noise the numbers of a profile overflow.
_LARGEST_PLD_EPSILON = 40.0
_SMALLEST_PLD_NOISE = 0.15


@dataclass(frozen=True)
class Spent:
    """Epsilon at the accountant's delta, and the method that proved it: 'gaussian' or 'profile' (both exact),
    'adaptive', 'pld' or 'rdp'."""

    epsilon: float
    method: str


@dataclass(frozen=True)
class _Pass:
    """An unfinished full pass: its latest release, the number of its rounds so far, and the cost of the most expensive
    one. A pass is charged in full from its first round on."""

    release: Release
    rounds: int
    curve: Curve
    pair: Pair | None


def _mu_squared(pair: Pair, count: int) -> float:
    """Return mu^2 of the one Gaussian release that equals `count` releases of this pair without sampling."""
    return count / pair.noise**2 if pair.noise else math.inf


class Accountant:
    """Records the releases that one adversary sees, and computes epsilon at `delta`.

    >>> accountant = Accountant(delta=1e-5)
    >>> accountant.record(release, count=100)
    >>> accountant.epsilon()
    Spent(epsilon=3.99..., method='gaussian')
    """

    def __init__(self, delta: float) -> None:
        if not 0.0 < delta < 1.0:
            raise ValueError(f"delta must lie strictly between 0 and 1, not be {delta}.")
        self.delta = delta
        self._curve: Curve = np.zeros(ORDERS.shape)
        self._mu_squared = 0.0
        self._sampled: dict[Pair, int] = {}
        self._only_pairs = True
        self._pass: _Pass | None = None
        self._ledger: list[tuple[Release, int]] = []
        self._spent: dict[bool, Spent] = {}

    @property
    def releases(self) -> int:
        """How many releases were recorded."""
        return sum(count * release.times for release, count in self._ledger)

    def record(self, release: Release, count: int = 1) -> None:
        """Compose `count` more releases, each of them `release.times` times. If no theorem covers them, raises
        UnsupportedReleaseError and changes nothing."""
        if count < 0:
            raise ValueError(f"cannot record {count} releases.")
        self._refuse_other_terms(release)
        self._refuse_second_secret_sketch(release, count)
        price = cost(release)
        if count == 0:
            return
        if isinstance(release.sampling, FullPasses):
            self._record_passes(release, release.sampling.rounds_per_pass, count, price)
        else:
            self._compose(price, count * release.times)
        if self._ledger and self._ledger[-1][0] == release:
            self._ledger[-1] = (release, self._ledger[-1][1] + count)
        else:
            self._ledger.append((release, count))
        self._spent.clear()

    def epsilon(self, *, tight: bool = True) -> Spent:
        """Return the smallest epsilon that can be proved for everything recorded.

        With `tight=False` privacy loss distributions are not used. For sampled Gaussians epsilon is then about a tenth
        larger, and takes microseconds instead of a tenth of a second or more.
        """
        if tight not in self._spent:
            self._spent[tight] = self._solve(tight)
        return self._spent[tight]

    def would_exceed(self, release: Release, budget: float, count: int = 1) -> bool:
        """Return whether recording `count` more of `release` would bring epsilon above `budget`."""
        after = self._copy()
        after.record(release, count)
        # The fast bound is valid too: if it fits the budget, the slow one is not needed.
        return after.epsilon(tight=False).epsilon > budget and after.epsilon().epsilon > budget

    def together(self, other: Accountant) -> Accountant:
        """Return a new accountant that has recorded the releases of both."""
        both = self._copy()
        for release, count in other._ledger:
            both.record(release, count)
        return both

    def to_json(self) -> dict[str, Any]:
        """Return everything recorded, in order, as plain JSON: readable, and enough to resume from."""
        ledger = [
            {"release": release_to_json(release), "count": count} for release, count in self._ledger
        ]
        return {"delta": self.delta, "releases": ledger}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Accountant:
        """Return the accountant that `to_json` wrote down."""
        accountant = cls(state["delta"])
        for entry in state["releases"]:
            accountant.record(release_from_json(entry["release"]), entry["count"])
        return accountant

    def _copy(self) -> Accountant:
        copy = Accountant(self.delta)
        copy._curve = self._curve.copy()
        copy._mu_squared = self._mu_squared
        copy._sampled = dict(self._sampled)
        copy._only_pairs = self._only_pairs
        copy._pass = self._pass
        copy._ledger = list(self._ledger)
        return copy

    def _refuse_other_terms(self, release: Release) -> None:
        if not self._ledger:
            return
        first = self._ledger[0][0]
        for what in ("adversary", "unit", "adjacency"):
            mine, theirs = getattr(first, what), getattr(release, what)
            if mine != theirs:
                raise UnsupportedReleaseError(
                    f"this accountant composes releases with {what} {mine}; a release with {what} {theirs} needs "
                    "an accountant of its own."
                )

    def _refuse_second_secret_sketch(self, release: Release, count: int) -> None:
        before = sum(n * one.times for one, n in self._ledger if one.law.needs_secret_sketch)
        if release.law.needs_secret_sketch and before + count * release.times > 1:
            raise UnsupportedReleaseError(
                "r_secret covers one round only: in the second round the sum depends on the model that the first round "
                "made, and so on R; state r_public, or run one round."
            )

    def _compose(self, price: Cost, count: int) -> None:
        self._curve = self._curve + count * price.curve
        if price.pair is None:
            self._only_pairs = False
        elif isinstance(price.pair, PlainPair):
            self._mu_squared += _mu_squared(price.pair, count)
        else:
            self._sampled[price.pair] = self._sampled.get(price.pair, 0) + count

    def _record_passes(self, release: Release, length: int, count: int, price: Cost) -> None:
        """Record rounds of passes. A unit is in at most one round of a pass, so a pass costs as much as its most
        expensive round (parallel composition)."""
        current = self._pass
        if current is not None:
            self._refuse_other_pass(current.release, release)
            curve = np.maximum(current.curve, price.curve)
            pair = None
            if current.pair is not None and price.pair is not None:
                pair = min(current.pair, price.pair, key=lambda one: one.noise)
            rounds = current.rounds + min(count, length - current.rounds)
            count -= rounds - current.rounds
            self._close_or_keep(_Pass(release, rounds, curve, pair), length)
        whole, rest = divmod(count, length)
        if whole:
            self._compose(price, whole)
        if rest:
            self._pass = _Pass(release, rest, price.curve, price.pair)

    def _close_or_keep(self, current: _Pass, length: int) -> None:
        if current.rounds < length:
            self._pass = current
            return
        self._pass = None
        self._compose(Cost(current.curve, current.pair), 1)

    @staticmethod
    def _refuse_other_pass(begun: Release, release: Release) -> None:
        if begun.sampling != release.sampling or type(begun.law) is not type(release.law):
            raise UnsupportedReleaseError(
                "a full pass has begun with another mechanism or another number of rounds: finish it first, and record "
                "one release per round."
            )
        if release.law.is_correlated and begun.law != release.law:
            raise UnsupportedReleaseError(
                "the noise of a matrix-factorised pass is correlated over its rounds: its noise cannot change within "
                "the pass."
            )

    def _solve(self, tight: bool) -> Spent:
        total = self
        if self._pass is not None:
            total = self._copy()
            total._compose(Cost(self._pass.curve, self._pass.pair), 1)
        candidates = [Spent(renyi.epsilon(total._curve, self.delta), "rdp")]
        if total._only_pairs:
            # Sampling never increases the cost, so ignoring it gives a valid bound. Near rate 1 it is the better one.
            plain = sum(_mu_squared(pair, count) for pair, count in total._sampled.items())
            mu = math.sqrt(total._mu_squared + plain)
            candidates.append(Spent(exact_gaussian.epsilon(mu, self.delta), "gaussian"))
        alone, least = total._only_pair(), min(one.epsilon for one in candidates)
        if alone is not None and 0.0 < least < math.inf:
            candidates.append(Spent(alone.epsilon(self.delta, least), "profile"))
        elif tight and total._sampled and total._pld_useful(least):
            parts = dict(total._sampled)
            if total._mu_squared > 0.0:
                parts[PlainPair(total._mu_squared**-0.5)] = 1
            candidates.append(Spent(pld.epsilon(parts, self.delta), "pld"))
            candidates += total._by_adaptive_draws(parts, candidates[-1].epsilon)
        # On a tie the later, tighter method is reported.
        return min(reversed(candidates), key=lambda spent: spent.epsilon)

    def _by_adaptive_draws(self, parts: Mapping[Pair, int], at_most: float) -> list[Spent]:
        """Return the bound of `adaptive_draws` if there are draws that it is for, and it is quick."""
        drawn = [pair for pair in parts if isinstance(pair, GaussianZeroOutPair)]
        if not drawn or at_most > adaptive_draws.LARGEST_EPSILON:
            return []
        most = max(drawn, key=lambda pair: parts[pair] * pld.squared_spread(pair))
        if not adaptive_draws.is_quick(most, parts[most]):
            return []
        others = {pair: count for pair, count in parts.items() if pair is not most}
        epsilon = adaptive_draws.epsilon(most, parts[most], self.delta, others)
        return [Spent(epsilon, "adaptive")]

    def _only_pair(self) -> Pair | None:
        """Return the pair of the only release; None if there are several, or if its profile cannot be computed."""
        if not self._only_pairs or self._mu_squared or list(self._sampled.values()) != [1]:
            return None
        (pair,) = self._sampled
        computed = isinstance(pair, VariancePair) or pair.noise >= _SMALLEST_PLD_NOISE
        return pair if computed else None

    def _pld_useful(self, epsilon: float) -> bool:
        return (
            self._only_pairs
            and 0.0 < epsilon < _LARGEST_PLD_EPSILON
            and min(pair.noise for pair in self._sampled) >= _SMALLEST_PLD_NOISE
            and self._mu_squared < math.inf
        )
