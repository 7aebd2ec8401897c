"""The scores of a model on examples: each example's, for evaluations on devices; and all metrics, on the server."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsketch.conf.targets import Targets
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.task import Task, measured

LOSS = "loss"
_CHUNK = 2048


def score_names(task: Task[Any], classes: int) -> tuple[str, ...]:
    """Return the names of the columns of `scores_of`: the task's scores, and the loss."""
    forms = {
        Targets.CLASSES: torch.zeros(1, dtype=torch.int64),
        Targets.NUMBERS: torch.zeros(1),
        Targets.LABELS: torch.zeros(1, classes),
    }
    specimen = task.scores(torch.zeros(1, task.outputs(classes)), forms[task.settings.targets])
    return (*specimen, LOSS)


@torch.inference_mode()
def scores_of(model: FlatModel, examples: Examples, loss_bound: float, *, apart: bool) -> Tensor:
    """Return the scores and the loss of every example, (N, m). Each number is clamped to [0, 1], whatever model and
    task return.

    A loss is divided by `loss_bound`. A larger loss, or one that is not a number, becomes 1. With `apart` every
    example is processed by itself, so that its row depends on no other example, whatever the code of a model or a task
    does with a batch.
    """
    size = 1 if apart else _CHUNK
    rows = []
    for start in range(0, len(examples), size):
        inputs = examples.inputs[start : start + size].to(model.device)
        targets = examples.targets[start : start + size].to(model.device)
        outputs = model.module(inputs)
        losses = model.task.losses(outputs, targets) / loss_bound
        columns = [*model.task.scores(outputs, targets).values()]
        bounded = [column.double().nan_to_num(0.0) for column in columns]
        bounded.append(losses.double().nan_to_num(1.0))
        rows.append(torch.stack([column.clamp(0.0, 1.0) for column in bounded], dim=1))
    return torch.cat(rows) if rows else torch.empty(0, 0, dtype=torch.float64)


@torch.inference_mode()
def evaluate(model: FlatModel, examples: Examples) -> dict[str, float]:
    """Return the metrics of the model's task on examples that the server holds, and the mean loss as `loss`."""
    chunks = torch.split(examples.inputs, _CHUNK)
    outputs = torch.cat([model.module(chunk.to(model.device)) for chunk in chunks])
    return measured(model.task, outputs, examples.targets.to(model.device))
