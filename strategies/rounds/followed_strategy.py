"""A strategy whose server step follows from the mean of a round, so that devices can repeat it instead of receiving the
model (`strategy.broadcast`, see `delivery.parcels`)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Generic, TypeVar

from flwr.app import RecordDict
from torch import Tensor

from fedsketch.conf import Config
from fedsketch.conf.settings import FollowedSettings
from fedsketch.delivery.parcels import Parcels, steps_parcel
from fedsketch.delivery.steps import Step
from fedsketch.strategies.algorithm import Aggregate, Payload
from fedsketch.strategies.dp_fedavg import OptimizedStrategy
from fedsketch.strategies.rounds.optimized_state import OptimizedState
from fedsketch.tasks.models.flat_model import FlatModel

FollowedT = TypeVar("FollowedT", bound=FollowedSettings)


class FollowedStrategy(OptimizedStrategy[FollowedT], Generic[FollowedT]):
    """A server half that sends devices the mean of a round, if that is shorter than the model."""

    def start(self) -> None:
        super().start()
        self._state: OptimizedState | None = None
        self._parcels: Parcels | None = None
        if self._replays:
            # Devices repeat the steps on their CPUs, so the server also makes them on a CPU.
            self._state = OptimizedState(self.config, self.model.vector.cpu(), self.expand)
            self._parcels = Parcels(self._state)

    @staticmethod
    @abstractmethod
    def expand(config: Config, size: int, step: Step) -> Tensor:
        """Return the mean update of all numbers, of a model of this size, in the precision of the step's mean."""

    @classmethod
    def replica(cls, config: Config, model: FlatModel) -> OptimizedState:
        """Return the state that a device starts from: version 0, made from the configuration alone."""
        return OptimizedState(config, model.vector.to("cpu", copy=True), cls.expand)

    def given(self, server_round: int) -> dict[str, Tensor]:
        """Return what a step needs besides the mean and what the configuration tells."""
        return {}

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        mean = aggregate.sum / self.units(aggregate)
        step = Step(server_round, mean, 0.0, self.given(server_round))
        if self._state is None or self._parcels is None:
            self.optimizer.step(self.expand(self.config, self.model.size, step))
            return
        step = replace(step, mean=mean.cpu())
        self._state.apply(step)
        self.model.load(self._state.vector)
        self._parcels.remember(step)

    @property
    def parcels(self) -> Parcels | None:
        return self._parcels

    def planned_broadcast(self) -> tuple[Payload, RecordDict]:
        payload, beside = super().planned_broadcast()
        if self._replays:
            last, mean = self.config.rounds, self.model.vector.new_zeros(self._step_length)
            rounds = range(max(1, last - self._usual_steps), last)
            beside = steps_parcel(0, [Step(past, mean, 0.0) for past in rounds])
        return payload, beside

    # ------------------------------------------------------------------ what is shorter
    @property
    def _replays(self) -> bool:
        if self.settings.broadcast != "auto":
            return self.settings.broadcast == "replay"
        return self._usual_steps * self._step_length < self.model.size

    @property
    def _usual_steps(self) -> int:
        """How many steps there are from one round of a client to its next, on average."""
        clients = self.config.clients
        return -(-clients.total // clients.per_round)

    @property
    def _step_length(self) -> int:
        return self.upload_length(self.config.rounds)

    # ------------------------------------------------------------------ checkpoints
    def state_dict(self) -> dict[str, Any]:
        if self._state is None:
            return super().state_dict()
        return {"followed": self._state.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._state is None:
            super().load_state_dict(state)
            return
        self._state.load_state_dict(state["followed"])
        self.model.load(self._state.vector)
        self._parcels = Parcels(self._state)  # the steps that led here are not in the checkpoint
