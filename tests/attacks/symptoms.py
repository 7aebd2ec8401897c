"""Checks of a configuration by playing it: what they find are symptoms of a broken guarantee. A healthy run has none.

Each check looks at what the real devices and the real server do, and takes nothing from the accountant but what it
states:

- `noise_is_what_it_is_said_to_be`: noise of the stated deviation is asked for; and sums of rounds with the same signal
  differ by fresh noise of that deviation, within a run and between two runs. Statistical.
- `contributions_are_bounded`: no row, however long, moves what leaves a device by more than its bound. Exact.
- `stated_epsilons_are_true`: the tests' own accountant, fed with the noise that was drawn, finds no more than is
  stated. Exact.
- `cohorts_are_drawn_as_booked`: everyone is drawn at the booked rate, and every round anew. Statistical.
- `sizes_stay_secret`: nothing but the sum differs between cohorts of different sizes where the draw is booked as a
  secret. Exact.

The statistical ones raise a false alarm less than once in a million times.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from fedsketch.client.app import make_app
from fedsketch.conf import Config
from fedsketch.privacy.accounting.releases import DrawnBy, Poisson
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.ring_integers import ring_sum
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import SERVER_ID, LocalGrid
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.workload import Workload
from tests.privacy.own_accountant.sums import epsilon
from tests.privacy.seen import everything_seen, largest_squared_norm, stated
from tests.privacy.witness import Witnessed, witnessed
from tests.rounds import ask, coordinator_of

FALSE_ALARM = 1e-8  # of a single comparison
KEY = 5  # of the cohorts of which some are lost
FIRST_NODE = SERVER_ID + 1
_ROUNDINGS = 120  # unconditional rounding breaks the bound in about a sixth of them
_COHORTS = 400


def symptoms(config: Config) -> set[str]:
    """The names of the checks that fail."""
    return {check.__name__ for check in CHECKS if not check(config)}


def noise_is_what_it_is_said_to_be(config: Config) -> bool:
    """The model stays as it is, so where the cohort is the same the signal is: two sums differ by their noise alone."""
    runs = [witnessed(config, rounds=2) for _ in range(2)]
    rounds = [round for run in runs for round in run]
    same = [
        (one, other)
        for one, other in combinations(rounds, 2)
        if one.aggregate.members == other.aggregate.members
    ]
    said = all(_drawn_as_said(round) for round in rounds)
    return said and all(_differ_by_noise(one, other) for one, other in same)


def _drawn_as_said(round: Witnessed) -> bool:
    """Devices and server together asked for noise of just the stated variance, in real numbers."""
    drawn = round.noise / round.record.get("scale", 1.0) ** 2
    return math.isclose(drawn, round.aggregate.noise_std**2, rel_tol=1e-9)


def _differ_by_noise(one: Witnessed, other: Witnessed) -> bool:
    difference = (one.aggregate.sum - other.aggregate.sum).double().numpy()
    expected = one.aggregate.noise_std**2 + other.aggregate.noise_std**2
    statistic = float((difference**2).sum() / expected)
    law = stats.chi2(difference.size)
    return bool(law.ppf(FALSE_ALARM) < statistic < law.isf(FALSE_ALARM))


def contributions_are_bounded(config: Config) -> bool:
    """Two releases with the same randomness differ by what the row brings: noise is drawn before anything that depends
    on the rows."""
    (round,) = witnessed(config)
    told = round.record
    rounded = told["clip"] ** 2 * (1.0 + 1e-5)  # an upload of real numbers is rounded to float32
    largest = rounded if told["mechanism"] == "gaussian" else largest_squared_norm(told)
    mechanism = mechanism_from_record(told)
    rows = _long_rows(mechanism, round.aggregate.sum.numel())
    return all(_squared_move(mechanism, one, seed) <= largest for seed, one in enumerate(rows))


def _long_rows(mechanism: Mechanism, dim: int) -> Iterator[NDArray[np.float64]]:
    """Matrices with one row that is not zero: much too long, in each place; and just as long as allowed, where rounding
    adds most."""
    direction = np.random.default_rng(1).standard_normal(dim)
    for place in {0, mechanism.rows // 2, mechanism.rows - 1}:
        matrix = np.zeros((mechanism.rows, dim))
        matrix[place] = 1e4 * direction
        yield matrix
    scale = getattr(mechanism, "scale", None)
    if scale is not None:
        reach = mechanism.bound * scale
        # Halves are rounded up or down by a coin, so |q|^2 has the deviation |x|; what they lack in length goes to the
        # first number.
        halves = np.full(dim, math.floor(reach / math.sqrt(dim) - 0.5) + 0.5)
        halves[0] = math.sqrt(reach**2 - (dim - 1) * halves[1] ** 2)
        yield from [halves[None, :] / scale] * _ROUNDINGS


def _squared_move(mechanism: Mechanism, rows: NDArray[np.float64], seed: int) -> float:
    def released(matrix: NDArray[np.float64]) -> NDArray[np.generic]:
        with Stream(derived_key(seed, "rows")) as stream:
            return mechanism.protect(torch.from_numpy(matrix), stream, 1).vector

    there, gone = released(rows), released(np.zeros_like(rows))
    if mechanism.ring is None:
        return float(((there - gone).astype(np.float64) ** 2).sum())
    return float((ring_sum([there - gone], mechanism.ring.modulus) ** 2).sum())


def stated_epsilons_are_true(config: Config) -> bool:
    """With nobody lost, and with as many as may be lost."""
    cohort = CohortSampler(config.clients, KEY).draw(1)
    drops = math.floor(len(cohort) * config.clients.tolerated_dropouts)
    for lost in {0, drops}:
        (round,) = witnessed(config, key=KEY, lost=cohort[:lost].__contains__)
        seen = everything_seen(config, round)
        for adversary, claim in stated(config, round).items():
            _, _, pair, times = seen[adversary]
            if epsilon([(pair, times)], config.privacy.delta).low > claim:
                return False
    return True


def cohorts_are_drawn_as_booked(config: Config) -> bool:
    """Who is really asked, over many rounds: how often each client is, and how often in two rounds in a row."""
    clients = config.clients
    if clients.sampling == "passes":
        return True
    asked = _asked(config)
    rate = clients.per_round / clients.total
    twice = asked[0::2] & asked[1::2]
    once_ok = _as_often(asked.sum(axis=0), len(asked), rate)
    return once_ok and _as_often(twice.sum(axis=0), len(twice), rate**2)


def _as_often(counts: NDArray[np.int64], rounds: int, rate: float) -> bool:
    law = stats.binom(rounds, rate)
    return bool((law.cdf(counts) > FALSE_ALARM).all() and (law.sf(counts - 1) > FALSE_ALARM).all())


def _asked(config: Config) -> NDArray[np.bool_]:
    asked = np.zeros((_COHORTS, config.clients.total), dtype=bool)
    with simulated_devices(config):
        workload = Workload(config)
        strategy = make_strategy(config, workload, workload.model())
        coordinator_of(strategy, secrets.randbits(128))
        grid = LocalGrid(make_app(), config.clients.total)
        for current in range(_COHORTS):
            for message in ask(strategy, current + 1, grid):
                asked[current, message.metadata.dst_node_id - FIRST_NODE] = True
    return asked


def sizes_stay_secret(config: Config) -> bool:
    """Where the draw counts as a secret, cohorts of different sizes have the same noise and lattice, and make the same
    model of the same sum."""
    rounds = [witnessed(config, key=key)[0] for key in range(3)]
    public = set()
    for round in rounds:
        booked = round.strategy.releases(1, round.cohort, len(round.arrived))["model"].sampling
        if isinstance(booked, Poisson) and booked.drawn_by is DrawnBy.COORDINATOR:
            noise = f"{round.noise:.9e}"  # real numbers add up with an error that no sum shows
            lattice = [round.record.get(name) for name in ("clip", "scale", "bits", "rotate")]
            round.strategy.update(1, replace(round.aggregate, sum=rounds[0].aggregate.sum))
            model = round.strategy.model.vector.numpy().tobytes()
            public.add((noise, round.aggregate.noise_std, model, *lattice))
    assert len({round.cohort for round in rounds}) > 1 or not public
    return len(public) <= 1


CHECKS: tuple[Callable[[Config], bool], ...] = (
    noise_is_what_it_is_said_to_be,
    contributions_are_bounded,
    stated_epsilons_are_true,
    cohorts_are_drawn_as_booked,
    sizes_stay_secret,
)
