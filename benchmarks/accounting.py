"""How much noise loss distributions save over Renyi curves, in one run of about a minute.

    python benchmarks/accounting.py [--rounds 100] [--delta 1e-5]

A line per kind of release, rate and epsilon: the smallest noise multiplier by Renyi curves alone (Skellam noise by its
own), the one that the accountant finds, and what is saved. Skellam noise is on a grid of 4096 steps per clip, for
100,000 numbers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from fedsketch.privacy.accounting import poisson, renyi, skellam
from fedsketch.privacy.accounting.calibration import calibrate
from fedsketch.privacy.accounting.costs import cost
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Gaussian,
    NoiseLaw,
    NoSampling,
    Poisson,
    Release,
    SecretDraw,
    Skellam,
    Unit,
    WithoutReplacement,
)
from fedsketch.privacy.accounting.renyi import Curve

RATES, EPSILONS, CLIENTS = (0.01, 0.1, 0.5), (2.0, 8.0), 1000
STEPS, NUMBERS = 4096.0, 100_000


def on_a_grid(z: float) -> Skellam:
    return Skellam((z * STEPS) ** 2, STEPS, STEPS * NUMBERS**0.5)


def release(
    law: NoiseLaw, sampling: SecretDraw, adjacency: Adjacency, unit: Unit = Unit.CLIENT
) -> Release:
    return Release(law, sampling, adjacency, unit, Adversary.MODEL)


Template = Callable[[float, float], Release]
"""A release as a function of noise multiplier and rate."""


def fixed(rate: float) -> WithoutReplacement:
    return WithoutReplacement(round(rate * CLIENTS), CLIENTS)


SAMPLED: dict[str, Template] = {
    "Poisson": lambda z, q: release(Gaussian(z), Poisson(q), Adjacency.ZERO_OUT),
    "Poisson, Skellam": lambda z, q: release(on_a_grid(z), Poisson(q), Adjacency.ZERO_OUT),
    "fixed size, zero-out": lambda z, q: release(Gaussian(z), fixed(q), Adjacency.ZERO_OUT),
    "fixed size, zero-out, Skellam": lambda z, q: release(
        on_a_grid(z), fixed(q), Adjacency.ZERO_OUT
    ),
    "fixed size, replace-one": lambda z, q: release(Gaussian(z), fixed(q), Adjacency.REPLACE_ONE),
    "clients drawn whole, unit example": lambda z, q: release(
        Gaussian(z), Poisson(q), Adjacency.ZERO_OUT, Unit.EXAMPLE
    ),
}
UNSAMPLED: dict[str, Template] = {
    "no sampling, Skellam": lambda z, _: release(on_a_grid(z), NoSampling(), Adjacency.ZERO_OUT)
}


def renyi_curve(one: Release) -> Curve:
    """Return Skellam noise by its own curve, not by that of the Gaussian which dominates it."""
    law = one.law
    if not isinstance(law, Skellam) or isinstance(one.sampling, WithoutReplacement):
        return cost(one).curve
    plain = skellam.curve(law.variance, law.l2_sensitivity, law.l1_sensitivity)
    if not isinstance(one.sampling, Poisson):
        return plain
    every = np.arange(renyi.LARGEST_SAMPLED_ORDER + 1.0)
    moments = skellam.curve(law.variance, law.l2_sensitivity, law.l1_sensitivity, every)
    return poisson.symmetric_integer_curve(one.sampling.rate, plain, moments)


def by_renyi(one: Release, rounds: int, delta: float) -> float:
    return renyi.epsilon(rounds * renyi_curve(one), delta)


def lines(
    templates: dict[str, Template], rates: tuple[float, ...], rounds: int, delta: float
) -> None:
    for name, template in templates.items():
        for rate in rates:
            for epsilon in EPSILONS:

                def of(z: float, rate: float = rate, template: Template = template) -> Release:
                    return template(z, rate)

                find = partial(calibrate, of, rounds=rounds, epsilon=epsilon, delta=delta)
                before = find(price=by_renyi)
                begun = time.perf_counter()
                after = find()
                took = time.perf_counter() - begun
                saved = f"{100 * (1 - after / before):.1f} %"
                print(
                    f"| {name} | {rate:g} | {epsilon:g} | {before:.4f} | {after:.4f} | {saved} | {took:.2f} s |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--delta", type=float, default=1e-5)
    options = parser.parse_args()
    print(f"{options.rounds} rounds, delta {options.delta:g}; noise multipliers\n")
    print("| release | rate | epsilon | by Renyi curves | by the accountant | saved | found in |")
    print("|---|---|---|---|---|---|---|")
    lines(UNSAMPLED, (1.0,), options.rounds, options.delta)
    lines(SAMPLED, RATES, options.rounds, options.delta)


if __name__ == "__main__":
    main()
