"""A trial before a run: two of the server's examples go through model, loss and metrics, so that a misfit is reported
early and in one sentence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsketch.conf import Config
from fedsketch.errors import ModelError
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.task import Task, losses_of, measured


def try_out(config: Config, model: FlatModel, outputs: int, examples: Examples) -> None:
    """Raise `ModelError` if the model does not have this many outputs, or if the task cannot compute the loss and all
    its metrics from them. `examples` are a few of the data. Without any, nothing is tried."""
    if len(examples) == 0:
        return
    names = f"model={config.model.name} and data={config.data.name}"
    made = _forward(names, model, examples)
    if made.shape != (len(examples), outputs):
        raise ModelError(
            f"The model of {names} makes outputs of the shape {tuple(made.shape)} of {len(examples)} examples, but "
            f"task={config.task.name} needs {(len(examples), outputs)}: change the model, or choose another."
        )
    _check_task(model.task, made, examples.targets.to(model.device))


def _forward(names: str, model: FlatModel, examples: Examples) -> Tensor:
    try:
        with torch.no_grad():
            made = model.module(examples.inputs.to(model.device))
    except (RuntimeError, IndexError, ValueError) as error:
        kind = f"{examples.inputs.dtype} of the shape {examples.shape}".removeprefix("torch.")
        reason = str(error).splitlines()[0].rstrip(".")
        raise ModelError(
            f"{names} do not fit together, because an example is {kind} ({reason}): choose another model, or change "
            "the data."
        ) from error
    if not isinstance(made, Tensor):
        raise ModelError(
            f"The model of {names} does not return a tensor: return one with a row per example."
        )
    return made


def _check_task(task: Task[Any], made: Tensor, targets: Tensor) -> None:
    name = f"task={task.settings.name}"
    leaf = made.detach().requires_grad_()
    losses = losses_of(task, leaf, targets)
    if not losses.requires_grad:
        raise ModelError(f"{name} makes losses without a gradient: compute them from the outputs.")
    if not bool(losses.isfinite().all()):
        raise ModelError(
            f"{name} has a loss of the first examples that is not finite: bound what it computes."
        )
    wanted = {metric.name for metric in task.settings.all_metrics}
    for score, values in task.scores(made, targets).items():
        fits = values.shape == targets.shape[:1] and values.is_floating_point() and score in wanted
        if not (fits and 0 <= float(values.min()) <= float(values.max()) <= 1):
            raise ModelError(
                f"{name} has a score '{score}' that cannot be summed: give a number from 0 to 1 for each example, and "
                "name it as a metric."
            )
    found = measured(task, made, targets)
    if found.keys() != wanted:
        raise ModelError(
            f"{name} gives the metrics {', '.join(sorted(found))}, and its settings name {', '.join(sorted(wanted))}: "
            "let Task.metrics give all that the settings name."
        )
