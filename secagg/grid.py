"""A Flower Grid that answers train messages with the sum of the replies.

`SecAggGrid` wraps any other Grid below a strategy. `send_and_receive` of train messages runs the stages
of the protocol and returns one reply per group: what the codec makes of the sum, and a ConfigRecord
"secagg" that says who is in it. Other messages are passed on. All nodes of a round get the same content,
because a round is about one model. A round that cannot finish raises `Aborted`.

With `SecAggOptions(merged=True)` the keys of the next round are exchanged on the last messages of
this one. The next round is guessed to have the same nodes and vector (or the nodes told to
`expect`); if the guess is wrong, the prepared keys are dropped and the round starts with its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from logging import getLogger
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from .broadcast import broadcast_hash
from .codec import Codec, VectorFormat
from .device_text import clean_text
from .errors import Aborted, SettingsError
from .identity import Directory
from .names import (
    ACTION,
    BODY,
    NEXT,
    NEXT_REFUSAL,
    NEXT_STEP,
    RECORD,
    REFUSAL,
    SURVIVORS,
    ProtocolName,
    body_record,
    is_train,
    vector_in,
)
from .options import SecAggOptions
from .pairwise.sessions import PairwiseSessions
from .report import RoundReport
from .server_session import Conversation, Numbers, RoundStage, ServerSession, Sessions
from .traffic import protocol_for
from .two_trips.sessions import TwoTripsSessions
from .wrapped_grid import WrappedGrid, exchange

log = getLogger(__name__)


class SecAggGrid(WrappedGrid):
    """Secure aggregation around a Grid.

    Guarantee, for each device and each round, the unit being its whole vector: of the train
    replies this side learns the sums of the codec's vectors over at least n - D devices each, and
    nothing else. The devices enforce it; see device.py for the adversary. `roster`, if given,
    lets the server name a node whose signature is wrong instead of losing all its peers.
    `first_round` is the first round number of this run that the devices have not seen.
    """

    def __init__(
        self,
        grid: Grid,
        options: SecAggOptions,
        codec: Codec,
        *,
        roster: Directory | None = None,
        first_round: int = 1,
    ) -> None:
        super().__init__(grid)
        self.report: RoundReport | None = None  # report of the last round, finished or not
        self._options = options
        self._codec = codec
        self._sessions: dict[ProtocolName, Sessions[Any]] = {
            ProtocolName.PAIRWISE: PairwiseSessions(options, roster),
            ProtocolName.TWO_TRIPS: TwoTripsSessions(options, roster),
        }
        self._numbers = Numbers(first_round)
        self._run_id = 0
        self._expected: tuple[int, ...] | None = None
        self._guess = True

    def expect(self, node_ids: Iterable[int] | None) -> None:
        """Announce the nodes of the next round, so that their keys can be sent with the messages of the coming
        round."""
        super().expect(node_ids)
        self._expected = None if node_ids is None else tuple(sorted(node_ids))
        self._guess = node_ids is not None

    @property
    def dropouts(self) -> Mapping[int, str]:
        """The nodes that the last round lost, with the stage and the reason."""
        return {} if self.report is None else self.report.dropouts

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies to all messages; those to train messages are one sum per group."""
        train: list[Message] = []
        other: list[Message] = []
        for message in messages:
            (train if is_train(message) else other).append(message)
        replies = list(super().send_and_receive(other, timeout=timeout)) if other else []
        if train:
            replies += self._secure_round(train, timeout)
        return replies

    def _secure_round(self, train: list[Message], timeout: float | None) -> list[Message]:
        by_node = {message.metadata.dst_node_id: message for message in train}
        if len(by_node) != len(train):
            raise SettingsError("Two train messages go to one node: a round sends one to each.")
        # Flower writes the run's id into messages, and devices compare it with their own context.
        self._run_id = train[0].metadata.run_id
        content = _one_content(train)
        vector = self._codec.describe(content, self._options.sizes(len(by_node)))
        travelling = self._codec.strip(content)
        rounds = self._sessions_for(vector, len(by_node))
        session = rounds.begin(
            self._run_id, self._numbers, by_node, vector, broadcast_hash(travelling)
        )
        report = self.report = RoundReport(session.settings, dropouts=session.lost)
        expected = (self._expected or by_node) if self._guess else None
        while session.stage is not RoundStage.DONE:
            ahead = rounds.ahead(session, self._numbers, expected, vector)
            self._stage(session, ahead, by_node, travelling, timeout, report)
            if ahead is not None:
                _advance(rounds, ahead)
        self._expected = None
        return [
            self._reply(session, number, content, by_node) for number in range(len(session.sums))
        ]

    def _sessions_for(self, vector: VectorFormat, n: int) -> Sessions[Any]:
        """Return the rounds of the protocol that sums such vectors."""
        return self._sessions[protocol_for(self._options, vector, n)]

    def _stage(
        self,
        session: ServerSession,
        ahead: Conversation | None,
        train: dict[int, Message],
        broadcast: RecordDict,
        timeout: float | None,
        report: RoundReport,
    ) -> None:
        """Make one round trip: send the requests of the stage, and the requests of the next round with them."""
        step, began, known = session.stage, time.monotonic(), len(session.lost)
        requests, riding = session.requests(), ahead.requests() if ahead else {}
        limit = self._options.stage_timeout
        if step is RoundStage.MASK:
            limit = min(timeout or self._options.train_timeout, self._options.train_timeout)
        outgoing = []
        for node in [*requests, *(node for node in riding if node not in requests)]:
            record = _record(node, requests, riding, ahead)
            report.bytes_down += sum(len(v) for v in record.values() if isinstance(v, bytes))
            if node in requests and step is RoundStage.MASK:
                content = RecordDict({**broadcast, RECORD: record})
                original = train[node].metadata
                kind, group = original.message_type, original.group_id
            else:
                asked = step if node in requests or ahead is None else ahead.stage
                content = RecordDict({RECORD: record})
                kind, group = "query." + ACTION.format(asked.name.lower()), ""
            outgoing.append(Message(content, node, kind, group_id=group, ttl=limit))
        enough = min(len(requests), session.settings.sizes.n - session.settings.drops)
        for message, reply in exchange(
            self._grid,
            outgoing,
            limit,
            enough=enough,
            patience=self._options.patience,
            poll_interval=self._options.poll_interval,
        ):
            node = message.metadata.dst_node_id
            if node in requests:
                report.bytes_up += _feed(session, node, reply, BODY, REFUSAL)
                if ahead and node in riding:
                    report.bytes_up += _feed(ahead, node, reply, NEXT, NEXT_REFUSAL)
            elif ahead:
                report.bytes_up += _feed(ahead, node, reply, BODY, REFUSAL)
        report.round_trips += 1
        try:
            session.close()
        finally:
            report.seconds[step.name.lower()] = time.monotonic() - began
            _log_dropouts(session, known)

    def _reply(
        self, session: ServerSession, number: int, content: RecordDict, train: dict[int, Message]
    ) -> Message:
        settings, result = session.settings, session.sums[number]
        if self.report is not None:
            self.report.survivors.append(result.survivors)
        decoded = self._codec.decode(result, settings, content)
        decoded[RECORD] = ConfigRecord(
            {
                "round": settings.round,
                "group": result.group,
                "cohort": settings.sizes.n,
                SURVIVORS: list(result.survivors),
                "dropouts": len(session.lost),
            }
        )
        return Message(decoded, reply_to=train[result.survivors[0]])


