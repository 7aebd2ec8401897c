"""Simulates a whole cohort in one process (`runtime=cohort`). It computes the sum that the server would see, without
messages and masks.

Nothing of a device's protection is simulated: there is no policy, no ledger and no secret. The sum is that of the
vectors that the devices would have released. The key `runtime.noise` chooses how it is made:

- `per_device`: every client's upload is made as its device would make it, by the same calls in the same order, and the
  uploads are added. Sums of integers have no rounding, so they equal those of secure aggregation bit by bit.
- `per_sum`: the rows of many clients are computed together (`strategies.local.forms`), if the model supports it. Each
  row is clipped by itself, and rounded if a device would round it. The noise of all these clients is drawn at once
  (`Mechanism.protect_sum`). The sum has the same distribution, up to the rounding of floating-point rows. If noise is
  added during training (`privacy.mechanisms.noisy_training`), and in evaluations, each client draws its own noise.

What is computed at once fits into `runtime.memory`, for any number of clients. A cohort is split into parts, and
threads compute the parts, each thread with its own copy of the model. The result of a part does not depend on which
thread computes it, or when.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any

import torch
from flwr.app import RecordDict
from numpy.typing import NDArray

from fedsketch.client.guard.guard import SimulatedGuard
from fedsketch.client.workspace import Workspace, noise_stream, refuse_undeclared_memory
from fedsketch.conf import Config
from fedsketch.conf.schema import ADAPTIVE, CohortRuntimeConfig
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.encoding import upload_sum
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.strategies.algorithm import LocalWork
from fedsketch.strategies.local.batched_work import BatchedWork
from fedsketch.strategies.local.forms import Half, batched_blocks, batched_rows
from fedsketch.strategies.local.forms import rows as plain_rows
from fedsketch.strategies.local.product_cache import ProductCache
from fedsketch.strategies.rounds.clip import with_counts
from fedsketch.strategies.rounds.codec import EVALUATION, HEAD, MECHANISM, uploaded
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.gradients.per_client import PerClient
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Assignment, Workload

_NOBODY = SimulatedGuard(0)  # there is no device to protect
_COPIES = 6  # roughly how many vectors of the model's size a client needs at once
# Bytes. With more memory at once, the processor's caches are used badly. With less, matrix products are small and the
# work around them takes most of the time.
_CACHED = 64 << 20
_NOT_FINITE = (
    "UnsafeUpdateError: the update contains nan or inf: lower the learning rate or check the data."
)


@dataclass
class BatchedSum:
    """The sum of the uploads of `members`, and the reason why each of the `lost` clients is not in it. `vector` is
    None if there are no members."""

    members: list[int] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    vector: NDArray[Any] | None = None

    def add(self, members: Sequence[int], vector: NDArray[Any]) -> None:
        self.members += members
        self.vector = vector if self.vector is None else upload_sum([self.vector, vector])


@dataclass(frozen=True)
class _Round:
    """What all clients of a round have in common."""

    broadcast: Broadcast
    workload: Workload
    models: SimpleQueue[PerClient]  # those that no thread is using
    half: Half
    prepared: Any  # what the half made of the broadcast


@dataclass(frozen=True)
class _Rows:
    """The rows of some clients, one client after the other, and how many rows each has."""

    rows: torch.Tensor
    clients: list[int]
    counts: list[int]


class BatchedClients(Workspace):
    """Trains for all clients of a round."""

    def __init__(self, settings: CohortRuntimeConfig, workload: Workload | None = None) -> None:
        """Pass the run's `workload` if there is one, so that its data are held in memory only once."""
        super().__init__(Workload if workload is None else lambda config, kind: workload)
        self._settings = settings
        self._products = ProductCache(settings.memory << 20)
        self._workers = settings.workers or max(1, _cores() // torch.get_num_threads())
        # What clients keep from round to round: as Flower's state, and as memories where rows are made together.
        self._states: dict[int, RecordDict] = {}
        self._memories: dict[int, MutableMapping[str, torch.Tensor]] = {}
        self._copies = lru_cache(maxsize=1)(
            lambda task: [PerClient(self._copy(task)) for _ in range(self._workers)]
        )

    def sums(self, content: RecordDict, groups: Sequence[Sequence[int]]) -> Iterator[BatchedSum]:
        """Yield one sum for each of these disjoint groups of clients, or one for each client if uploads cannot be
        added."""
        mechanism = mechanism_from_record(content.config_records[MECHANISM])
        if not mechanism.additive:
            groups = [[client] for group in groups for client in group]
        evaluates = EVALUATION in content.config_records.get(HEAD, {})
        if evaluates or self._settings.noise == "per_device" or not mechanism.takes_rows:
            yield from (self._one_by_one(content, group) for group in groups)
            return
        common = self._common(content)
        with ThreadPoolExecutor(self._workers, "cohort") as pool:
            if mechanism.can_protect_sum and any(len(group) > 1 for group in groups):
                for group in groups:
                    parts = self._parts(common, group)
                    yield _added(pool.map(partial(self._sum, common), parts))
                return
            parts = self._parts(common, [client for group in groups for client in group])
            for each in pool.map(partial(self._each, common), parts):
                yield from each

    def _copy(self, task: Assignment) -> FlatModel:
        """Return a model for one of the threads, with the frozen part that was received."""
        model = self.new_model(task)
        model.load_frozen(self.frozen_part(task).model.frozen)
        return model

    # ------------------------------------------------------------------ the noise of each device
    def _one_by_one(self, content: RecordDict, clients: Sequence[int]) -> BatchedSum:
        """Add up uploads that are made as the devices would make them."""
        result = BatchedSum()
        for client in clients:
            state = self._states.get(client, RecordDict())
            try:
                vector = uploaded(self.take_part(content, client, state, _NOBODY))
            except Exception as error:  # as in other runtimes, one failure does not stop the round
                result.lost[client] = _reason(error)
                continue
            if state:
                self._states[client] = state
            result.add([client], vector)
        return result

    # ------------------------------------------------------------------ rows of many clients, and noise of their sum
    def _sum(self, common: _Round, clients: Sequence[int]) -> BatchedSum:
        """Return the sum of some clients."""
        broadcast, factored = common.broadcast, self._factored(common, clients)
        rows: torch.Tensor | list[Rows]
        if factored is None:
            made, lost = self._rows(common, clients)
            rows, members, counts = made.rows, made.clients, made.counts
        else:
            rows, members, counts, lost = factored, list(clients), list(map(len, factored)), {}
        result = BatchedSum(lost=lost)
        if members:
            with noise_stream(members[0], broadcast.round, "sum") as stream:
                upload = broadcast.mechanism.protect_sum(rows, counts, stream, broadcast.round)
            result.add(members, upload.vector)
        return result

    def _each(self, common: _Round, clients: Sequence[int]) -> list[BatchedSum]:
        """Return one upload for each of these clients, from rows that are computed together."""
        made, lost = self._rows(common, clients)
        result, broadcast = [BatchedSum(lost=lost)], common.broadcast
        for client, rows in zip(made.clients, torch.split(made.rows, made.counts), strict=True):
            with noise_stream(client, broadcast.round) as stream:
                upload = broadcast.mechanism.protect(rows, stream, broadcast.round)
            result.append(BatchedSum([client], {}, upload.vector))
        return result

    def _common(self, content: RecordDict) -> _Round:
        received = self.reader.read(content)
        task = self.admitted(received.config, _NOBODY)
        broadcast = self.completed(received, task)
        models: SimpleQueue[PerClient] = SimpleQueue()
        for gradients in self._copies(task):
            gradients.model.load(broadcast.model)
            models.put(gradients)
        half, prepared = self.half(broadcast, self.frozen_part(task).model)
        return _Round(broadcast, self.workload(task), models, half, prepared)

    def _parts(self, common: _Round, clients: Sequence[int]) -> Iterator[list[int]]:
        """Split the clients into parts that fit into memory. Clients with similar numbers of examples come together,
        so that little padding is needed."""
        workload, config, example = (
            common.workload,
            common.broadcast.config,
            common.workload.train.inputs[:1],
        )
        with _one_of(common.models) as gradients:
            d, scalars = gradients.model.size, gradients.scalars(example)
            in_blocks = common.broadcast.mechanism.takes_blocks
            dense = gradients.dense(example) if in_blocks else d
        room = (self._settings.memory << 20) // self._workers
        if not common.half.is_costly(common.prepared) and not in_blocks:
            room = min(room, _CACHED)
        waiting, planned, take = sorted(clients, key=workload.size, reverse=True), math.inf, 1
        while waiting:
            examples = _at_once(workload.size(waiting[0]), config)  # of the part's largest client
            need = 4 * (_COPIES * d + examples * scalars)
            if config.privacy.unit is Unit.EXAMPLE:
                need = 4 * examples * (scalars + 2 * dense)
            if 2 * need <= planned:  # plan the rest anew: equal parts, as many for each worker
                planned, most = need, max(1, room // need)
                count = -(-len(waiting) // (most * self._workers)) * self._workers
                take = -(-len(waiting) // count)
            yield waiting[:take]
            waiting = waiting[take:]

    def _work(self, common: _Round, clients: Sequence[int], gradients: PerClient) -> BatchedWork:
        return BatchedWork(
            broadcast=common.broadcast,
            shards=common.workload.shards(clients),
            model=gradients.model,
            gradients=gradients,
            memories=[dict(self._memories.get(client, {})) for client in clients],
            clients=clients,
            cache=self._products,
        )

    def _factored(self, common: _Round, clients: Sequence[int]) -> list[Rows] | None:
        """Return the rows of each client, possibly as factors. None if the mechanism needs more than the sum of rows,
        if rows have to be multiplied out, or if one is not finite."""
        privacy, mechanism = common.broadcast.config.privacy, common.broadcast.mechanism
        if not mechanism.takes_blocks or privacy.clip == ADAPTIVE:
            return None
        with _one_of(common.models) as gradients:
            work = self._work(common, clients, gradients)
            rows = batched_blocks(common.half, common.prepared, work)
        finite = rows is not None and all(math.isfinite(own.norms().sum()) for own in rows)
        return rows if finite else None

    def _rows(self, common: _Round, clients: Sequence[int]) -> tuple[_Rows, dict[int, str]]:
        """Return the rows of the clients that have only finite rows, and why the others failed."""
        with _one_of(common.models) as gradients:
            work = self._work(common, clients, gradients)
            rows = batched_rows(common.half, common.prepared, work)
            if rows is not None:
                by_client = work.shards.sizes
                if common.broadcast.config.privacy.unit is Unit.CLIENT:
                    by_client = [1] * len(clients)
                made, lost = _finite(_Rows(rows, list(clients), by_client))
            else:
                made, lost = self._rows_in_turn(common, work)
        refuse_undeclared_memory(common.broadcast.config.strategy.devices_remember, *work.memories)
        self._memories |= {
            client: memory for client, memory in zip(clients, work.memories, strict=True) if memory
        }
        return replace(made, rows=with_counts(made.rows, common.broadcast)), lost

    def _rows_in_turn(self, common: _Round, work: BatchedWork) -> tuple[_Rows, dict[int, str]]:
        """Compute the rows of one client after the other, for strategies and models that have no other way."""
        found, lost = dict[int, torch.Tensor](), dict[int, str]()
        for place, client in enumerate(work.clients):
            work.model.load(common.broadcast.model)
            shard, generator = work.shards.of([place]).together(), work.generator(place)
            local = LocalWork(
                common.broadcast, shard, work.model, generator, work.memories[place], client
            )
            try:
                # Copied, because rows may share memory with the model's gradient.
                found[client] = plain_rows(common.half, common.prepared, local).clone()
            except Exception as error:
                lost[client] = _reason(error)
        work.model.load(common.broadcast.model)
        rows = torch.cat(list(found.values())) if found else torch.empty(0, 0)
        made, more = _finite(_Rows(rows, list(found), [len(own) for own in found.values()]))
        return made, {**lost, **more}


def _at_once(examples: int, config: Config) -> int:
    """Return how many examples of a client are processed together, if it has this many."""
    batch = config.strategy.local.batch
    if config.privacy.unit is Unit.EXAMPLE or not batch:
        return examples
    return min(examples, batch)


def _finite(made: _Rows) -> tuple[_Rows, dict[int, str]]:
    """Remove the clients that have a row with nan or inf. They fail visibly, as in other simulations."""
    if math.isfinite(float(made.rows.sum())):  # a quick test: nan or inf would be in the sum too
        return made, {}
    fine = torch.isfinite(made.rows).all(dim=1)
    if bool(fine.all()):
        return made, {}
    by_client = [bool(part.all()) for part in torch.split(fine, made.counts)]
    failed = [client for client, ok in zip(made.clients, by_client, strict=True) if not ok]
    pieces = zip(
        torch.split(made.rows, made.counts), made.clients, made.counts, by_client, strict=True
    )
    kept = [(rows, client, count) for rows, client, count, ok in pieces if ok]
    rows = torch.cat([rows for rows, _, _ in kept]) if kept else made.rows[:0]
    return _Rows(
        rows, [client for _, client, _ in kept], [count for *_, count in kept]
    ), dict.fromkeys(failed, _NOT_FINITE)


@contextmanager
def _one_of(models: SimpleQueue[PerClient]) -> Iterator[PerClient]:
    """Yield a model that no other thread uses meanwhile."""
    own = models.get()
    try:
        yield own
    finally:
        models.put(own)


def _added(sums: Iterable[BatchedSum]) -> BatchedSum:
    """Add sums in the given order."""
    result = BatchedSum()
    for part in sums:
        result.lost |= part.lost
        if part.vector is not None:
            result.add(part.members, part.vector)
    return result


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
