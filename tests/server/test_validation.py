"""The best model and the early stop: decided by the validation examples alone, the same after a resume, at no cost."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedsketch.conf import compose
from fedsketch.errors import ConfigError, TooFewClients
from fedsketch.server.checkpoint import Checkpoint
from fedsketch.server.plan import make_plan
from fedsketch.server.run_folder import RunFolder
from fedsketch.server.validation import Validation
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.scores import evaluate
from fedsketch.tasks.workload import Workload
from tests.small import plain

Play = Callable[..., Any]
HELD_OUT = ("validation.examples=12", "privacy.randomness=seeded")


def _validation(*overrides: str) -> Validation:
    nothing = Examples(torch.empty(0, 1), torch.empty(0, dtype=torch.int64))
    return Validation(compose(["validation.examples=5", *overrides]), nothing, RunFolder(Path()))


def _noted(validation: Validation, *values: float) -> list[bool]:
    return [
        validation.note(i, value, torch.tensor([float(i)])) for i, value in enumerate(values, 1)
    ]


def test_the_best_is_the_highest_or_the_lowest_as_the_metric_says() -> None:
    accuracy, loss = _validation(), _validation("validation.metric=loss")
    assert _noted(accuracy, 0.5, 0.4, 0.5, 0.7, math.nan, 0.6) == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    assert _noted(loss, 0.5, 0.4, 0.4, 0.7) == [True, True, False, False]
    assert accuracy.best is not None
    assert loss.best is not None
    assert (accuracy.best.round, accuracy.best.value, accuracy.best.vector.item()) == (4, 0.7, 4.0)
    assert (loss.best.round, loss.best.value) == (2, 0.4)


def test_it_gives_up_after_as_many_evaluations_as_it_has_patience() -> None:
    patient = _validation("validation.patience=2")
    _noted(patient, 0.5, 0.4, 0.6, 0.5)
    assert patient.stopped is None
    patient.note(5, 0.6, torch.zeros(1))
    assert patient.stopped is not None
    assert "best after round 3, and 2 evaluations since" in patient.stopped
    _noted(endless := _validation(), *[0.1] * 50)
    assert endless.stopped is None
    _noted(lost := _validation("validation.patience=2"), math.nan, math.inf)
    assert "not a number in 2 evaluations" in str(lost.stopped)


def test_its_state_survives_a_checkpoint(tmp_path: Path) -> None:
    before = _validation("validation.patience=3")
    _noted(before, 0.5, 0.4)
    Checkpoint("", 2, torch.zeros(1), {}, "{}", 1, 0.0, (0.0, 0.0), 0, before.state_dict()).save(
        tmp_path
    )
    after = _validation("validation.patience=3")
    saved = Checkpoint.load_latest(tmp_path, "")
    assert saved is not None
    after.load_state_dict(saved.validation)
    assert _noted(after, 0.5) == [False]
    assert after.stopped is None
    after.note(4, 0.1, torch.zeros(1))
    assert after.stopped is not None


def _scripted(monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
    """Accuracies on the validation examples, round by round; the loss and the test set stay what they are."""
    script = iter(values)

    def measured(model: Any, examples: Any) -> dict[str, float]:
        told = evaluate(model, examples)
        assert len(examples) in (12, 20)
        return {**told, "accuracy": next(script, 0.0)} if len(examples) == 12 else told

    monkeypatch.setattr("fedsketch.server.validation.evaluate", measured)


def test_a_run_stops_when_nothing_gets_better_and_keeps_its_best_model(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (*HELD_OUT, "rounds=9", "validation.patience=2")
    _scripted(monkeypatch, 0.5, 0.7, 0.6, 0.7)
    played = play(*settings)
    run = tmp_path / "run"
    assert [row["validation"]["accuracy"] for row in played.rows] == [0.5, 0.7, 0.6, 0.7]
    assert played.summary["stopped"].startswith("Stopped after round 4: accuracy on the validation")
    assert {**played.summary["best"], "test": None} == {
        "round": 2,
        "metric": "accuracy",
        "value": 0.7,
        "test": None,
    }
    assert played.rows[-1]["accuracy"] is not None
    # The best model is that of round 2.
    short = play(*HELD_OUT, "rounds=2", "privacy.epsilon=null", _noise(run), folder="short")
    best, other = (
        safetensors.torch.load_file(path)
        for path in (run / "best.safetensors", tmp_path / "short" / "model.safetensors")
    )
    assert best.keys() == other.keys()
    assert all(torch.equal(best[name], other[name]) for name in best)
    assert played.summary["best"]["test"]["loss"] == short.summary["loss"]


def test_a_run_that_its_models_stopped_states_the_epsilon_of_all_planned_rounds(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They chose when to stop, so the epsilon of fewer rounds would not hold. The rows before are about their rounds
    alone."""
    settings = (*HELD_OUT, "rounds=9", "validation.patience=1")
    _scripted(monkeypatch, 0.5, 0.6, 0.4)
    stopped = play(*settings)
    planned = make_plan(compose(plain(*settings)))
    assert len(stopped.rows) == 3
    assert stopped.summary["epsilon"] == pytest.approx(planned.epsilon, rel=1e-9)
    assert stopped.rows[-1]["epsilon"] == stopped.summary["epsilon"]
    assert "Epsilon is that of all rounds that were planned" in stopped.summary["stopped"]
    spent = planned.epsilon_over_rounds["model"]
    assert [row["epsilon"]["model"] for row in stopped.rows[:2]] == pytest.approx(spent[:2])


