"""How far the accountant's epsilon may be above the truth, where no exact theorem is known.

    python benchmarks/accounting_gaps.py [--quick]

A line per kind of release: the epsilon that is stated, and the largest one that an attack known here reaches. The truth
lies between the two. Both are computed to about three digits:

- draw of a fixed size: all other clients send the opposite of the unit's vector, or the same one. The adversary may
  choose anew in every round, knowing the loss so far: dynamic programming over the loss. No attack known here makes
  use of memory.
- sampled coordinates (csgm, sgmf): the unit's vector is as long as it may be, and either all of it lies in as few
  numbers as the peak allows, or it is spread over very many.

--quick computes the first line of each kind only.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.accounting import exact_gaussian, pld
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.dominating_pairs import PoissonPair
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    CoordinateSampledGaussian,
    Gaussian,
    NoiseLaw,
    NoSampling,
    Release,
    SecretDraw,
    Skellam,
    Unit,
    WithoutReplacement,
)

Array = NDArray[np.float64]
DELTA = 1e-5
RANGE = 18.0  # of the losses of a run that are looked at: more than any epsilon here


class Gap(NamedTuple):
    """One line of the table."""

    release: str
    stated: float
    reached: float

    @property
    def line(self) -> str:
        """The line of the table."""
        return f"| {self.release} | {self.stated:.2f} | {self.reached:.2f} | {self.percent:.1f} % |"

    @property
    def percent(self) -> float:
        """How much the stated epsilon may be too large, in % of what is reached."""
        return 100.0 * (self.stated / self.reached - 1.0)


def stated(law: NoiseLaw, draw: SecretDraw, rounds: int) -> float:
    """Return the accountant's epsilon of this many releases."""
    accountant = Accountant(DELTA)
    one = Release(law, draw, Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.MODEL)
    accountant.record(one, rounds)
    return accountant.epsilon().epsilon


def losses(p: Array, q: Array, step: float) -> tuple[Array, int]:
    """Return the probabilities under p of the losses log(p / q), and the first loss in steps. A loss between two points
    of the grid is divided among them so that both laws keep their mass: what this changes falls with step^2."""
    kept = (p > 1e-300) & (q > 1e-300)
    p, q = p[kept], q[kept]
    below = np.floor(np.log(p / q) / step)
    lower = (q - p * np.exp(-(below + 1) * step)) / (np.exp(-below * step) * -np.expm1(-step))
    index, first = below.astype(int), int(below.min())
    mass: Array = np.zeros(int(below.max()) - first + 2)
    mass += np.bincount(index - first, weights=lower, minlength=len(mass))
    mass += np.bincount(index - first + 1, weights=p - lower, minlength=len(mass))
    return mass, first


def adaptive(pairs: Sequence[tuple[Array, Array]], rounds: int, step: float) -> float:
    """Return the epsilon that an adversary reaches who chooses one of the pairs (probabilities with the unit, and
    without it) in every round.

    After k rounds, V_k(g) is the largest hockey-stick divergence that is possible: V_0(g) = max(1 - g, 0), and V_k(g)
    is the largest E_P[V_{k-1}(g Q / P)] over the pairs.
    """
    grid = np.arange(-round(RANGE / step), round(RANGE / step) + 1) * step
    value = np.maximum(-np.expm1(grid), 0.0)
    made = [losses(p, q, step) for p, q in pairs]
    low = min(first for _, first in made)
    high = max(first + len(mass) for mass, first in made)
    size = 1 << (len(grid) + 2 * (high - low)).bit_length()
    spectra = []
    for mass, first in made:
        padded = np.zeros(high - low)
        padded[first - low : first - low + len(mass)] = mass
        spectra.append(np.fft.rfft(padded, size))
    for _ in range(rounds):
        # Below the grid the value is at least that at its end; above it is at least 0.
        whole = np.concatenate([np.full(max(high, 0), value[0]), value, np.zeros(max(-low, 0))])
        there = np.fft.rfft(whole, size)
        start = max(high, 0) - low
        options = [np.fft.irfft(there * one, size)[start : start + len(grid)] for one in spectra]
        value = np.clip(np.max(options, axis=0), np.maximum(-np.expm1(grid), 0.0), 1.0)
    return float(np.interp(-np.log(DELTA), -np.log(np.maximum(value, 1e-30)), grid))


