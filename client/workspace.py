"""What the clients in one process share: data, the model that is trained, device halves, the state that they follow.

Each ClientApp has one. Everything in it follows from public configurations and broadcasts, except what is computed
from examples and found by their content (`strategies.local.product_cache`). What belongs to one device is in its
folder and in the state that Flower keeps for its node.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import RecordDict

from fedsketch.client.guard.configuration import admitted, check_size
from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.client.memory import memory_in
from fedsketch.conf import Config
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig
from fedsketch.delivery.answers import asks_for_the_whole
from fedsketch.delivery.frozen_part import FrozenPart, asks_for_the_frozen_part
from fedsketch.delivery.parcels import Replayed
from fedsketch.delivery.records import FEATURES, FROZEN, PARCEL
from fedsketch.delivery.replica import Replicas
from fedsketch.errors import UnsafeUpdateError
from fedsketch.privacy.mechanisms.bound_half import TrainedModel
from fedsketch.privacy.mechanisms.clipping import finite_rows
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.privacy.simulation import SEED_VARIABLE
from fedsketch.secagg import Refusal
from fedsketch.strategies import make_device_half, make_replica
from fedsketch.strategies.local.product_cache import ProductCache
from fedsketch.strategies.local.update import batch_generator
from fedsketch.strategies.rounds.base import DeviceHalf, LocalWork
from fedsketch.strategies.rounds.clip import counted, with_counts
from fedsketch.strategies.rounds.evaluation import evaluation_rows
from fedsketch.strategies.rounds.messages import Broadcast, announced, decoded
from fedsketch.strategies.rounds.uploads import EVALUATION, reply_with
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Assignment, Kind, Workload


class Workspace:
    """Trains for one client after the other."""

    def __init__(self, make_job: Callable[[Config, Kind | None], Workload] = Workload) -> None:
        self._job = lru_cache(maxsize=2)(lambda task: make_job(*task))
        # Models to load parameters into. They are not kept, because the next message loads other parameters.
        self._model = lru_cache(maxsize=2)(self._new_parts)
        self._device_half = lru_cache(maxsize=2)(make_device_half)
        # All clients of a cohort receive the same bytes: their content is read once, and never changed.
        self._decoded = lru_cache(maxsize=8)(decoded)
        self._replicas = Replicas(self._version_0)
        self._kept = ProductCache()

    def prepare(
        self, content: RecordDict, parcel: RecordDict, folder: Path | None
    ) -> RecordDict | None:
        """Check what a broadcast asks for, and process what came with it: a frozen part (`delivery.frozen_part`), a
        parcel (`delivery.parcels`). Returns the answer if training is not possible; raises `Refusal`. The device's
        data are not read."""
        config, numbers = announced(content)
        if EVALUATION in numbers and not isinstance(config.evaluation, FederatedEvaluationConfig):
            raise Refusal(
                "The message asks for an evaluation in a run that has none: set evaluation=federated."
            )
        frozen = not {FROZEN, FEATURES}.isdisjoint(numbers)
        if folder is None and not frozen and PARCEL not in parcel:
            return None  # a simulated device checks nothing, and follows nothing here
        task = self._admitted(config, folder)
        if frozen and not self._model(task).receive(parcel, numbers, folder):
            return asks_for_the_frozen_part()
        if PARCEL not in parcel:
            return None
        goal = str(numbers["fingerprint"])
        problem = self._replicas.receive(parcel, task, goal, folder)
        return None if problem is None else asks_for_the_whole(problem)

    def take_part(
        self, content: RecordDict, client: int, state: RecordDict, folder: Path | None
    ) -> RecordDict:
        """Compute this client's bounded and noised vector from the server's broadcast. `state` is what Flower keeps for
        the node."""
        received = Broadcast.from_records(content, self._decoded)
        task, mechanism = self._admitted(received.config, folder), received.mechanism
        config = task.config
        broadcast = self._completed(replace(received, config=config), task)
        if mechanism.unit is not config.privacy.unit:
            raise UnsafeUpdateError(
                "the mechanism protects another unit than the configuration names."
            )
        frozen = self._model(task)
        if frozen.sent and broadcast.numbers.get(FROZEN) != frozen.fingerprint:
            raise UnsafeUpdateError("the broadcast names a frozen part that is not here.")
        model = frozen.model
        model.load(broadcast.model)
        if EVALUATION in broadcast.numbers:
            return self._evaluate(broadcast, task, client)
        generator = batch_generator(config, client, broadcast.round)
        with memory_in(state) as memory, noise_stream(client, broadcast.round) as stream:
            shard = self._job(task).shard(client)
            work = LocalWork(broadcast, shard, model, generator, memory, client, self._kept)
            half = _HalfAtWork(
                self._device_half(config.strategy.name), work, simulated=folder is None
            )
            return reply_with(mechanism.run(half, stream, broadcast.round))

    def _admitted(self, config: Config, folder: Path | None) -> Assignment:
        """The configuration in the form that this device accepts; in a simulation unchanged."""
        if folder is None:
            return Assignment(config)
        guard = DeviceGuard(folder)
        task = admitted(config, guard.policy, guard.card)
        check_size(self._job(task).parameters, guard.policy)
        return task

    def _evaluate(self, broadcast: Broadcast, task: Assignment, client: int) -> RecordDict:
        """Compute what this client's held-out examples say of the model, bounded and noised. Nothing is remembered."""
        job = self._job(task)
        # Seeded noise must differ from that of the same round of training.
        with noise_stream(client, -broadcast.round) as stream:
            held_out = job.local_test(client)
            half = _EvaluationAtWork(
                task.config, self._model(task).model, held_out, job.kind.classes
            )
            return reply_with(broadcast.mechanism.run(half, stream, broadcast.round))

    def _completed(self, broadcast: Broadcast, task: Assignment) -> Broadcast:
        """The broadcast with the arrays from the replica; unchanged if it has its own."""
        goal = broadcast.numbers.get("fingerprint")
        if goal is None:
            return broadcast
        arrays = self._replicas.arrays(task, str(goal), broadcast.round)
        return replace(broadcast, arrays=arrays)

    def _new_model(self, task: Assignment) -> FlatModel:
        return self._job(task).model()

    def _new_parts(self, task: Assignment) -> FrozenPart:
        return FrozenPart(self._new_model(task), self._job(task).features)

    def _version_0(self, task: Assignment) -> Replayed:
        return make_replica(task.config, self._new_model(task))


