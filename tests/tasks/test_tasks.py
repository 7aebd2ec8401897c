"""What a run learns: losses are those of torch, metrics those of scikit-learn, and no loss lets an example see
another."""

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch import Tensor, nn
from torch.nn import functional

from fedsketch.conf import compose
from fedsketch.conf.plugins import built_in
from fedsketch.conf.settings import Metric, TaskSettings
from fedsketch.conf.targets import Targets
from fedsketch.conf.types import frozen
from fedsketch.errors import ConfigError, DataError, PartitionError
from fedsketch.tasks.built_in import BUILT_IN, area_under_curve, make_task
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.gradients.per_example import PerExample
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.task import Task, measured
from fedsketch.tasks.workload import Workload

N = 40


def task(name: str, *overrides: str) -> Task:
    return make_task(compose([f"task={name}", *overrides]).task)


def batch(kind: Targets, outputs: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = torch.randn(N, outputs, generator=generator)
    if kind is Targets.CLASSES:
        return made, torch.randint(max(outputs, 2), (N,), generator=generator)
    if kind is Targets.NUMBERS:
        return made, torch.randn(N, generator=generator)
    return made, torch.randint(2, (N, outputs), generator=generator).float()


OUTPUTS = {"classification": 5, "binary": 1, "regression": 1, "multilabel": 4}


def test_every_task_that_can_be_chosen_exists() -> None:
    assert set(BUILT_IN) == set(built_in("task")) == set(OUTPUTS)


@pytest.mark.parametrize("name", OUTPUTS)
def test_metrics_have_the_names_that_settings_promise(name: str) -> None:
    one = task(name)
    outputs, targets = batch(one.settings.targets, OUTPUTS[name])
    found = measured(one, outputs, targets)
    assert found.keys() == {metric.name for metric in one.settings.all_metrics}
    assert found["loss"] == pytest.approx(float(one.losses(outputs, targets).mean()))
    for name, values in one.scores(outputs, targets).items():
        assert values.shape == (N,)
        assert 0 <= float(values.min()) <= float(values.max()) <= 1
        assert found[name] == pytest.approx(float(values.mean()))


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_loss_of_an_example_is_its_own(name: str) -> None:
    one = task(name)
    outputs, targets = batch(one.settings.targets, OUTPUTS[name])
    together = one.losses(outputs, targets)
    apart = [one.losses(outputs[i : i + 1], targets[i : i + 1]) for i in range(N)]
    assert torch.allclose(together, torch.cat(apart))


def test_binary_measures_as_scikit_learn_does() -> None:
    outputs, targets = batch(Targets.CLASSES, 1)
    outputs[::3] = outputs[0]  # some are equal
    found = measured(task("binary"), outputs, targets)
    guess, truth = outputs.squeeze(1).numpy(), targets.numpy()
    assert found["auc"] == pytest.approx(sklearn_metrics.roc_auc_score(truth, guess))
    assert found["f1"] == pytest.approx(sklearn_metrics.f1_score(truth, guess > 0))
    assert found["accuracy"] == pytest.approx(((guess > 0) == truth).mean())
    assert area_under_curve(torch.zeros(4), torch.zeros(4, dtype=torch.bool)) == 0.5


@pytest.mark.parametrize("weight", [0.25, 1.0, 4.0])
def test_the_rare_class_counts_more_and_no_example_more_than_once(weight: float) -> None:
    one = task("binary", f"task.positive_weight={weight}")
    losses = one.losses(torch.zeros(2, 1), torch.tensor([0, 1]))
    assert float(losses[1] / losses[0]) == pytest.approx(weight)
    assert float(losses.max()) == pytest.approx(math.log(2))


def test_regression_measures_as_scikit_learn_does() -> None:
    outputs, targets = batch(Targets.NUMBERS, 1)
    found = measured(task("regression", "task.largest_error=0.5"), outputs, targets)
    guess, truth = outputs.squeeze(1).numpy(), targets.numpy()
    assert found["rmse"] == pytest.approx(math.sqrt(((guess - truth) ** 2).mean()), rel=1e-5)
    assert found["mae"] == pytest.approx(np.abs(guess - truth).mean(), rel=1e-5)
    assert found["r2"] == pytest.approx(sklearn_metrics.r2_score(truth, guess), rel=1e-5)
    clipped = np.minimum(np.abs(guess - truth) / 0.5, 1).mean()
    assert found["clipped_error"] == pytest.approx(clipped, rel=1e-5)
    huber = task("regression", "task.loss=huber", "task.delta=0.3").losses(outputs, targets)
    assert torch.allclose(
        huber, functional.huber_loss(outputs[:, 0], targets, reduction="none", delta=0.3)
    )


def test_multilabel_measures_as_scikit_learn_does() -> None:
    outputs, targets = batch(Targets.LABELS, 4)
    found = measured(task("multilabel"), outputs, targets)
    guess, truth = (outputs > 0).numpy(), targets.numpy() == 1
    assert found["f1"] == pytest.approx(sklearn_metrics.f1_score(truth, guess, average="micro"))
    assert found["exact"] == pytest.approx(sklearn_metrics.accuracy_score(truth, guess))
    assert found["accuracy"] == pytest.approx((guess == truth).mean())


def test_targets_of_another_kind_are_refused_with_the_task_that_fits() -> None:
    with pytest.raises(DataError, match=r"data=digits has classes.*choose task=classification"):
        _ = Workload(compose(["task=regression"])).dataset
    with pytest.raises(DataError, match="data of 2 classes, got 10"):
        Workload(compose(["task=binary"])).model()
    labels = Examples(torch.zeros(2, 3), torch.tensor([[0.0, 2.0], [1.0, 1.0]]))
    with pytest.raises(DataError, match="labels that are 0 or 1"):
        task("multilabel").check("mine", labels, 2)
    with pytest.raises(DataError, match="at least 2 classes, got 1"):
        task("classification").outputs(1)
    with pytest.raises(ConfigError, match="task"):
        compose(["task=nothing"])


def test_what_has_no_classes_is_not_spread_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = Examples(torch.zeros(30, 3), torch.arange(30.0))
    workload = Workload(
        compose(
            [
                "task=regression",
                "clients.total=3",
                "clients.per_round=3",
                "data/partition=dirichlet",
            ]
        )
    )
    monkeypatch.setitem(vars(workload.data), "dataset", Dataset("mine", numbers, numbers, 1))
    with pytest.raises(PartitionError, match="distributes classes"):
        workload.shard(0)
    workload = Workload(
        compose(["task=regression", "clients.total=3", "clients.per_round=3", "data/partition=iid"])
    )
    monkeypatch.setitem(vars(workload.data), "dataset", Dataset("mine", numbers, numbers, 1))
    assert len(workload.shard(0)) == 10
    assert workload.histogram().tolist() == [[10]] * 3


@frozen
class _Mine(TaskSettings):
    targets: ClassVar[Targets] = Targets.CLASSES
    metrics: ClassVar[tuple[Metric, ...]] = ()


class Coupled(Task):
    """The loss of an example depends on all others: what no clip of single gradients would bound."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs - outputs.mean(dim=0), targets, reduction="none")


def test_a_loss_of_somebody_else_cannot_let_examples_see_each_other() -> None:
    """The gradient of an example is the same whoever is beside it in the batch, although the loss looks at the
    batch."""
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), task=Coupled(_Mine("coupled")))
    inputs, targets = torch.randn(5, 6), torch.randint(3, (5,))
    others = inputs.clone()
    others[1:] *= 100
    rows = PerExample(model).gradients(inputs, targets)
    again = PerExample(model).gradients(others, targets)
    alone = PerExample(model).gradients(inputs[:1], targets[:1])
    assert torch.allclose(rows[0], again[0], atol=1e-6)
    assert torch.allclose(rows[0], alone[0], atol=1e-6)


@pytest.mark.parametrize("name", OUTPUTS)
def test_gradients_of_examples_are_those_of_the_task(name: str) -> None:
    one = task(name)
    outputs = OUTPUTS[name]
    _, targets = batch(one.settings.targets, outputs)
    torch.manual_seed(1)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, outputs))
    model = FlatModel(module, task=one)
    inputs = torch.randn(N, 6)
    rows = PerExample(model).gradients(inputs, targets)
    for i in (0, 7):
        _, gradient = model.loss_and_gradient(inputs[i : i + 1], targets[i : i + 1])
        assert torch.allclose(rows[i], gradient, atol=1e-6)
    _, mean = model.loss_and_gradient(inputs, targets)
    assert torch.allclose(rows.mean(dim=0), mean, atol=1e-6)