def both_ways(pairs: Sequence[tuple[Array, Array]], rounds: int, step: float) -> float:
    """Return the larger epsilon of the two directions."""
    return max(adaptive(pairs, rounds, step), adaptive([(q, p) for p, q in pairs], rounds, step))


def normals(noise: float, *means: float) -> list[Array]:
    """Return the probabilities of normal variables in the same small cells."""
    x = np.arange(-9.0 * noise - 1.0, 9.0 * noise + 1.0, noise / 400)
    laws = [np.exp(-((x - mean) ** 2) / (2 * noise**2)) for mean in means]
    return [law / law.sum() for law in laws]


def fixed_draw(
    law: NoiseLaw, noise: float, draw: WithoutReplacement, rounds: int, step: float
) -> Gap:
    rate = draw.size / draw.population
    one, zero, opposite = normals(noise, 1.0, 0.0, -1.0)
    pairs = [
        ((1 - rate) * other + rate * one, (1 - rate) * other + rate * zero)
        for other in (opposite, one)
    ]
    what = f"draw of {draw.size} of {draw.population}{' with memory' if draw.with_memory else ''}"
    name = f"{what}, {type(law).__name__} noise {noise:g}, {rounds} rounds"
    return Gap(name, stated(law, draw, rounds), both_ways(pairs, rounds, step))


def sampled_coordinates(noise: float, rate: float, numbers: int, rounds: int) -> Gap:
    """`noise` is that of a sum which is divided by the rate. The peak allows no fewer than `numbers` numbers."""
    law = CoordinateSampledGaussian(noise * rate, rate, 1.0, numbers**-0.5)
    dense = pld.epsilon({PoissonPair(noise * rate * numbers**0.5, rate): numbers * rounds}, DELTA)
    spread = exact_gaussian.epsilon(math.sqrt(rounds) / noise, DELTA)
    name = f"share {rate:g} of the numbers, peak {numbers}^-1/2, noise {noise:g}, {rounds} rounds"
    return Gap(name, stated(law, NoSampling(), rounds), max(dense, spread))


def gaps(quick: bool = False) -> Iterator[Gap]:
    """Yield all lines of the table."""
    draws = ((3.0, 100, 100), (7.0, 300, 100), (11.0, 500, 100))
    extremes = ((1.5, 100, 100), (1.0, 100, 60), (10.0, 100, 1000))
    for noise, size, rounds in draws[:1] if quick else (*draws, *extremes):
        steps = 4096.0  # per clip: so fine that Skellam noise is nearly Gaussian
        skellam = Skellam((noise * steps) ** 2, steps, steps * 1000.0)
        for law in (Gaussian(noise), skellam):
            step = 1e-3 if rounds == 1000 else 2e-3
            yield fixed_draw(law, noise, WithoutReplacement(size, 1000), rounds, step)
    remembered = WithoutReplacement(100, 1000, with_memory=True)
    yield fixed_draw(Gaussian(3.0), 3.0, remembered, 100, 2e-3)
    for rate, numbers in ((0.1, 900), (0.01, 900))[: 1 if quick else None]:
        for noise, rounds in ((20.0, 100), (2.0, 1))[: 1 if quick else None]:
            yield sampled_coordinates(noise, rate, numbers, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first line of each kind only")
    options = parser.parse_args()
    print("| release | stated | reached | at most too large by |")
    print("|---|---|---|---|")
    for gap in gaps(options.quick):
        print(gap.line)


if __name__ == "__main__":
    main()
