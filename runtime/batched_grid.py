"""The simulator for research: one process trains the whole cohort at once (`runtime.batched_clients`), through a Grid
that answers with sums.

The server gets what it would get from devices. Under secure aggregation that is one sum for each group, and the clients
in it; masks are left out, because they cancel. Without secure aggregation it gets one sum as well, unless the strategy
asks for single uploads or each device draws its own noise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsketch.client.guard.guard import SimulatedGuard
from fedsketch.conf import Config
from fedsketch.conf.schema import CohortRuntimeConfig, NoSecAggConfig, Randomness
from fedsketch.delivery.records import FROZEN_ARRAYS
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.runtime.batched_clients import BatchedClients, BatchedSum
from fedsketch.runtime.local import CLIENT_APP_RAISED, LocalGrid
from fedsketch.secagg import RECORD, SURVIVORS, is_train
from fedsketch.server.grids.simulation import SUMS
from fedsketch.strategies.rounds.codec import summed
from fedsketch.tasks.workload import Workload


class BatchedGrid(LocalGrid):
    """Answers train messages for all clients together, and all other messages as in `runtime=local`. `workload` is the
    run's, if given."""

    def __init__(
        self, client_app: ClientApp, config: Config, workload: Workload | None = None
    ) -> None:
        super().__init__(client_app, config.clients.total)
        assert isinstance(config.runtime, CohortRuntimeConfig)
        self._config = config
        self._single = (
            isinstance(config.secagg, NoSecAggConfig) and config.runtime.noise == "per_device"
        )
        self._workspace = BatchedClients(config.runtime, workload)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Yield the replies one by one as they are computed, because there may be many. Train messages get one reply
        for each sum, and an error for each client that is in no sum."""
        train: list[Message] = []
        for message in messages:
            if is_train(message):
                train.append(message)
            else:
                yield from super().send_and_receive([message])
        if train:
            yield from self._sums(train)

    def _sums(self, train: list[Message]) -> Iterable[Message]:
        by_client = {self._nodes.index(message.metadata.dst_node_id): message for message in train}
        content = RecordDict(dict(train[0].content))  # the same for all clients
        frozen = RecordDict({n: content.pop(n) for n in (FROZEN_ARRAYS,) if n in content})
        self._workspace.prepare(content, frozen, RecordDict(), SimulatedGuard(0))
        wanted = int(content.pop(SUMS)["sums"])  # type: ignore[arg-type]
        groups = self._groups(sorted(by_client), wanted, train[0].metadata.group_id)
        for made in self._workspace.sums(content, groups):
            yield from self._replies_with_sum(made, by_client)

    def _replies_with_sum(
        self, made: BatchedSum, by_client: dict[int, Message]
    ) -> Iterable[Message]:
        for client, reason in made.lost.items():
            yield Message(Error(CLIENT_APP_RAISED, reason), reply_to=by_client[client])
        if made.vector is not None:
            nodes = [by_client[client].metadata.dst_node_id for client in made.members]
            reply = summed(made.vector)
            reply[RECORD] = ConfigRecord({SURVIVORS: nodes})
            yield Message(reply, reply_to=by_client[made.members[0]])

    def _groups(self, clients: list[int], count: int, server_round: str) -> list[list[int]]:
        """Return disjoint random groups, drawn by the same distribution as those of secure aggregation
        (`secagg.pairwise.graph`)."""
        if self._single:
            count = len(clients)
        if count in (1, len(clients)):
            return [clients] if count == 1 else [[client] for client in clients]
        key = os.urandom(16)
        if self._config.privacy.randomness is Randomness.SEEDED:
            key = derived_key(self._config.seed, "groups", server_round)
        with Stream(key) as stream:
            order = np.argsort(stream.uint64(len(clients)), kind="stable").tolist()
        return [sorted(clients[place] for place in order[g::count]) for g in range(count)]
