"""Evaluations on devices in a run: they cost what the plan said, are added to what training costs, and a kill makes
none of them free."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedsketch.conf import Config, compose
from fedsketch.errors import ConfigError
from fedsketch.server.accounts import Accounts
from fedsketch.server.device_evaluations import DeviceEvaluations, NoEvaluations, evaluations_of
from fedsketch.server.plan import make_plan
from fedsketch.server.run_folder import Attempt, RunFolder
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.registry import make_strategy
from fedsketch.tasks.scores import evaluate
from fedsketch.tasks.workload import Workload
from tests.rounds import coordinator_of
from tests.small import plain

Play = Callable[..., Any]
EVALUATED = (
    *("evaluation=federated", "evaluation.epsilon=200", "evaluation.every=2"),
    *("privacy.noise_multiplier=0.5", "privacy.epsilon=null", "secagg.bits=32"),
)

EXAMPLE = ("privacy=example", "privacy.noise_multiplier=0.5", "privacy.epsilon=null")


def _trained(config: Config) -> Strategy:
    workload = Workload(config)
    return make_strategy(config, workload, workload.model())


def _evaluations(*overrides: str) -> DeviceEvaluations:
    trained = _trained(compose(plain(*EVALUATED, *overrides)))
    return DeviceEvaluations(coordinator_of(trained))


def test_without_them_nothing_changes() -> None:
    config = compose(plain())
    assert isinstance(evaluations_of(coordinator_of(_trained(config))), NoEvaluations)
    assert Workload(config).examples == 60
    plan = make_plan(config)
    assert (plan.evaluations, plan.evaluation_facts()) == (None, {})
    assert plan.epsilon_of_training == plan.epsilon["model"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy=dome", "strategy.sketch_dim=21", "secagg=pairwise", "secagg.colluders=0"),
        ("clients.sampling=passes", "clients.per_round=3", "evaluation.clients=6"),
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(EXAMPLE, marks=pytest.mark.slow),
    ],
    ids=["replayed and masked", "passes", "client", "example"],
)
def test_a_run_costs_what_the_plan_said(play: Play, overrides: tuple[str, ...]) -> None:
    played = play(*EVALUATED, *overrides)
    plan = make_plan(compose(plain(*EVALUATED, *overrides)))
    assert played.summary["epsilon"] == pytest.approx(plan.epsilon)
    assert plan.epsilon["model"] > plan.epsilon_of_training
    assert plan.evaluations is not None
    assert plan.evaluations["times"] == 2
    assert plan.guarantee == played.guarantee
    assert "Devices evaluate 2 times" in plan.guarantee
    assert f"together cost epsilon {plan.epsilon['model']:.4g}" in plan.guarantee


def test_rows_tell_means_noise_and_groups_of_evaluated_rounds(play: Play) -> None:
    rows = play(*EVALUATED, "evaluation.every=3").rows
    assert [row["federated_accuracy"] is not None for row in rows] == [False, False, True, True]
    assert [row["evaluation"] is not None for row in rows] == [False, False, True, True]
    told = rows[-1]["evaluation"]
    assert told["clients"] == 6
    for name, unit in (("accuracy", 1.0), ("loss", 5.0)):
        metric = told["metrics"][name]
        assert metric["mean"] == rows[-1][f"federated_{name}"]
        assert len(metric["groups"]) == len(metric["noise_of_groups"]) == 2
        assert 0 < metric["noise"] < metric["noise_of_groups"][0] < unit


def test_devices_say_what_the_model_does_on_their_held_out_examples(
    play: Play, tmp_path: Path
) -> None:
    """Without noise: the mean over clients, worked out by hand from the model that came out."""
    overrides = ("privacy=none", "evaluation=federated", "evaluation.groups=1")
    (*_, row) = play(*overrides, "evaluation.epsilon=null").rows
    workload = Workload(compose(plain(*overrides)))
    model = workload.model()
    weights = safetensors.torch.load_file(tmp_path / "run/model.safetensors")
    model.module.load_state_dict(weights)
    by_client = [evaluate(model, workload.local_test(client)) for client in range(6)]
    for name in ("accuracy", "loss"):
        expected = sum(one[name] for one in by_client) / 6
        assert row[f"federated_{name}"] == pytest.approx(expected, abs=1e-5)
        assert row["evaluation"]["metrics"][name]["noise"] == 0


def test_held_out_examples_are_not_trained_on() -> None:
    workload = Workload(compose(plain(*EVALUATED, "evaluation.held_out=0.3")))
    whole = Workload(compose(plain()))
    for client in range(6):
        trained, tested = workload.shard(client), workload.local_test(client)
        assert (len(trained), len(tested)) == (7, 3)
        both = torch.cat([trained.inputs, tested.inputs])
        assert sorted(both.flatten(1).tolist()) == sorted(
            whole.shard(client).inputs.flatten(1).tolist()
        )
    assert (workload.examples, workload.largest_shard, workload.largest_local_test) == (42, 7, 3)


def test_an_evaluation_that_fails_leaves_its_keys_empty_and_costs_all_the_same(play: Play) -> None:
    """The first two rounds have 6 calls each; what follows is the first evaluation, which the battery does not
    survive."""
    settings = (*EVALUATED, "clients.retries=0")
    healthy = play(*settings, folder="healthy").rows
    failed = play(*settings, folder="failed", failing=lambda call, client: 12 <= call < 18).rows
    assert len(failed) == 4
    assert failed[1]["federated_accuracy"] is None
    assert failed[1]["evaluation"] is None
    assert failed[3]["federated_accuracy"] is not None
    assert failed[1]["epsilon"]["server"] == pytest.approx(healthy[1]["epsilon"]["server"])
    assert failed[1]["epsilon"]["model"] < healthy[1]["epsilon"]["model"]  # who saw no result


def test_attempts_that_failed_are_paid_from_the_budget_of_evaluations(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """The only evaluation's first attempt fails. Against a server who sees every upload there is nothing left for a
    second one."""
    overrides = (
        *("evaluation=federated", "evaluation.epsilon=2", "privacy.against=server"),
        *("privacy.epsilon=null", "privacy.noise_multiplier=5"),
    )
    rows = play(*overrides, failing=lambda call, client: 24 <= call < 30).rows
    assert rows[-1]["federated_accuracy"] is None
    assert "another attempt would exceed the budget" in caplog.text


# ---------------------------------------------------------------------- kills
def _cut(folder: Path, attempts: int) -> None:
    """The folder as a kill leaves it after so many attempts: no checkpoint yet, and nothing finished."""
    for name in ("summary.json", "metrics.jsonl"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "checkpoints")
    lines = (folder / "attempts.jsonl").read_text().splitlines(keepends=True)
    (folder / "attempts.jsonl").write_text("".join(lines[:attempts]))


def test_a_killed_run_does_not_evaluate_for_free(play: Play, tmp_path: Path) -> None:
    settings = (*EVALUATED, "evaluation.epsilon=400", "rounds=2", "evaluation.every=1")
    whole = play(*settings).summary
    folder = RunFolder(tmp_path / "run")
    kinds = [(one.round, one.evaluation) for one in folder.attempts_since(0)]
    assert kinds == [(1, False), (1, True), (2, False), (2, True)]
    _cut(folder.path, 2)  # killed in the first evaluation
    again = play(*settings).summary
    # One of two evaluations fits after the one that was lost: it was calibrated for two.
    rows = folder.read_metrics()
    assert [row["federated_accuracy"] is not None for row in rows] == [True, False]
    for name, spent in again["epsilon"].items():
        assert spent > whole["epsilon"][name]


def test_who_evaluates_a_model_has_seen_it() -> None:
    """A kill in an evaluation: the round before it is charged to those who see models, as if a later round had
    begun."""
    strategy = _trained(compose(plain(*EVALUATED)))
    asked, evaluated, went_on = (Accounts(strategy) for _ in range(3))
    asked.charge_lost([Attempt(1, 6)])
    evaluated.charge_lost([Attempt(1, 6), Attempt(1, 6, evaluation=True), Attempt(1, 6, True)])
    went_on.charge_lost([Attempt(1, 6), Attempt(2, 6)])
    assert asked.epsilon()["model"] == 0
    assert evaluated.epsilon()["model"] == went_on.epsilon()["model"] > 0
    assert evaluated.epsilon()["server"] == asked.epsilon()["server"]


def test_lost_evaluations_are_charged_to_everybody() -> None:
    evaluations = _evaluations()
    before = evaluations.accounts.epsilon()
    assert set(before.values()) == {0.0}
    evaluations.accounts.charge_lost_evaluations([Attempt(1, 6), Attempt(2, 6, evaluation=True)])
    planned = _evaluations()
    planned.accounts.charge_planned(1, 1)
    assert evaluations.accounts.epsilon() == pytest.approx(planned.accounts.epsilon())


def test_both_accounts_are_one_composition() -> None:
    """Two of the same release in two accounts cost what they cost in one; more than either, and less than the sum."""
    evaluations = _evaluations()
    one, two = Accounts(evaluations.strategy), Accounts(evaluations.strategy)
    one.charge_planned(1, 1)
    two.charge_planned(1, 1)
    together, twice = one.epsilon(two), Accounts(evaluations.strategy)
    twice.charge_planned(1, 2)
    assert together == pytest.approx(twice.epsilon())
    for name, alone in one.epsilon().items():
        assert alone is not None
        assert together[name] is not None
        assert alone < together[name] < 2 * alone  # type: ignore[operator]


def test_whom_evaluations_do_not_name_has_no_guarantee_from_the_first_one_on() -> None:
    """Fed-SGM's eavesdropper must not see what follows from a model, and results of an evaluation do."""
    settings = (
        *("strategy=fed_sgm", "strategy.sketch_dim=4", "strategy.sketch=gaussian", "rounds=1"),
        *("strategy.seed_per=round", "strategy.clip=before", "secagg.noise=gaussian"),
    )
    evaluations = _evaluations(*settings)
    accounts = Accounts(evaluations._trained)
    (other,) = accounts.epsilon().keys() - evaluations.accounts.epsilon().keys()
    accounts.charge_planned(1, 1)
    assert accounts.epsilon(evaluations.accounts) == accounts.epsilon()
    evaluations.accounts.charge_planned(1, 1)
    assert accounts.epsilon(evaluations.accounts)[other] is None
    with pytest.raises(ConfigError, match="set evaluation=server"):
        _evaluations(*settings, "strategy.accounting=r_secret", "privacy.noise_multiplier=1")


def test_a_resumed_run_has_the_evaluations_of_its_checkpoint(play: Play, tmp_path: Path) -> None:
    settings = (
        *EVALUATED,
        "privacy.randomness=seeded",
        "evaluation.every=1",
        "clients.per_round=4",
    )
    whole = play(*settings, folder="whole")
    play(*settings)
    folder = RunFolder(tmp_path / "run")
    folder.summary.unlink()
    (folder.checkpoints / "round-000000004.pt").unlink()
    resumed = play(*settings)
    assert resumed.done == 3

    def told(rows: list[dict[str, Any]]) -> str:
        # A server that starts again sends the configuration again.
        left_out = {"seconds": None, "downlink_bytes": None}
        return json.dumps([{**row, **left_out} for row in rows])

    assert told(folder.read_metrics()) == told(whole.rows)
    assert resumed.summary["epsilon"] == whole.summary["epsilon"]
