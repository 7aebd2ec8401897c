"""A strategy whose server step follows from the mean of a round, so that devices can repeat it instead of receiving the
model (`strategy.broadcast`, see `delivery.parcels`)."""

from __future__ import annotations

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
        self.followed: OptimizedState | None = None
        self._parcels: Parcels | None = None
        if self._replays:
            # Devices repeat the steps on their CPUs, so the server also makes them on a CPU.
            self.followed = self.make_state(self.config, self.model, self.model.vector.cpu())
            self._parcels = Parcels(self.followed)

    @staticmethod
    def expand(config: Config, size: int, step: Step) -> Tensor:
        """Return the mean update of all numbers, of a model of this size, in the precision of the step's mean. Every
        strategy implements it whose state is no other than an `OptimizedState`."""
        raise NotImplementedError

    def expanded(self, step: Step) -> Tensor:
        """Return the same on the server, if devices are sent the model."""
        return self.expand(self.config, self.model.size, step)

    @classmethod
    def make_state(cls, config: Config, model: FlatModel, vector: Tensor) -> OptimizedState:
        """Return the state that server and devices have in common, which moves `vector`."""
        return OptimizedState(config, vector, cls.expand)

    @classmethod
    def replica(cls, config: Config, model: FlatModel) -> OptimizedState:
        """Return the state that a device starts from: version 0, made from the configuration alone."""
        return cls.make_state(config, model, model.vector.to("cpu", copy=True))

    def mean(self, aggregate: Aggregate) -> Tensor:
        """Return the mean that a step is made from."""
        return aggregate.sum / self.units(aggregate)

    def given(self, server_round: int) -> dict[str, Tensor]:
        """Return what a step needs besides the mean and what the configuration tells."""
        return {}

    def completed(self, step: Step) -> Step:
        """Return a step that was just taken, with what holds after it and only the server can compute."""
        return step

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        step = Step(server_round, self.mean(aggregate), 0.0, self.given(server_round))
        if self.followed is None:
            self.optimizer.step(self.expanded(step))
            return
        step = replace(step, mean=step.mean.cpu())
        self.followed.apply(step)
        self.model.load(self.followed.vector)
        self._remember(self.completed(step))

    def _remember(self, step: Step) -> None:
        assert self._parcels is not None
        self._parcels.remember(step)

    def planned_given(self, server_round: int) -> dict[str, Tensor]:
        """Return what a step will bring beside its mean, for the plan of a run."""
        return {}

    @property
    def parcels(self) -> Parcels | None:
        return self._parcels

    def planned_broadcast(self) -> tuple[Payload, RecordDict]:
        payload, beside = super().planned_broadcast()
        if self._replays:
            last, mean = self.config.rounds, self.model.vector.new_zeros(self._step_length)
            rounds = range(max(1, last - round(self._usual_steps)), last)
            steps = [Step(past, mean, 0.0, self.planned_given(past)) for past in rounds]
            beside = steps_parcel(0, steps)
        return payload, beside

    # ------------------------------------------------------------------ what is shorter
    @property
    def _replays(self) -> bool:
        if self.settings.broadcast != "auto":
            return self.settings.broadcast == "replay"
        return self._usual_steps * self._step_length < self.model.size

    @property
    def _usual_steps(self) -> float:
        """How many steps there are from one round of a client to its next, on average."""
        clients = self.config.clients
        return clients.total / clients.per_round

    @property
    def _step_length(self) -> int:
        return self.upload_length(self.config.rounds)

    # ------------------------------------------------------------------ checkpoints
    def state_dict(self) -> dict[str, Any]:
        if self.followed is None:
            return super().state_dict()
        return {"followed": self.followed.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.followed is None:
            super().load_state_dict(state)
            return
        self.followed.load_state_dict(state["followed"])
        self.model.load(self.followed.vector)
        self._parcels = Parcels(self.followed)  # the steps that led here are not in the checkpoint