@dataclass(frozen=True)
class _HalfAtWork:
    """A `BoundHalf` for mechanisms: what a strategy's device half does in this round."""

    half: DeviceHalf
    work: LocalWork
    simulated: bool

    def rows(self) -> torch.Tensor:
        rows = self.half.rows(self.work)
        # A mechanism refuses such rows, and in a simulation with an error.
        rows = rows if self.simulated else finite_rows(rows)
        return with_counts(rows, self.work.broadcast)

    def blocks(self) -> Iterator[Rows]:
        for block in self.half.blocks(self.work):
            yield from counted(block if self.simulated else block.finite(), self.work.broadcast)

    def trained_model(self) -> TrainedModel:
        return self.half.trained_model(self.work)


@dataclass(frozen=True)
class _EvaluationAtWork:
    """A `BoundHalf` for mechanisms: an evaluation, in any run."""

    config: Config
    model: FlatModel
    held_out: Examples
    classes: int

    def rows(self) -> torch.Tensor:
        return evaluation_rows(self.config, self.model, self.held_out, self.classes)

    def blocks(self) -> Iterator[Rows]:
        yield Rows.of(self.rows())

    def trained_model(self) -> TrainedModel:
        raise UnsafeUpdateError(
            "the mechanism adds noise during training, and an evaluation does not train."
        )


def noise_stream(client: int, round: int, *labels: str) -> Stream:
    """Fresh secret randomness; in a simulation that is to be reproducible, a function of its seed."""
    seed = os.environ.get(SEED_VARIABLE)
    if seed is None:
        return Stream()
    return Stream(derived_key(int(seed), "noise", client, round, *labels))
