"""Every preset is a run that can be planned, at every budget, and holds the rate that the recorded tuning chose."""

import sys
from functools import cache
from pathlib import Path

import pytest

from fedsketch.conf import compose
from fedsketch.conf.plugins import FOLDER
from fedsketch.server.plan import make_plan

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import tuning
from presets import EPSILONS, PANELS, PRESETS

NAMES = sorted(PRESETS)
LIKE_FASHION_MNIST = (
    *("data=synthetic", "data.shape=[1,28,28]", "data.classes=10"),
    *("data.examples=4000", "data.test_examples=10"),
)


def test_every_preset_is_compared_or_shared_by_others_or_has_its_own_benchmark() -> None:
    files = {path.stem for path in (FOLDER / "experiment").glob("*.yaml")}
    shared = {"none", "clients_100", "clients_1000", "examples_10"}
    apart = ("paper_", "record_", "transformer_")  # with benchmarks of their own
    assert {name for name in files if not name.startswith(apart)} - shared == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_of_a_preset_keeps_its_budget(name: str) -> None:
    panel = next(panel for panel in PANELS if PRESETS[name] in panel.presets)
    config = compose([f"experiment={name}", "device=cpu", *LIKE_FASHION_MNIST])
    plan = make_plan(config)
    assert config.model.name == "mlp"
    assert (config.privacy.unit.value, plan.budget_against) == (panel.unit, panel.adversary)
    assert plan.parameters == 25_450
    assert plan.ends_after is None
    spent = plan.epsilon[panel.adversary]
    assert spent is not None
    assert 1.9 < spent <= 2.0


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_takes_other_data_and_another_model(name: str) -> None:
    config = compose([f"experiment={name}", "data=cifar10", "model=cnn"])
    assert (config.data.name, config.model.name) == ("cifar10", "cnn")


def test_a_preset_is_of_fashion_mnist_unless_said_otherwise() -> None:
    assert compose(["experiment=dome"]).data.name == "fashion_mnist"
    assert compose(["experiment=dome", "data=mnist"]).data.name == "mnist"


@cache
def _tries() -> tuning.Scores:
    return tuning.scores(tuning.read_records(tuning.TRIES))


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_has_the_rates_that_were_chosen_on_validation_examples(name: str) -> None:
    lines = (FOLDER / "experiment" / f"{name}.yaml").read_text().splitlines()
    (line,) = [line for line in lines if "nearest:" in line]
    if tuning.complete(PRESETS[name], _tries()):
        chosen = tuning.chosen(PRESETS[name], _tries())
        assert tuple(chosen) == EPSILONS
        assert line == f"    lr: {tuning.table(chosen)}"
    else:
        assert line.endswith(tuning.NOT_YET)


def test_the_best_rate_has_a_worse_one_on_both_sides() -> None:
    preset = PRESETS["dp_fedavg"]
    known = {tuning.overrides(preset, 2.0, step): value for step, value in ((-1, 1.0), (0, 2.0))}
    assert tuning.missing(preset, 2.0, known) == [tuning.overrides(preset, 2.0, 1)]
    known[tuning.overrides(preset, 2.0, 1)] = 3.0  # better still: the search goes on beyond it
    assert tuning.missing(preset, 2.0, known) == [tuning.overrides(preset, 2.0, 2)]
    known[tuning.overrides(preset, 2.0, 2)] = 2.5
    assert tuning.missing(preset, 2.0, known) == []
    assert tuning.best(preset, 2.0, known) == 1.4


def test_tuning_looks_at_no_test_set() -> None:
    for record in tuning.read_records(tuning.TRIES):
        assert "validation.examples=5000" in record["overrides"]
        assert "accuracy" not in record
