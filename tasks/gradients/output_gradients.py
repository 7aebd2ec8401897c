"""The gradients of a batch's weighted loss with respect to the model's outputs, where every backward pass begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsketch.tasks.built_in import Classification
from fedsketch.tasks.task import Task, losses_of


def output_gradients(task: Task[Any], outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the gradients of sum_i w_i loss_i with respect to the outputs, (B, n), for weights (B,)."""
    if type(task) is Classification:  # a subclass may have another loss
        return _of_cross_entropy(outputs.detach(), targets, weights)
    with torch.enable_grad():
        made = outputs.detach().requires_grad_()
        losses = losses_of(task, made, targets)
        return torch.autograd.grad(losses, made, weights)[0]


def _of_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return w_i (softmax - 1 at the class). It uses elementwise operations, because torch's `log_softmax` of ten
    numbers is many times slower."""
    gradients = (outputs - outputs.amax(dim=1, keepdim=True)).exp_()
    gradients *= (weights / gradients.sum(dim=1)).unsqueeze(1)
    return gradients.scatter_add_(1, targets.unsqueeze(1), -weights.unsqueeze(1))