def test_evaluations_on_devices_that_did_not_take_place_any_more_are_counted_too(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned after rounds 2, 4, ..., 9. The run ends after round 3 and evaluates there once more than planned."""
    settings = (*HELD_OUT, "rounds=9", "validation.patience=1", "evaluation=federated")
    often = ("evaluation.every=2", "evaluation.groups=1")
    _scripted(monkeypatch, 0.5, 0.6, 0.4)
    stopped = play(*settings, *often)
    planned = make_plan(compose(plain(*settings, *often))).epsilon["model"]
    assert len(stopped.rows) == 3
    assert planned is not None
    assert planned < stopped.summary["epsilon"]["model"] < 1.02 * planned


def _noise(run: Path) -> str:
    """The noise that the budget of the long run asked for."""
    multiplier = json.loads((run / "summary.json").read_text())["noise_multiplier"]
    return f"privacy.noise_multiplier={multiplier!r}"


def test_a_resumed_run_has_the_same_best_model_and_patience(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in round 4, resumed from the checkpoint of round 2: round 3 is evaluated again."""
    settings = (
        *HELD_OUT,
        "rounds=9",
        "validation.patience=3",
        "checkpoint_every=2",
        "clients.retries=0",
    )
    _scripted(monkeypatch, 0.6, 0.5, 0.9, 0.9)
    with pytest.raises(TooFewClients):
        play(*settings, failing=lambda call, client: call == 20)
    _scripted(monkeypatch, 0.5, 0.4)
    resumed = play(*settings)
    assert resumed.done == 2
    assert [row["round"] for row in resumed.rows] == [3, 4]
    assert (resumed.summary["best"]["round"], resumed.summary["best"]["value"]) == (1, 0.6)
    assert "after round 4" in resumed.summary["stopped"]
    play(*settings, "rounds=1", "privacy.epsilon=null", _noise(tmp_path / "run"), folder="short")
    best, other = (
        safetensors.torch.load_file(path)
        for path in (tmp_path / "run/best.safetensors", tmp_path / "short/model.safetensors")
    )
    assert all(torch.equal(best[name], other[name]) for name in best)


def test_without_validation_there_is_no_best_model(play: Play, tmp_path: Path) -> None:
    played = play("rounds=1")
    assert "validation" not in played.rows[0]
    assert played.summary["best"] is None
    assert not (tmp_path / "run" / "best.safetensors").exists()


def test_validation_examples_are_no_clients_and_no_tests() -> None:
    whole, public = Workload(compose(plain())), Workload(compose(plain("data.public=7")))
    workload = Workload(compose(plain("validation.examples=12", "data.public=7")))
    assert workload.validation is not None
    rows = [row.numpy().tobytes() for row in workload.validation.inputs]
    others = [workload.test, workload.public, *(workload.shard(client) for client in range(6))]
    seen = {row.numpy().tobytes() for examples in others for row in examples.inputs}
    assert len(set(rows)) == 12
    assert not seen & set(rows)
    assert len(workload.test) == len(whole.test)
    assert workload.examples == whole.examples - 19
    assert torch.equal(workload.public.inputs, public.public.inputs)


def test_where_devices_hold_the_data_they_are_a_part_of_the_servers(tmp_path: Path) -> None:
    import numpy as np

    inputs = np.arange(20, dtype=np.float32).reshape(20, 1, 1, 1)
    inputs[1] = inputs[0]
    np.savez(tmp_path / "test.npz", inputs=inputs, targets=np.arange(20) % 2)
    settings = [
        "data=folder",
        "data.shape=[1,1,1]",
        "data.classes=2",
        f"data.root={tmp_path}/test.npz",
    ]
    workload = Workload(compose([*settings, "model=logistic", "validation.examples=5"]))
    assert workload.validation is not None
    found, left = (set(e.inputs.flatten().tolist()) for e in (workload.validation, workload.test))
    assert (len(workload.validation), len(workload.test)) == (5, 15)
    assert not found & left
    assert 0.0 in left  # it occurs twice
    with pytest.raises(ValueError, match=r"lower validation\.examples"):
        _ = Workload(compose([*settings, "model=logistic", "validation.examples=19"])).test


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["validation.patience=3"], "set validation.examples"),
        (["validation.metric=loss"], "set validation.examples"),
        (["validation.examples=5", "validation.metric=f1"], "set one of accuracy, loss"),
        (["validation.examples=-1"], "validation.examples"),
    ],
)
def test_what_does_not_fit_is_a_sentence(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    assert words in str(caught.value)