def _advance(rounds: Sessions[Any], ahead: Conversation) -> None:
    try:
        ahead.close()
    except Aborted as error:
        log.warning("The next round starts without keys exchanged ahead: %s", error)
        rounds.drop_ahead()


def _one_content(train: list[Message]) -> RecordDict:
    """Return the content that all train messages have in common."""
    content = train[0].content
    for message in train[1:]:
        same = message.content is content
        if not same and broadcast_hash(message.content) != broadcast_hash(content):
            raise SettingsError(
                "The train messages of a round differ: under secure aggregation every node gets "
                "the same content."
            )
    return content


def _record(
    node: int,
    requests: Mapping[int, bytes],
    riding: Mapping[int, bytes],
    ahead: Conversation | None,
) -> ConfigRecord:
    """Return the record of a message to a node: the request of the stage, that of the next round, or both."""
    if node not in requests:
        return body_record(riding[node])
    record = body_record(requests[node])
    if ahead is not None and node in riding:
        record[NEXT_STEP] = ahead.stage.name.lower()
        record[NEXT] = riding[node]
    return record


def _log_dropouts(session: ServerSession, known: int) -> None:
    """Log one line per stage about the nodes that it lost."""
    new = [f"node {node}: {reason}" for node, reason in list(session.lost.items())[known:]]
    if new:
        more = f"; and {len(new) - 10} more" if len(new) > 10 else ""
        log.warning("%d dropouts: %s%s", len(new), "; ".join(new[:10]), more)


def _feed(session: Conversation, node: int, reply: Message, body_key: str, refusal_key: str) -> int:
    """Pass a reply to the round to which it belongs, and return the number of bytes that it carried."""
    if reply.has_error():
        reason = clean_text(reply.error.reason or "no reason given")
        session.lose(node, f"error {reply.error.code}: {reason}")
        return 0
    record = reply.content.config_records.get(RECORD, ConfigRecord())
    body: Any = record.get(body_key)
    if session.stage is RoundStage.MASK:
        body = vector_in(reply.content)
    if isinstance(body, bytes):
        session.receive(node, body)
        return len(body)
    session.lose(node, clean_text(record.get(refusal_key, "the reply is not of the protocol")))
    return 0
