"""The plan of a run says what the run will do."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsketch.conf import Config, compose
from fedsketch.conf.plugins import FOLDER
from fedsketch.errors import ImpossibleBudgetError, RingTooSmallError
from fedsketch.server.accounts import Accounts
from fedsketch.server.plan import Plan, make_plan
from fedsketch.strategies.registry import make_strategy
from fedsketch.tasks.workload import Workload
from tests.small import small


def _config(*overrides: str) -> Config:
    return compose(small("rounds=7", *overrides, clients=20))


def _plan(*overrides: str) -> Plan:
    return make_plan(_config(*overrides))


def test_the_budget_is_spent_by_the_last_round_and_not_before() -> None:
    plan = _plan("privacy.epsilon=3")
    assert plan.epsilon["server"] == pytest.approx(3, rel=2e-3)
    assert plan.epsilon["server"] <= 3
    assert len(plan.epsilon_over_rounds["round"]) == 7
    curve = [value for value in plan.epsilon_over_rounds["server"] if value is not None]
    assert curve == sorted(curve)
    assert curve[-1] == plan.epsilon["server"]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("clients.per_round=5", "clients.sampling=passes", "privacy.against=model"),
        ("strategy=fedceo", "strategy.every=3", "strategy.start=slots", "strategy.groups=2"),
        (
            *("strategy=fedceo", "strategy.every=3", "strategy.start=slots", "secagg=none"),
            *("privacy.against=model", "privacy.epsilon=null", "privacy.noise_multiplier=2"),
        ),
        ("strategy=sgmf", "clients.per_round=5", "clients.sampling=passes"),
    ],
    ids=" ".join,
)
def test_rounds_in_one_go_cost_what_they_cost_one_by_one(overrides: tuple[str, ...]) -> None:
    _check_one_by_one(overrides)


OWN_STRATEGY = """
from dataclasses import replace
from fedsketch.strategies.algorithm import DeviceHalf
from fedsketch.strategies.dp_fedavg import DPFedAvg

class Own(DPFedAvg):
    def releases(self, server_round, cohort, clients):
        seen = super().releases(server_round, cohort, clients)
        return {name: replace(one, times=1 + server_round % 3) for name, one in seen.items()}

