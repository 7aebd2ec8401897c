"""A Grid for `runtime=cohort`, where no messages are sent: it counts the bytes that they would have, and says which
sums are needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.secagg import WrappedGrid, is_train
from fedsketch.server.expected_traffic import expected_traffic
from fedsketch.server.grids.byte_meter import content_shape
from fedsketch.strategies.rounds.codec import EVALUATION, GROUPS, MECHANISM, SCALARS, uploaded
from fedsketch.strategies.rounds.coordinator import Coordinator
from fedsketch.strategies.rounds.messages import ARRAYS, encoded

SUMS = "sums"  # name of the record that tells the simulator how many sums the server sees


class SimulatedGrid(WrappedGrid):
    """The Grid between a strategy and a simulator that answers train messages with sums.

    Bytes are those of the messages that a round without dropouts would have (`server.expected_traffic`), with parcels
    of replay (`delivery.parcels`), and without frozen weights, which are sent once. A round that secure aggregation
    would refuse is refused.
    """

    def __init__(self, grid: Grid, coordinator: Coordinator) -> None:
        super().__init__(grid)
        self._strategy = coordinator.strategy
        self._frozen = coordinator.frozen
        self._up = self._down = 0.0
        self._first = True
        self._versions: dict[int, int] = {}  # the version that a node would have, if not 0
        self._known: dict[tuple[object, ...], tuple[float, float]] = {}

    def take(self) -> tuple[float, float]:
        """Return bytes (up, down) since the last call."""
        counted, self._up, self._down = (self._up, self._down), 0.0, 0.0
        return counted

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        outgoing = list(messages)
        train = [message for message in outgoing if is_train(message)]
        if not train:
            return self._grid.send_and_receive(outgoing, timeout=timeout)
        content, server_round = train[0].content, int(train[0].metadata.group_id)
        wanted = ConfigRecord({"sums": self._sums(content, server_round, len(train))})
        sent = RecordDict({**content, SUMS: wanted})
        if self._strategy.parcels is not None:
            # What devices would compute themselves (`delivery.parcels`), bit by bit.
            sent[ARRAYS] = encoded(self._strategy.parcels.arrays(server_round))
        if self._first and self._frozen.head():
            sent = RecordDict({**sent, **self._frozen.whole()})
        self._first = False
        for message in train:
            message.content = sent
        replies = list(self._grid.send_and_receive(outgoing, timeout=timeout))
        upload_length = self._strategy.vector_length(server_round)
        if _evaluates(content):
            upload_length = max(
                (len(uploaded(r.content)) for r in replies if r.has_content()), default=0
            )
        self._count(content, [message.metadata.dst_node_id for message in train], upload_length)
        return replies

    def _sums(self, content: RecordDict, server_round: int, cohort: int) -> int:
        """Return how many sums, or single uploads, the server sees."""
        groups = int(_scalars_of(content).get(GROUPS, 1))  # type: ignore[arg-type]
        if not isinstance(self._strategy.config.secagg, NoSecAggConfig):
            return groups
        parts = groups > 1 if _evaluates(content) else self._strategy.wants_parts(server_round)
        return cohort if parts else 1

    def _count(self, content: RecordDict, nodes: list[int], upload_length: int) -> None:
        """Count what these nodes would have sent and received. From now on they have the present version."""
        parcels = self._strategy.parcels
        for version, count in Counter(self._versions.get(node, 0) for node in nodes).items():
            parcel = RecordDict() if parcels is None else parcels.parcel(version)
            up, down = self._traffic(content, parcel, upload_length, len(nodes))
            self._up, self._down = self._up + count * up, self._down + count * down
        if parcels is not None:
            self._versions |= dict.fromkeys(nodes, parcels.version)

    def _traffic(
        self, content: RecordDict, parcel: RecordDict, upload_length: int, cohort: int
    ) -> tuple[float, float]:
        """Return bytes (up, down) of a node that sends a vector of this length."""
        key = (cohort, upload_length, content_shape(content), content_shape(parcel))
        if key not in self._known:
            mechanism = mechanism_from_record(content.config_records[MECHANISM])
            whole = RecordDict({**content, **parcel})
            config = self._strategy.config
            self._known[key] = expected_traffic(config, whole, mechanism, upload_length, cohort)
        return self._known[key]


def _scalars_of(content: RecordDict) -> ConfigRecord:
    return content.config_records.get(SCALARS, ConfigRecord())


def _evaluates(content: RecordDict) -> bool:
    """Return whether the message asks devices to evaluate, not to train."""
    return EVALUATION in _scalars_of(content)
