"""The metrics of the model on examples that the server holds, such as the test set."""

import torch

from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.task import measured

CHUNK = 2048


@torch.inference_mode()
def evaluate(model: FlatModel, examples: Examples) -> dict[str, float]:
    """The metrics of the model's task, and the mean loss as `loss`."""
    chunks = torch.split(examples.inputs, CHUNK)
    outputs = torch.cat([model.module(chunk.to(model.device)) for chunk in chunks])
    return measured(model.task, outputs, examples.targets.to(model.device))
