"""Accuracy and loss of the model on the server's test set."""

import torch
from torch.nn import functional

from fedsketch.tasks.examples import Examples
from fedsketch.tasks.flat import FlatModel

CHUNK = 2048


@torch.inference_mode()
def evaluate(model: FlatModel, test: Examples) -> tuple[float, float]:
    """(accuracy, mean cross-entropy)."""
    correct, loss = 0, 0.0
    for start in range(0, len(test), CHUNK):
        inputs = test.inputs[start : start + CHUNK].to(model.device)
        targets = test.targets[start : start + CHUNK].to(model.device)
        logits = model.module(inputs)
        correct += int((logits.argmax(dim=1) == targets).sum())
        loss += float(functional.cross_entropy(logits, targets, reduction="sum"))
    return correct / len(test), loss / len(test)
