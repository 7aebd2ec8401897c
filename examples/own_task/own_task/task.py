"""The task: a number of visits has a Poisson law, and the model gives the logarithm of its mean."""

import math

import torch
from torch import Tensor
from torch.nn.functional import poisson_nll_loss

from fedsketch import Task
from own_task.conf.task.visits import VisitsTask


class Visits(Task[VisitsTask]):
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        best = targets - torch.xlogy(targets, targets)  # the loss of who knew every number before
        return poisson_nll_loss(self._log_means(outputs), targets, reduction="none") - best

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        errors = (self._log_means(outputs).exp() - targets).abs()
        return {"within_one": (errors <= 1).float()}

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        deviance = 2 * self.losses(outputs, targets).mean()
        return {"deviance": float(deviance), **super().metrics(outputs, targets)}

    def _log_means(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(1).clamp(max=math.log(self.settings.most))
