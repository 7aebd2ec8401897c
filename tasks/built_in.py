"""Finds tasks by name. The built-in ones have the usual losses and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedsketch.conf.plugins import implementation
from fedsketch.conf.settings import TaskSettings
from fedsketch.conf.task.binary import BinaryConfig
from fedsketch.conf.task.classification import ClassificationConfig
from fedsketch.conf.task.multilabel import MultilabelConfig
from fedsketch.conf.task.regression import RegressionConfig
from fedsketch.errors import DataError
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.task import Task


class Classification(Task[ClassificationConfig]):
    """One output per class: logits."""

    def outputs(self, classes: int) -> int:
        if classes < 2:
            raise DataError(
                f"task=classification needs data of at least 2 classes, got {classes}: choose another task, or other "
                "data."
            )
        return classes

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"accuracy": (outputs.argmax(dim=1) == targets).float()}


class Binary(Task[BinaryConfig]):
    """One output: the logit of class 1."""

    def outputs(self, classes: int) -> int:
        if classes != 2:
            raise DataError(
                f"task=binary needs data of 2 classes, got {classes}: choose task=classification, or other data."
            )
        return 1

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # Scaled so that no example has a weight above 1, for positive weights above and below 1.
        weight = float(self.settings.positive_weight)
        weights = torch.where(targets == 1, min(weight, 1.0), min(1 / weight, 1.0))
        wrong = functional.binary_cross_entropy_with_logits(
            outputs.squeeze(1), targets.to(outputs.dtype), reduction="none"
        )
        return weights.to(outputs.dtype) * wrong

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"accuracy": ((outputs.squeeze(1) > 0) == (targets == 1)).float()}

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        guess, truth = outputs.squeeze(1), targets == 1
        return {
            **super().metrics(outputs, targets),
            "auc": area_under_curve(guess, truth),
            "f1": _f1(guess > 0, truth),
        }


class Regression(Task[RegressionConfig]):
    """One output: the predicted number."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        guess = outputs.squeeze(1)
        if self.settings.loss == "huber":
            return functional.huber_loss(
                guess, targets, reduction="none", delta=self.settings.delta
            )
        return functional.mse_loss(guess, targets, reduction="none")

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        errors = (outputs.squeeze(1) - targets).abs()
        return {"clipped_error": (errors / self.settings.largest_error).clamp(max=1)}

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        errors = (outputs.squeeze(1) - targets).double()
        mean_squared = errors.square().mean()
        variance = targets.double().var(correction=0)
        return {
            "rmse": float(mean_squared.sqrt()) * self.settings.unit,
            "mae": float(errors.abs().mean()) * self.settings.unit,
            "r2": float(1 - mean_squared / variance) if variance > 0 else 0.0,
            **super().metrics(outputs, targets),
        }


class Multilabel(Task[MultilabelConfig]):
    """One output per label: the logit that the example has it."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wrong = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return wrong.mean(dim=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        right = ((outputs > 0) == (targets == 1)).float()
        return {"accuracy": right.mean(dim=1), "exact": right.amin(dim=1)}

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        return {**super().metrics(outputs, targets), "f1": _f1(outputs > 0, targets == 1)}

    def check(self, name: str, examples: Examples, classes: int) -> None:
        super().check(name, examples, classes)
        if not bool(((examples.targets == 0) | (examples.targets == 1)).all()):
            raise DataError(
                f"task=multilabel needs labels that are 0 or 1, and data={name} has other numbers: change them."
            )


BUILT_IN: dict[str, Callable[[Any], Task[Any]]] = {
    "classification": Classification,
    "binary": Binary,
    "regression": Regression,
    "multilabel": Multilabel,
}

CLASSIFICATION = Classification(ClassificationConfig("classification"))


def make_task(settings: TaskSettings) -> Task[Any]:
    """Return the task of these settings, a built-in one or one of an installed package."""
    make = BUILT_IN.get(settings.name) or implementation("task", settings.name)
    task: Task[Any] = make(settings)
    return task


def treats_examples_apart(task: Task[Any]) -> bool:
    """Return whether the task is known to compute the loss of an example from this example alone."""
    return type(task) in BUILT_IN.values()


def area_under_curve(guess: Tensor, truth: Tensor) -> float:
    """Return the probability that a random example of class 1 has a larger output than one of class 0. Equal outputs
    count half. 0.5 if one of the classes is missing."""
    positives = int(truth.sum())
    pairs = positives * (len(truth) - positives)
    if pairs == 0:
        return 0.5
    _, group, counts = torch.unique(guess, return_inverse=True, return_counts=True)
    # The mean rank of the examples with the same output, counted from 1.
    ranks = (counts.cumsum(0).double() - (counts.double() - 1) / 2)[group]
    above = ranks[truth].sum() - positives * (positives + 1) / 2
    return float(above / pairs)


def _f1(guess: Tensor, truth: Tensor) -> float:
    """Return 2 TP / (2 TP + FP + FN), or 1 if there are no positives and none were predicted."""
    found, claimed, there = int((guess & truth).sum()), int(guess.sum()), int(truth.sum())
    return 2 * found / (claimed + there) if claimed + there else 1.0
