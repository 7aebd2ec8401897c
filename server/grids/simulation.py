"""A Grid for `runtime=cohort`, where no messages are sent: it counts the bytes that they would have, and says which
sums are needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.delivery.settings_once import SettingsOnce
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.secagg import SecAggOptions, WrappedGrid, is_train
from fedsketch.server.expected_traffic import expected_traffic
from fedsketch.server.grids.byte_meter import content_shape
from fedsketch.server.grids.named_settings import named
from fedsketch.strategies.rounds.codec import EVALUATION, GROUPS, HEAD, MECHANISM, uploaded
from fedsketch.strategies.rounds.coordinator import Coordinator
from fedsketch.strategies.rounds.messages import ARRAYS, encoded

SUMS = "sums"  # name of the record that tells the simulator how many sums the server sees


class SimulatedGrid(WrappedGrid):
    """The Grid between a strategy and a simulator that answers train messages with sums.

    Bytes are those of the messages that a round without dropouts would have (`server.expected_traffic`), with parcels
    of replay (`delivery.parcels`) and of settings (`delivery.settings_once`), and without frozen weights, which are
    sent once. A round that secure aggregation
    would refuse is refused.
    """

    def __init__(self, grid: Grid, coordinator: Coordinator) -> None:
        super().__init__(grid)
        self._strategy = coordinator.strategy
        self._frozen = coordinator.frozen
        self._up = self._down = 0.0
        self._first = True
        self._settings = SettingsOnce()
        # The versions that a node would have, of the state and of the settings, if not 0.
        self._held: dict[int, tuple[int, int]] = {}
        self._played = 0
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
        groups = int(_head_of(content).get(GROUPS, 1))  # type: ignore[arg-type]
        if not isinstance(self._strategy.config.secagg, NoSecAggConfig):
            return groups
        parts = groups > 1 if _evaluates(content) else self._strategy.wants_parts(server_round)
        return cohort if parts else 1

    def _count(self, content: RecordDict, nodes: list[int], numbers: int) -> None:
        """Count what these nodes would have sent and received. From now on they have the present versions."""
        parcels, settings = self._strategy.parcels, self._settings
        content = named(content, settings)
        for held, count in Counter(self._held.get(node, (0, 0)) for node in nodes).items():
            parcel = {} if parcels is None else parcels.parcel(held[0])
            lacking = RecordDict({**parcel, **settings.parcel(held[1])})
            up, down = self._traffic(content, lacking, numbers, len(nodes), self._played)
            self._up, self._down = self._up + count * up, self._down + count * down
        self._played += 1
        version = 0 if parcels is None else parcels.version
        self._held |= dict.fromkeys(nodes, (version, settings.version))

    def _traffic(
        self,
        content: RecordDict,
        parcel: RecordDict,
        upload_length: int,
        cohort: int,
        played: int,
    ) -> tuple[float, float]:
        """Return bytes (up, down) of a node that sends a vector of this length, after so many rounds."""
        shapes = content_shape(content), content_shape(parcel)
        key = (cohort, upload_length, *shapes, played % SecAggOptions.epoch_rounds == 0)
        if key not in self._known:
            mechanism = mechanism_from_record(content.config_records[MECHANISM])
            whole = RecordDict({**content, **parcel})
            config = self._strategy.config
            self._known[key] = expected_traffic(
                config, whole, mechanism, upload_length, cohort, played
            )
        return self._known[key]


def _head_of(content: RecordDict) -> ConfigRecord:
    return content.config_records.get(HEAD, ConfigRecord())


def _evaluates(content: RecordDict) -> bool:
    """Return whether the message asks devices to evaluate, not to train."""
    return EVALUATION in _head_of(content)
