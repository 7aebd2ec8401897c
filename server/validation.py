"""The best model so far, by a metric on the server's validation examples, and when to stop looking for a better one.

Both look at the models that the rounds release and at examples that are no client's and no test's. So they are post-processing: the
epsilon of a run that stops early is that of the rounds that it played, and choosing a model among those that are out costs nothing more.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsketch.conf import Config
from fedsketch.conf.settings import Metric


@dataclass(frozen=True)
class Best:
    """The best model so far: after which round, its value of the metric, and its parameters."""

    round: int
    value: float
    vector: Tensor


class Validation:
    """Keeps the best model. A value that is not a number is never better, and neither is an equal one."""

    def __init__(self, config: Config) -> None:
        name = config.validation.metric
        metrics = {metric.name: metric for metric in config.task.all_metrics}
        self.metric: Metric = config.task.headline if name is None else metrics[name]
        self.best: Best | None = None
        self._waited = 0  # evaluations since the best, or since the first if none was a number
        self._patience = config.validation.patience

    def note(self, server_round: int, value: float, vector: Tensor) -> bool:
        """Take note of an evaluation; returns whether this model is the best so far."""
        if not math.isfinite(value) or (self.best is not None and not self._better(value)):
            self._waited += 1
            return False
        self.best = Best(server_round, value, vector.detach().clone())
        self._waited = 0
        return True

    @property
    def stopped(self) -> str | None:
        """Why the run should stop, as a sentence's end; None as long as it should go on."""
        if self._patience is None or self._waited < self._patience:
            return None
        times = "evaluation" if self._waited == 1 else "evaluations"
        name = f"{self.metric.name} on the validation examples"
        if self.best is None:
            return f"{name} was not a number in {self._waited} {times}"
        return f"{name} was best after round {self.best.round}, and {self._waited} {times} since found no better"

    def _better(self, value: float) -> bool:
        assert self.best is not None
        return value > self.best.value if self.metric.higher_is_better else value < self.best.value

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"best": self.best and vars(self.best).copy(), "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"] and Best(**state["best"])
        self._waited = state["waited"]
