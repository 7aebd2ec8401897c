"""Whole runs with noise inside of training: priced by the step, stopped by the budget, resumed with the same
directions."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsketch.conf import compose
from fedsketch.errors import TooFewClients
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    DrawnBy,
    Gaussian,
    Poisson,
    Release,
    Unit,
)
from fedsketch.server.accounts import Accounts
from fedsketch.server.plan import make_plan
from fedsketch.server.run_folder import Attempt
from fedsketch.strategies.registry import make_strategy
from fedsketch.tasks.workload import Workload
from tests.small import plain

Play = Callable[..., Any]
STEPS, SIGMA = 3, 2.0
RUN = (
    "strategy=fedpcdp",
    "data.examples=90",
    "data.public=30",
    "strategy.rank=4",
    "strategy.public_examples=10",
    f"strategy.local.steps={STEPS}",
    "strategy.local.batch=2",  # of 10 examples
    f"privacy.noise_multiplier={SIGMA}",
    "privacy.epsilon=null",
    "privacy.clip=0.1",
)


def _epsilon(rounds: int) -> float:
    own = Poisson(0.2, Unit.EXAMPLE, DrawnBy.DEVICE)
    step = Release(Gaussian(SIGMA), own, Adjacency.ZERO_OUT, Unit.EXAMPLE, Adversary.SERVER)
    accountant = Accountant(1e-5)
    accountant.record(step, STEPS * rounds)
    return accountant.epsilon().epsilon


def test_every_step_of_every_round_is_priced_for_every_adversary(play: Play) -> None:
    played = play(*RUN, "rounds=2")
    for row, rounds in zip(played.rows, (1, 2), strict=True):
        expected = pytest.approx(_epsilon(rounds))
        assert row["epsilon"] == {"model": expected, "client": expected, "server": expected}
        assert row["basis_rank"] == 7  # 4 directions of the weights, and 3 biases whole
    assert "2, per example" in played.guarantee
    assert "The server holds 30 public examples" in played.guarantee


def test_the_budget_ends_a_run(play: Play) -> None:
    played = play(*RUN, "rounds=9", f"privacy.epsilon={_epsilon(2) * 1.0001}")
    assert len(played.rows) == 2
    assert "another would exceed" in played.summary["stopped"]


def test_a_plan_says_what_a_run_will_do() -> None:
    plan = make_plan(compose(plain(*RUN, "secagg=none", "secagg.noise=skellam")))
    assert plan.upload_size == 7
    assert plan.epsilon["server"] == pytest.approx(_epsilon(4))
    assert "3, each example drawn with probability 0.2" in plan.mechanism_facts["local steps"]
    assert plan.best_snr is not None
    assert math.isfinite(plan.best_snr)


def test_what_was_seen_before_a_kill_is_charged_with_the_draws_of_the_devices() -> None:
    """Devices that are asked again draw other batches: their draw hides as much as the first time."""
    config = compose(plain(*RUN))
    workload = Workload(config)
    strategy = make_strategy(config, workload, workload.model())
    accounts = Accounts(strategy)
    accounts.charge_lost([Attempt(1, 6), Attempt(2, 6)])
    spent = accounts.epsilon()
    assert spent["model"] == pytest.approx(_epsilon(1))
    assert spent["server"] == pytest.approx(_epsilon(2))


def test_a_resumed_run_ends_where_an_unbroken_one_does(play: Play, tmp_path: Path) -> None:
    """With directions that were taken before the kill."""
    asked = (*RUN, "strategy.refresh=3", "privacy.randomness=seeded", "clients.retries=0")
    whole = play(*asked, folder="whole")
    with pytest.raises(TooFewClients):
        play(*asked, failing=lambda call, client: call == 14)  # in round 3
    resumed = play(*asked)
    assert resumed.done == 2
    assert resumed.summary["loss"] == whole.summary["loss"]
