"""The best model so far, by a metric on the server's validation examples, and when to stop looking for a better one.

Both depend only on the models that rounds release, and on examples that belong to no client and to no test set. So they
are post-processing of these models: whatever is chosen or stopped costs no more than all planned rounds.

It costs no less either. Let T rounds be planned, with epsilon_k after k of them at one delta. A run that stops after a
round R that its own models choose is a function of the run of all T rounds, so it has epsilon_T. That it has epsilon_R
is not true in general. For each fixed k the privacy loss exceeds epsilon_k with probability at most delta, but at a
time that the outputs choose it may do so with probability up to T delta (Rogers, Roth, Ullman, Vadhan 2016: an odometer
needs a bound for all times at once). So a run that was stopped by its models states epsilon_T (`Rounds._epsilon`).
Before that, the row of a round k is about the first k rounds, and epsilon_k holds for these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsketch.conf import Config
from fedsketch.conf.settings import Metric
from fedsketch.server.run_folder import RunFolder
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.scores import evaluate


@dataclass(frozen=True)
class Best:
    """The best model so far: after which round, its value of the metric, and its parameters."""

    round: int
    value: float
    vector: Tensor


class NoValidation:
    """What a run has that holds out no examples."""

    stopped: str | None = None

    def row(self, server_round: int, model: FlatModel, looks: bool) -> dict[str, Any]:
        return {}

    def chosen(self, model: FlatModel, test: Examples) -> dict[str, Any] | None:
        return None

    def restore(self, model: FlatModel) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Validation:
    """Keeps the best model, also in the run's folder. A value that is not a number is never better, nor is an equal
    value."""

    def __init__(self, config: Config, examples: Examples, folder: RunFolder) -> None:
        name = config.validation.metric
        metrics = {metric.name: metric for metric in config.task.all_metrics}
        self.metric: Metric = config.task.headline if name is None else metrics[name]
        self.best: Best | None = None
        self._examples, self._folder = examples, folder
        self._waited = 0  # evaluations since the best one, or since the first if none gave a number
        self._patience = config.validation.patience

    def row(self, server_round: int, model: FlatModel, looks: bool) -> dict[str, Any]:
        """Return what the row of a round says: the metrics if it is evaluated."""
        return {"validation": self.look(server_round, model) if looks else None}

    def look(self, server_round: int, model: FlatModel) -> dict[str, float]:
        """Evaluate this round's model on the validation examples, and keep it if it is the best so far."""
        metrics = evaluate(model, self._examples)
        if self.note(server_round, metrics[self.metric.name], model.vector):
            self._folder.write_best(model)
        return metrics

    def note(self, server_round: int, value: float, vector: Tensor) -> bool:
        """Record the value of an evaluation; returns whether this model is the best so far."""
        if not math.isfinite(value) or (self.best is not None and not self._better(value)):
            self._waited += 1
            return False
        self.best = Best(server_round, value, vector.detach().clone())
        self._waited = 0
        return True

    @property
    def stopped(self) -> str | None:
        """Why the run should stop, as the end of a sentence; None if it should continue."""
        if self._patience is None or self._waited < self._patience:
            return None
        times = "evaluation" if self._waited == 1 else "evaluations"
        name = f"{self.metric.name} on the validation examples"
        if self.best is None:
            return f"{name} was not a number in {self._waited} {times}"
        return f"{name} was best after round {self.best.round}, and {self._waited} {times} since found no better"

    def chosen(self, model: FlatModel, test: Examples) -> dict[str, Any] | None:
        """Return which model was the best, and its metrics on the test set."""
        if self.best is None:
            return None
        with _holding(model, self.best.vector):
            reached = evaluate(model, test)
        chosen = {"round": self.best.round, "metric": self.metric.name, "value": self.best.value}
        return {**chosen, "test": reached}

    def restore(self, model: FlatModel) -> None:
        """Write the best model of the rounds up to the checkpoint. A kill may have left that of a round that will be
        repeated."""
        if self.best is None:
            self._folder.forget_best()
        else:
            with _holding(model, self.best.vector):
                self._folder.write_best(model)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"best": self.best and vars(self.best).copy(), "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"] and Best(**state["best"])
        self._waited = state["waited"]

    def _better(self, value: float) -> bool:
        assert self.best is not None
        return value > self.best.value if self.metric.higher_is_better else value < self.best.value


def validation_of(
    config: Config, examples: Examples | None, folder: RunFolder
) -> Validation | NoValidation:
    """Return the validation of a run."""
    return NoValidation() if examples is None else Validation(config, examples, folder)


@contextmanager
def _holding(model: FlatModel, vector: Tensor) -> Iterator[None]:
    """Give the model other parameters until the end of the block."""
    own = model.vector.clone()
    model.load(vector)
    try:
        yield
    finally:
        model.load(own)
