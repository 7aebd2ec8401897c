"""Which of a device's examples are held out of training, for evaluations on devices; and what they say of a model.

Both parts follow from the number of examples, the share and the seed of the run, so a device needs no memory to keep
them apart. Nothing private rests on who is held out: a server that chooses seeds chooses which examples are evaluated,
and what leaves is bounded all the same.
"""

import torch
from torch import Tensor

from fedsketch.conf.targets import Targets
from fedsketch.tasks.examples import Examples
from fedsketch.tasks.flat import FlatModel
from fedsketch.tasks.task import Task

LOSS = "loss"
_CHUNK = 2048


def held_out_count(examples: int, share: float) -> int:
    """How many of so many examples are held out: none for no share; else about the share, but one at least, if one is
    left to train on."""
    return 0 if examples < 2 or not share else min(examples - 1, max(1, round(share * examples)))


def split(examples: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """The indices of examples to train on, and of those that are held out, each in ascending order."""
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(seed))
    count = held_out_count(examples, share)
    return order[count:].sort().values, order[:count].sort().values


def score_names(task: Task, classes: int) -> tuple[str, ...]:
    """The names of `scores_of`'s columns: the task's scores, and the loss."""
    forms = {
        Targets.classes: torch.zeros(1, dtype=torch.int64),
        Targets.numbers: torch.zeros(1),
        Targets.labels: torch.zeros(1, classes),
    }
    specimen = task.scores(torch.zeros(1, task.outputs(classes)), forms[task.settings.targets])
    return (*specimen, LOSS)


@torch.inference_mode()
def scores_of(model: FlatModel, examples: Examples, loss_bound: float, *, apart: bool) -> Tensor:
    """(N, m): what every example says of the model, each number from 0 to 1, whatever the model and the task make of
    it.

    A loss counts as its part of `loss_bound`, and a larger one, or one that is no number, as all of it. With `apart`
    every example is looked at by itself, so that its row depends on no other example, whatever the code of a model or a
    task does with a batch.
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
