"""What a run states as epsilon, against an accountant of the tests' own, from what really happened in a round.

A real round is played with the real devices and the real server (`tests.privacy.witness`), and the noise that they
really draw is written down. What each adversary can see of it is said in `tests.privacy.seen`;
`tests.privacy.own_accountant` makes an epsilon of that, for data that hides a unit as badly as we know. It must never
exceed what the run states, and the run must not state much more either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from fedsketch.conf import Config, compose
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    NoSampling,
    Poisson,
    Release,
    SecretDraw,
    Skellam,
    Unit,
    WithoutReplacement,
)
from fedsketch.server.accounts import Accounts
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.workload import Workload
from tests.privacy.own_accountant.losses import Interval
from tests.privacy.own_accountant.sums import Pair, SkellamSum, epsilon
from tests.privacy.seen import everything_seen, stated
from tests.privacy.witness import witnessed
from tests.small import small

BASE = "rounds=6 privacy.epsilon=null privacy.noise_multiplier=3"
DELTA = 1e-5
KEY = 5  # of the cohorts that are played

# How much larger the stated epsilon may be than what the tests' own accountant finds.
FACTOR = 1.01
# By the kind of draw, where more is allowed:
# - With Skellam noise the theorem on draws of fixed size lets the others' data be the worst for every loss at once. It
#   is another one for losses below zero, so that compositions are looser: 1 % for 6 rounds of 8 in 20, 5 % for 100
#   rounds of 10 in 100. With Gaussian noise the others may choose in every round, and here they never do.
# - A fellow client without masks is booked as one that is in the cohort and knows its noise, and as one that is not and
#   leaves its place to others. It is one of the two: 9 % for cohorts of 8, and less for larger ones.
LARGER = {
    "fixed size": 1.02,
    "fixed size among others": 1.10,
    "poisson among others": 1.10,
    "revealed among others": 1.07,
}


NONE = "secagg=none privacy.against=model"
SKELLAM = f"{NONE} secagg.noise=skellam"
SAMPLED = "clients.total=20 clients.per_round=8 privacy.noise_multiplier=1.5"
HALF = "clients.total=40 clients.per_round=20"
TRAINING = "strategy=fedpcdp strategy.projection=none"
STACKED = "strategy=fedceo strategy.start=slots strategy.every=1 strategy.local.epochs=1"
EXAMPLE = "privacy=example privacy.epsilon=null privacy.noise_multiplier=3"
CASES = [  # and how many of the cohort are lost
    (NONE, 0),
    ("secagg=none privacy.against=server", 0),
    ("secagg=none privacy.against=client", 0),
    (f"{NONE} {SAMPLED} clients.sampling=fixed", 0),
    (f"{NONE} {SAMPLED} clients.sampling=fixed clients.tolerated_dropouts=0.25", 2),
    (f"{NONE} {SAMPLED} clients.sampling=poisson", 0),
    (f"{NONE} {SAMPLED} clients.sampling=poisson clients.tolerated_dropouts=0.25", 1),
    (f"{NONE} {SAMPLED} clients.sampling=passes", 0),
    (f"secagg=none privacy.against=server {SAMPLED} clients.sampling=poisson", 0),
    (SKELLAM, 0),
    (f"{SKELLAM} {SAMPLED} clients.sampling=fixed", 0),
    (f"{SKELLAM} {HALF} clients.sampling=poisson privacy.against=client", 0),
    (f"{NONE} {HALF} clients.sampling=poisson privacy.against=client", 0),
    (f"{SKELLAM} {SAMPLED} clients.sampling=passes", 0),
    ("secagg=semi_honest", 0),
    (f"secagg=semi_honest {SAMPLED} secagg.colluders=0.25 clients.sampling=fixed", 0),
    (f"secagg=semi_honest {SAMPLED} clients.sampling=poisson privacy.against=model", 0),
    ("secagg=pairwise secagg.colluders=0", 0),
    ("secagg=pairwise clients.tolerated_dropouts=0.25 secagg.colluders=0.2", 3),
    ("secagg=pairwise clients.tolerated_dropouts=0.25 secagg.colluders=0.2", 0),
    ("secagg=pairwise secagg.bits=16", 0),
    (f"secagg=pairwise {SAMPLED} clients.sampling=passes", 0),
    (f"secagg=pairwise {SAMPLED} clients.sampling=fixed clients.tolerated_dropouts=0.2", 1),
    (f"secagg=pairwise {SAMPLED} clients.sampling=poisson secagg.colluders=0.3", 0),
    (f"{EXAMPLE} {NONE}", 0),
    (f"{EXAMPLE} {NONE} {SAMPLED} clients.sampling=fixed", 0),
    (f"{EXAMPLE} {NONE} {SAMPLED} clients.sampling=poisson", 0),
    (f"{EXAMPLE} secagg=pairwise clients.tolerated_dropouts=0.25", 2),
    (f"{EXAMPLE} secagg=semi_honest {SAMPLED} clients.sampling=poisson", 0),
    (f"{EXAMPLE} secagg=pairwise {SAMPLED} clients.sampling=passes", 0),
    (f"{TRAINING} strategy.local.steps=3 strategy.local.batch=1 secagg=none", 0),
    (f"{TRAINING} strategy.local.steps=2 strategy.local.batch=2 secagg=pairwise", 0),
    ("strategy=fed_sgm strategy.sketch_dim=8 secagg=pairwise", 0),
    ("strategy=dome secagg=none privacy.against=model", 0),
    (f"{NONE} privacy.clip=adaptive", 0),
    (f"secagg=pairwise {SAMPLED} clients.sampling=poisson privacy.clip=adaptive", 0),
    (f"{STACKED} secagg=none", 0),
    (f"{STACKED} strategy.groups=3 secagg=pairwise", 0),
]


@pytest.mark.parametrize(("overrides", "lost"), CASES, ids=str)
def test_the_stated_epsilon_is_true_and_not_much_more_than_true(overrides: str, lost: int) -> None:
    _compare(_config(overrides), lost)


@pytest.mark.parametrize(
    "overrides",
    [
        "secagg=none privacy.against=model",
        "secagg=none privacy.against=client",
        "secagg=none privacy.against=server",
        "secagg=pairwise clients.tolerated_dropouts=0.25 privacy.against=server",
        "secagg=semi_honest clients.sampling=passes clients.per_round=6 privacy.against=client",
    ],
)
def test_a_budget_is_kept_in_truth(overrides: str) -> None:
    """The noise of a run that was asked for an epsilon, with as many lost as are tolerated."""
    config = _config(overrides, "privacy.epsilon=2 privacy.noise_multiplier=null")
    lost = math.floor(config.clients.per_round * config.clients.tolerated_dropouts)
    spent = _compare(config, lost)[config.privacy.against]
    assert spent.low <= 2.0
    assert spent.high >= 2.0 / FACTOR


@pytest.mark.parametrize("unit", [EXAMPLE, ""])
def test_fellow_clients_learn_no_less_than_all_who_see_the_models(unit: str) -> None:
    """One that is never drawn sees what all see: also where small cohorts came."""
    config = _config(f"{NONE} {unit} {SAMPLED} clients.sampling=poisson")
    workload = Workload(config)
    strategy = make_strategy(config, workload, workload.model())
    for cohort in (2, 4, 6, 10):
        accounts = Accounts(strategy)
        for current in range(1, config.rounds + 1):
            accounts.charge_applied(current, cohort, cohort)
        spent = accounts.epsilon()
        assert spent["client"] >= spent["model"], cohort  # type: ignore[operator]


@pytest.mark.parametrize("contribution", [(1,), (2,), (5,), (1,) * 9, (2, 1, 1)], ids=str)
@pytest.mark.parametrize("variance", [4, 5, 9, 40])
def test_coarse_integer_noise_shows_no_more_than_is_booked(
    variance: int, contribution: tuple[int, ...]
) -> None:
    """Rings of runs are much finer; here the lattice shows."""
    noisy, rate, step, rounds = SkellamSum(variance, contribution), 0.25, 1e-3, 3
    norm = math.sqrt(sum(c * c for c in contribution))
    law = Skellam(variance, norm, sum(contribution))
    pairs: dict[SecretDraw, Pair] = {
        NoSampling(): noisy.always(step),
        Poisson(rate): noisy.poisson(rate, step),
    }
    if len(contribution) == 1:
        pairs[WithoutReplacement(1, 4)] = noisy.fixed_size(rate, step)
    for draw, pair in pairs.items():
        accountant = Accountant(DELTA)
        accountant.record(
            Release(law, draw, Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.MODEL), rounds
        )
        assert epsilon([(pair, rounds)], DELTA).low <= accountant.epsilon().epsilon


LARGE = "rounds=60 clients.total=200 clients.per_round=20 privacy.noise_multiplier=1.5 data.examples=400"
# Cohorts of 17 instead of 20 are played here, and fellow clients are booked with 20.
LONG = {
    "fixed size": 1.06,
    "fixed size among others": 1.30,
    "revealed among others": 1.16,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "lost"),
    [
        (f"{NONE} {LARGE} clients.sampling=fixed", 0),
        (f"{NONE} {LARGE} clients.sampling=poisson", 0),
        (f"{NONE} {EXAMPLE} {LARGE} clients.sampling=poisson", 0),
        (f"secagg=pairwise {LARGE} clients.sampling=poisson clients.tolerated_dropouts=0.3", 4),
        (f"secagg=semi_honest {LARGE} clients.sampling=fixed secagg.colluders=0.3", 0),
    ],
)
def test_long_runs_of_many_clients(overrides: str, lost: int) -> None:
    _compare(_config(overrides), lost, LONG)


def _config(*overrides: str) -> Config:
    return compose(small(BASE, *overrides, clients=12))


def _compare(
    config: Config, lost: int, larger: Mapping[str, float] = LARGER
) -> dict[str, Interval]:
    """Play a round of which some are lost, and check what is stated of rounds like it; returns the true epsilons."""
    gone = CohortSampler(config.clients, KEY).draw(1)[:lost]
    (round,) = witnessed(config, key=KEY, lost=gone.__contains__)
    assert len(round.arrived) == round.cohort - lost
    seen = everything_seen(config, round)
    truth = {}
    for adversary, claim in stated(config, round).items():
        law, kind, pair, times = seen[adversary]
        own = truth[adversary] = epsilon([(pair, times)], config.privacy.delta)
        line = (
            f"{adversary}: {law}, {kind}: stated {claim:.4f}, own {own.low:.4f} to {own.high:.4f}"
        )
        print(f"{line}, factor {claim / own.high:.3f}")  # pytest -s shows the table
        assert own.low <= claim, line
        assert claim <= larger.get(kind, FACTOR) * own.high, line
    assert set(truth) == {"model", "client", "server"}
    return truth
