"""The interface of a task: it defines the loss of each example and the metrics. Classification is one; others are in
`tasks.built_in` or in installed packages.

A task must treat examples independently: the loss of an example depends on its output and target alone. Clipping the
gradient of an example relies on this. The built-in tasks are written that way. Tasks of installed packages are called
with one example at a time if the privacy unit is the example (`tasks.gradients.factors`).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fedsketch.conf.settings import TaskSettings
from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError, ModelError
from fedsketch.tasks.data.examples import Examples

SettingsT = TypeVar("SettingsT", bound=TaskSettings)


class Task(Generic[SettingsT]):
    """The interface of a task. `settings` are those of the YAML file, checked. `outputs` are the model's outputs for a
    batch, (B, n). Targets have one of the forms of `Targets`."""

    def __init__(self, settings: SettingsT) -> None:
        self.settings = settings

    def outputs(self, classes: int) -> int:
        """Return how many outputs the model must have, if targets have this many classes, labels or values."""
        return classes

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, (B,). It must be differentiable."""
        raise NotImplementedError

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return values from 0 to 1 for each example, (B,). Their means are metrics. Devices can sum them in a private
        evaluation."""
        return {}

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the metrics that the settings name, over a whole test set."""
        return {name: float(value.mean()) for name, value in self.scores(outputs, targets).items()}

    def check(self, name: str, examples: Examples, classes: int) -> None:
        """Raise `DataError` if the examples of the data set of this name have targets of another form."""
        wanted, found = self.settings.targets, examples.kind_of_targets
        if found is not wanted:
            raise DataError(
                f"task={self.settings.name} learns {_WORDS[wanted]}, and data={name} has {_WORDS[found]}: choose "
                f"task={_FITTING[found]}, or other data."
            )


_WORDS = {
    Targets.CLASSES: "classes (whole numbers)",
    Targets.NUMBERS: "numbers (one per example)",
    Targets.LABELS: "labels (several per example)",
}
_FITTING = {
    Targets.CLASSES: "classification",
    Targets.NUMBERS: "regression",
    Targets.LABELS: "multilabel",
}


def losses_of(task: Task[Any], outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each example, (B,)."""
    losses = task.losses(outputs, targets)
    if losses.shape != targets.shape[:1]:
        raise ModelError(
            f"task={task.settings.name} makes losses of the shape {tuple(losses.shape)} of {len(targets)} examples: "
            "return one number for each, without a mean or a sum over them."
        )
    return losses


@torch.no_grad()
def measured(task: Task[Any], outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Return all metrics and the mean loss of these outputs."""
    loss = losses_of(task, outputs, targets).mean()
    return {**task.metrics(outputs, targets), "loss": float(loss)}