SERVER, DEVICE = Own, DeviceHalf
"""


def test_a_strategy_of_a_package_is_planned_by_what_its_rounds_show(
    install: Callable[..., None],
) -> None:
    """Its rounds differ in their releases alone: in how often something is seen."""
    usual = (FOLDER / "strategy" / "dp_fedavg.yaml").read_text()
    files = {
        "__init__.py": OWN_STRATEGY,
        "conf/strategy/own.yaml": usual.replace("dp_fedavg", "own"),
        "conf/strategy/own.py": "from fedsketch.conf.settings import StrategySettings as SETTINGS",
    }
    entries = {"fedsketch.conf": "x = plugin_own.conf", "fedsketch.strategies": "own = plugin_own"}
    install("plugin_own", files, entries)
    fixed = ("privacy.epsilon=null", "privacy.noise_multiplier=4")
    own = _check_one_by_one(("strategy=own", *fixed))
    plain = _check_one_by_one(fixed)
    assert own.epsilon["server"] > 1.2 * plain.epsilon["server"]


def _check_one_by_one(overrides: tuple[str, ...]) -> Plan:
    config = _config("rounds=120", *overrides)
    plan, workload = make_plan(config), Workload(config)
    strategy = make_strategy(config, workload, workload.model())
    accounts, cohort = Accounts(strategy), config.clients.per_round
    for current in range(1, 121):
        accounts.charge_attempt(current, cohort)
        accounts.charge_applied(current, cohort)
    assert plan.epsilon == pytest.approx(accounts.epsilon(), rel=1e-9)
    assert plan.epsilon_over_rounds["round"] == list(range(3, 121, 3))
    return plan


def test_a_million_rounds_are_planned_at_once() -> None:
    start = time.process_time()
    assert _plan("rounds=1000000").epsilon["server"] == pytest.approx(8, rel=2e-3)
    assert time.process_time() - start < 20  # one by one: a minute; at once: a second


def test_without_masks_the_server_learns_more_than_the_models_tell() -> None:
    plan = _plan("secagg=none", "privacy.against=model", "privacy.epsilon=3")
    assert plan.epsilon["model"] == pytest.approx(3, rel=1e-3)
    assert plan.epsilon["server"] is not None
    assert plan.epsilon["server"] > 10
    assert plan.mechanism_facts == {}
    assert plan.mechanism["mechanism"] == "gaussian"


def test_without_noise_nothing_is_guaranteed() -> None:
    plan = _plan("strategy=fedavg")
    assert plan.epsilon == {"model": None, "client": None, "server": None}
    assert plan.best_snr is None
    assert plan.upload_size == plan.parameters + 1  # the weight travels with the update


def test_both_readings_of_a_sketch_stand_side_by_side() -> None:
    common = ("strategy=fed_sgm", "secagg=none", "privacy.against=model", "privacy.epsilon=3")
    after = _plan(*common, "strategy.clip=after")
    before = _plan(*common, "strategy.clip=before", "rounds=1")
    assert list(after.epsilon) == ["model", "client", "server"]
    assert list(before.epsilon) == ["model", "client", "server", "eavesdropper (r_secret)"]
    assert before.epsilon["model"] == pytest.approx(3, rel=1e-3)
    assert len(before.epsilon_over_rounds["eavesdropper (r_secret)"]) == 1
    assert "r_public" in before.guarantee
    assert "r_secret" in before.guarantee


def test_the_best_signal_to_noise_follows_from_cohort_noise_and_dimension() -> None:
    plan = _plan(
        "secagg=none", "privacy.against=model", "privacy.epsilon=null", "privacy.noise_multiplier=2"
    )
    assert plan.best_snr == pytest.approx(20 / (2 * math.sqrt(plan.upload_size)))


def test_with_examples_as_units_every_example_is_a_part_of_the_best_signal() -> None:
    common = ("secagg=none", "privacy.epsilon=null", "privacy.noise_multiplier=2")
    clients, examples = (_plan(*common, f"privacy.unit={unit}") for unit in ("client", "example"))
    config = _config(*common)
    each = Workload(config).examples / config.clients.total
    assert clients.best_snr is not None
    assert examples.best_snr == pytest.approx(each * clients.best_snr)


def test_a_small_ring_sends_fewer_bytes() -> None:
    small, large = (_plan("secagg=pairwise", f"secagg.bits={bits}") for bits in (16, 32))
    assert (small.mechanism["bits"], large.mechanism["bits"]) == (16, 32)
    assert large.uplink_bytes - small.uplink_bytes == pytest.approx(2 * small.upload_size, abs=8)


def test_the_plan_says_which_ring_was_chosen() -> None:
    plan = _plan()
    assert plan.mechanism["bits"] == 16
    assert plan.mechanism_facts["ring"].startswith("16 bits, modulo 65,521, scale ")
    pairwise = _plan("secagg=pairwise").mechanism_facts["ring"]
    assert pairwise.startswith("16 bits, scale ")


def test_a_ring_that_cannot_hold_the_sum_is_refused_with_one_that_can() -> None:
    with pytest.raises(RingTooSmallError, match=r"smallest .* bits"):
        _plan("secagg.bits=16", "privacy.epsilon=0.001")


def test_an_impossible_budget_says_what_is_possible() -> None:
    with pytest.raises(ImpossibleBudgetError, match="fewer rounds"):
        _plan("secagg=none", "privacy.epsilon=1e-9", "privacy.delta=1e-12")


def test_a_long_run_is_drawn_with_few_points_and_its_end() -> None:
    rounds = _plan("rounds=1000").epsilon_over_rounds["round"]
    assert len(rounds) <= 51
    assert rounds[-1] == 1000


def test_it_is_written_down(tmp_path: Path) -> None:
    plan = _plan()
    figure = plan.save(tmp_path / "new" / "folder")
    written = json.loads((tmp_path / "new" / "folder" / "plan.json").read_text())
    keys = "noise_multiplier epsilon delta uplink_bytes downlink_bytes mechanism mechanism_facts"
    assert written.keys() >= set(keys.split())
    assert written["epsilon"] == plan.epsilon
    assert figure.read_text().startswith("<svg")


def test_the_plan_says_after_which_round_the_budget_ends_the_run() -> None:
    """Found by bisection; here every round is asked for, one after the other."""
    config = _config("rounds=130", "privacy.noise_multiplier=5")
    plan = make_plan(config)
    workload = Workload(config)
    strategy = make_strategy(config, workload, workload.model())
    accounts, played = Accounts(strategy), 0
    while accounts.affordable(played + 1):
        played += 1
        accounts.charge_whole(played, played, config.clients.per_round)
    assert plan.ends_after == played
    assert 1 < played < 130
    assert _plan("privacy.noise_multiplier=5", f"rounds={played}").ends_after is None
