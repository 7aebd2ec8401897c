"""What the clients in one process share: data, the model that is trained, device halves, the state that they follow.

Each ClientApp has one. Everything in it follows from public configurations and broadcasts, except what is computed
from examples and found by their content (`strategies.local.product_cache`). What belongs to one device is in its
folder and in the state that Flower keeps for its node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsketch.client.guard.guard import DeviceGuard, SimulatedGuard
from fedsketch.conf import Config
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig
from fedsketch.delivery.frozen_part import FrozenPart, asks_for_the_frozen_part
from fedsketch.delivery.parcels import FINGERPRINT, Replayed, asks_for_the_whole
from fedsketch.delivery.records import FEATURES, FROZEN, PARCEL
from fedsketch.delivery.replica import Replicas
from fedsketch.delivery.settings_once import asks_for_the_settings, remember, text_named
from fedsketch.errors import UnsafeUpdateError
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.bound_half import TrainedModel
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.privacy.simulation import SEED_VARIABLE
from fedsketch.secagg import Refusal
from fedsketch.strategies.algorithm import LocalWork
from fedsketch.strategies.local.forms import Half, StrategyHalf
from fedsketch.strategies.local.product_cache import ProductCache
from fedsketch.strategies.local.update import batch_generator
from fedsketch.strategies.registry import make_device_half, make_replica
from fedsketch.strategies.rounds.codec import CONFIG, EVALUATION, HEAD, reply_with
from fedsketch.strategies.rounds.evaluation import evaluation_rows
from fedsketch.strategies.rounds.messages import Broadcast, BroadcastReader, Scalar, announced
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Assignment, DataShape, Workload

AnyGuard = DeviceGuard | SimulatedGuard
_MEMORY = "memory"  # the record of what a device remembers between rounds


@dataclass
class _Prepared:
    """What a device half made of the broadcast that came last."""

    broadcast: Broadcast
    half: Half
    value: Any


class Workspace:
    """Trains for one client after the other."""

    def __init__(
        self, make_workload: Callable[[Config, DataShape | None], Workload] = Workload
    ) -> None:
        self.workload = lru_cache(maxsize=2)(lambda task: make_workload(*task))
        # Models to load parameters into. They are not kept, because the next message loads other parameters.
        self.frozen_part = lru_cache(maxsize=2)(self._new_parts)
        self._device_half = lru_cache(maxsize=2)(make_device_half)
        self.reader = BroadcastReader()
        self._prepared: _Prepared | None = None
        self._replicas = Replicas(self._version_0)
        self._cache = ProductCache()

    def prepare(
        self, content: RecordDict, parcel: RecordDict, state: RecordDict, guard: AnyGuard
    ) -> RecordDict | None:
        """Check what a broadcast asks for, and process what came with it: the configuration (`delivery.settings_once`),
        a frozen part (`delivery.frozen_part`), a parcel (`delivery.parcels`). Return the answer if training is not
        possible; raise `Refusal` if the owner does not allow it. The device's data are not read. `state` is what
        Flower keeps for the node."""
        if not _with_settings(content, parcel, state):
            return asks_for_the_settings()
        config, scalars = announced(content)
        if EVALUATION in scalars and not isinstance(config.evaluation, FederatedEvaluationConfig):
            raise Refusal(
                "The message asks for an evaluation in a run that has none: set evaluation=federated."
            )
        frozen = not {FROZEN, FEATURES}.isdisjoint(scalars)
        if guard.folder is None and not frozen and PARCEL not in parcel:
            return None  # a simulated device checks nothing, and follows nothing here
        task = self.admitted(config, guard)
        if frozen and not self.frozen_part(task).receive(parcel, scalars, guard.folder):
            return asks_for_the_frozen_part()
        if PARCEL not in parcel:
            return None
        goal = _goal(scalars)
        problem = self._replicas.receive(parcel, task, goal, guard.folder)
        return None if problem is None else asks_for_the_whole(problem)

    def take_part(
        self, content: RecordDict, client: int, state: RecordDict, guard: AnyGuard
    ) -> RecordDict:
        """Return this client's bounded and noised vector, from the server's broadcast. `state` is what Flower keeps for
        the node."""
        received = self.reader.read(content)
        task = self.admitted(received.config, guard)
        broadcast, mechanism = self.completed(received, task), received.mechanism
        if mechanism.unit is not task.config.privacy.unit:
            raise UnsafeUpdateError(
                "the mechanism protects another unit than the configuration names."
            )
        frozen = self.frozen_part(task)
        if frozen.sent and broadcast.scalars.get(FROZEN) != frozen.fingerprint:
            raise UnsafeUpdateError("the broadcast names a frozen part that is not here.")
        frozen.model.load(broadcast.model)
        if EVALUATION in broadcast.scalars:
            return self._evaluate(broadcast, task, client, guard)
        remembers = task.config.strategy.devices_remember
        with memory_in(state, remembers) as memory, noise_stream(client, broadcast.round) as stream:
            work = LocalWork(
                broadcast=broadcast,
                shard=_in_places(self.workload(task).shard(client), task, guard),
                model=frozen.model,
                generator=batch_generator(task.config, client, broadcast.round),
                memory=memory,
                client=client,
            )
            half, prepared = self.half(broadcast, frozen.model)
            bound = StrategyHalf(half, prepared, work, self._cache, simulated=guard.folder is None)
            return reply_with(mechanism.run(bound, stream, broadcast.round))

    def half(self, broadcast: Broadcast, model: FlatModel) -> tuple[Half, Any]:
        """Return the device half of the strategy, and what it makes of this broadcast: once for all clients that share
        a process."""
        known = self._prepared
        if known is None or known.broadcast is not broadcast:
            half = self._device_half(broadcast.config.strategy.name)
            known = self._prepared = _Prepared(broadcast, half, half.prepare(broadcast, model))
        return known.half, known.value

    def admitted(self, config: Config, guard: AnyGuard) -> Assignment:
        """Return the configuration in the form that this device accepts; in a simulation unchanged."""
        task = guard.admit_configuration(config)
        guard.admit_workload(self.workload(task))
        return task

    def _evaluate(
        self, broadcast: Broadcast, task: Assignment, client: int, guard: AnyGuard
    ) -> RecordDict:
        """Return what this client's held-out examples say of the model, bounded and noised. Nothing is remembered."""
        workload = self.workload(task)
        # Seeded noise must differ from that of the same round of training.
        with noise_stream(client, -broadcast.round) as stream:
            held_out = _in_places(workload.local_test(client), task, guard)
            half = EvaluationHalf(
                task.config, self.frozen_part(task).model, held_out, workload.data_shape.classes
            )
            return reply_with(broadcast.mechanism.run(half, stream, broadcast.round))

    def completed(self, received: Broadcast, task: Assignment) -> Broadcast:
        """Return the broadcast as this device understands it: with its own form of the configuration, and with the
        arrays from the replica if it has none. It is the same object for all clients that share a process."""
        arrays = received.arrays
        if FINGERPRINT in received.scalars and not arrays:
            arrays = self._replicas.arrays(task, _goal(received.scalars), received.round)
        known = self._prepared
        if (
            known is not None
            and known.broadcast.arrays is arrays
            and known.broadcast.scalars is received.scalars
            and known.broadcast.config == task.config
        ):
            return known.broadcast
        return replace(received, config=task.config, arrays=arrays)

    def new_model(self, task: Assignment) -> FlatModel:
        return self.workload(task).model()

    def _new_parts(self, task: Assignment) -> FrozenPart:
        return FrozenPart(self.new_model(task), self.workload(task).features)

    def _version_0(self, task: Assignment) -> Replayed:
        return make_replica(task.config, self.new_model(task))


@dataclass(frozen=True)
class EvaluationHalf:
    """An evaluation in one device's round, as a mechanism calls it (a `BoundHalf`), in any run."""

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


def _goal(scalars: Mapping[str, Scalar]) -> str:
    """Return the fingerprint of the state to which all devices are told to come."""
    return bytes(scalars[FINGERPRINT]).hex()  # type: ignore[arg-type]


def _with_settings(content: RecordDict, parcel: RecordDict, state: RecordDict) -> bool:
    """Put the configuration that a broadcast names into it; returns whether the device has it."""
    head = content.config_records[HEAD]
    name = head[CONFIG]
    if not isinstance(name, bytes):
        return True  # the text itself
    text = text_named(name, parcel, state)
    if text is None:
        return False
    content[HEAD] = ConfigRecord({**head, CONFIG: text})
    announced(content)  # raises if it is not to be remembered
    remember(text, state)
    return True


def _in_places(examples: Examples, task: Assignment, guard: AnyGuard) -> Examples:
    """Return a real device's examples in places, if each of them is protected by itself."""
    by_example = task.config.privacy.unit is Unit.EXAMPLE
    return examples.in_places() if guard.folder is not None and by_example else examples


@contextmanager
def memory_in(
    state: RecordDict, remembers: bool = True
) -> Iterator[MutableMapping[str, torch.Tensor]]:
    """Yield what a device remembers between rounds, by name, from the state that Flower keeps for the node. It never
    leaves the device. Changes in the block are kept if the block succeeds. If the device does not remember anything,
    the memory is empty and must stay so."""
    kept = state.array_records.get(_MEMORY, ArrayRecord()) if remembers else ArrayRecord()
    memory = {name: torch.from_numpy(array.numpy().copy()) for name, array in kept.items()}
    yield memory
    refuse_undeclared_memory(remembers, memory)
    if memory:
        state[_MEMORY] = ArrayRecord({name: Array(x.cpu().numpy()) for name, x in memory.items()})


def refuse_undeclared_memory(remembers: bool, *memories: MutableMapping[str, torch.Tensor]) -> None:
    """Raise UnsafeUpdateError if the device half of a strategy has kept something that its settings do not declare. The
    accountant would not know of it."""
    if not remembers and any(memories):
        raise UnsafeUpdateError(
            "the strategy remembers something between rounds, and its settings do not say so: return True from "
            "`devices_remember` of its settings class."
        )


def noise_stream(client: int, round: int, *labels: str) -> Stream:
    """Return fresh secret randomness; in a simulation that is to be reproducible, a function of its seed."""
    seed = os.environ.get(SEED_VARIABLE)
    if seed is None:
        return Stream()
    return Stream(derived_key(int(seed), "noise", client, round, *labels))
