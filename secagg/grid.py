"""A Flower Grid that answers train messages with the sum of the replies.

`SecAggGrid` stands between a strategy and any other Grid. `send_and_receive` of train messages
runs the stages of the protocol and returns one reply per group: whatever the codec makes of the
sum, and a ConfigRecord "secagg" that says who is in it. Other messages pass. All nodes of a round
are sent the same content, because a round is about one model; a round that cannot finish raises
`Aborted`.

With `SecAggPlan(merged=True)` the keys of the next round are exchanged on the last messages of
this one. The next round is guessed to have the same nodes and vector (or the nodes told to
`expect`); if the guess is wrong, the prepared keys are dropped and the round starts with its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from logging import getLogger
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsketch.secagg.broadcast import RECORD, broadcast_hash
from fedsketch.secagg.codec import Codec, VectorPlan
from fedsketch.secagg.coordinator import Coordinator, Step
from fedsketch.secagg.errors import Aborted, SettingsError
from fedsketch.secagg.identity import Directory
from fedsketch.secagg.mod import ACTION, VECTOR_RECORD
from fedsketch.secagg.plan import SecAggPlan
from fedsketch.secagg.report import RoundReport

log = getLogger(__name__)
_REASON_LENGTH = 300
_PULL_AT_ONCE = 32
_SLOWEST_POLL = 0.5  # seconds
_LEAST_PATIENCE = 10.0  # seconds: nodes look for messages every few


class SecAggGrid(Grid):
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
        plan: SecAggPlan,
        codec: Codec,
        *,
        roster: Directory | None = None,
        first_round: int = 1,
    ) -> None:
        self.report: RoundReport | None = None  # of the last round, finished or not
        self._grid = grid
        self._plan = plan
        self._codec = codec
        self._roster = roster
        self._round = first_round
        self._run_id = 0
        self._ahead: Coordinator | None = None
        self._expected: tuple[int, ...] | None = None
        self._guess = True

    def expect(self, node_ids: Iterable[int] | None) -> None:
        """Say which nodes the round after the coming one has; None if there is none or it is unknown."""
        self._expected = None if node_ids is None else tuple(sorted(node_ids))
        self._guess = node_ids is not None

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies of all messages, those of train messages as one sum per group."""
        train: list[Message] = []
        other: list[Message] = []
        for message in messages:
            is_train = message.metadata.message_type.split(".")[0] == "train"
            (train if is_train else other).append(message)
        replies = [reply for _, reply in self._exchange(other, timeout)] if other else []
        if train:
            replies += self._secure_round(train, timeout)
        return replies

    def _secure_round(self, train: list[Message], timeout: float | None) -> list[Message]:
        by_node = {message.metadata.dst_node_id: message for message in train}
        if len(by_node) != len(train):
            raise SettingsError("Two train messages go to one node: a round sends one to each.")
        # Flower stamps messages with the run, and devices compare it with their own context.
        self._run_id = train[0].metadata.run_id
        content, broadcast = _one_broadcast(train)
        vector = self._codec.plan(content, self._plan.sizes(len(by_node)))
        coordinator = self._prepared(tuple(sorted(by_node)), vector)
        if coordinator is None:
            coordinator = self._open(by_node, vector, broadcast)
        report = self.report = RoundReport(coordinator.settings, dropouts=coordinator.lost)
        coordinator.bind(broadcast)
        ride = Step.SIGN if coordinator.settings.consistency else Step.MASK
        while coordinator.step is not Step.DONE:
            if coordinator.step is ride and self._plan.merged and self._guess:
                self._ahead = self._open(self._expected or by_node, vector, b"")
                self._expected = None
            self._stage(coordinator, by_node, timeout, report)
        return [
            self._reply(coordinator, number, content, by_node)
            for number in range(len(coordinator.sums))
        ]

    def _open(self, nodes: Iterable[int], vector: VectorPlan, broadcast: bytes) -> Coordinator:
        settings = self._plan.settings(self._run_id, self._round, nodes, vector, broadcast)
        self._round += 1
        return Coordinator(settings, self._roster)

    def _prepared(self, cohort: tuple[int, ...], vector: VectorPlan) -> Coordinator | None:
        """The round whose keys were exchanged ahead, if it is this one."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.step is not Step.MASK:
            return None
        settings = ahead.settings
        planned = VectorPlan(settings.dim, settings.bits, settings.application)
        return ahead if settings.cohort == cohort and planned == vector else None

    def _stage(
        self,
        coordinator: Coordinator,
        train: dict[int, Message],
        timeout: float | None,
        report: RoundReport,
    ) -> None:
        """One trip: the requests of the stage, and those of the next round that ride on them."""
        step, began, known = coordinator.step, time.monotonic(), len(coordinator.lost)
        ahead = self._ahead
        requests, riding = coordinator.requests(), ahead.requests() if ahead else {}
        limit = self._plan.stage_timeout
        if step is Step.MASK:
            limit = min(timeout or self._plan.train_timeout, self._plan.train_timeout)
        outgoing = []
        for node in [*requests, *(node for node in riding if node not in requests)]:
            record = ConfigRecord()
            if node in requests:
                record["body"] = requests[node]
                if ahead and node in riding:
                    record["next-step"] = ahead.step.name.lower()
                    record["next"] = riding[node]
            else:
                record["body"] = riding[node]
            report.bytes_down += sum(len(v) for v in record.values() if isinstance(v, bytes))
            content, kind, group = RecordDict(), "", ""
            if node in requests and step is Step.MASK:
                original = train[node]
                content = RecordDict(dict(original.content))
                kind, group = original.metadata.message_type, original.metadata.group_id
            else:
                asked = step if node in requests or ahead is None else ahead.step
                kind = "query." + ACTION.format(asked.name.lower())
            content[RECORD] = record
            outgoing.append(Message(content, node, kind, group_id=group, ttl=limit))
        enough = min(len(requests), coordinator.settings.n - coordinator.settings.drops)
        for message, reply in self._exchange(outgoing, limit, enough):
            node = message.metadata.dst_node_id
            if node in requests:
                report.bytes_up += _feed(coordinator, node, reply, "body", "refusal")
                if ahead and node in riding:
                    report.bytes_up += _feed(ahead, node, reply, "next", "next-refusal")
            elif ahead:
                report.bytes_up += _feed(ahead, node, reply, "body", "refusal")
        report.trips += 1
        try:
            coordinator.close()
        finally:
            report.seconds[step.name.lower()] = time.monotonic() - began
            _log_dropouts(coordinator, known)
        if ahead:
            self._advance(ahead)

    def _advance(self, ahead: Coordinator) -> None:
        try:
            ahead.close()
        except Aborted as error:
            log.warning("The next round starts without keys exchanged ahead: %s", error)
            self._ahead = None

    def _exchange(
        self, messages: list[Message], timeout: float | None, enough: int | None = None
    ) -> Iterator[tuple[Message, Message]]:
        """Push messages and yield each with its reply as it comes, until the time is up; and once
        `enough` have come, not much longer.

        Replies are matched by the message they answer: one that the SuperLink writes for a lost
        node does not carry the node's id.
        """
        began = time.monotonic()
        waiting: dict[str, Message] = {}
        identifiers: list[Any] = list(self._grid.push_messages(messages))
        for place, message in enumerate(messages):
            identifier = message.metadata.message_id
            if len(identifiers) == len(messages):
                identifier = identifiers[place]  # None where the push failed
            if identifier:
                waiting[str(identifier)] = message
        deadline = None if timeout is None else began + timeout
        while waiting:
            open_ids, came = list(waiting), False
            # In small lots, so that only a few vectors are in memory at a time.
            for start in range(0, len(open_ids), _PULL_AT_ONCE):
                for reply in self._grid.pull_messages(open_ids[start : start + _PULL_AT_ONCE]):
                    answered = waiting.pop(reply.metadata.reply_to_message_id, None)
                    if answered is not None:
                        came = True
                        if enough is not None and not reply.has_error():
                            enough -= 1
                        yield answered, reply
            if enough is not None and enough <= 0:
                took = time.monotonic() - began
                last = began + took + max(_LEAST_PATIENCE, self._plan.patience * took)
                deadline, enough = last if deadline is None else min(deadline, last), None
            if deadline is not None and time.monotonic() >= deadline:
                return
            if waiting and not came:
                # Who has waited long can wait a little longer: every look costs the SuperLink CPU.
                waited = time.monotonic() - began
                time.sleep(max(self._plan.poll_interval, min(_SLOWEST_POLL, waited / 10)))

    def _reply(
        self, coordinator: Coordinator, number: int, content: RecordDict, train: dict[int, Message]
    ) -> Message:
        settings, result = coordinator.settings, coordinator.sums[number]
        if self.report is not None:
            self.report.survivors.append(result.survivors)
        decoded = self._codec.decode(result, settings, content)
        decoded[RECORD] = ConfigRecord(
            {
                "round": settings.round,
                "group": result.group,
                "cohort": settings.n,
                "survivors": list(result.survivors),
                "dropouts": len(coordinator.lost),
            }
        )
        return Message(decoded, reply_to=train[result.survivors[0]])

    # The rest of a Grid is the inner one's.

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self._grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)


def _one_broadcast(train: list[Message]) -> tuple[RecordDict, bytes]:
    """The content that all train messages share, and its hash."""
    content = train[0].content
    broadcast = broadcast_hash(content)
    for message in train[1:]:
        if message.content is not content and broadcast_hash(message.content) != broadcast:
            raise SettingsError(
                "The train messages of a round differ: under secure aggregation every node gets "
                "the same content."
            )
    return content, broadcast


def _log_dropouts(coordinator: Coordinator, known: int) -> None:
    """One line per stage about the nodes that it lost."""
    new = [f"node {node}: {reason}" for node, reason in list(coordinator.lost.items())[known:]]
    if new:
        more = f"; and {len(new) - 10} more" if len(new) > 10 else ""
        log.warning("%d dropouts: %s%s", len(new), "; ".join(new[:10]), more)


def _feed(
    coordinator: Coordinator, node: int, reply: Message, body_key: str, refusal_key: str
) -> int:
    """Hand a reply to the round that it belongs to; the number of bytes that it carried."""
    if reply.has_error():
        reason = " ".join((reply.error.reason or "no reason given").split())
        coordinator.lose(node, f"error {reply.error.code}: {reason[:_REASON_LENGTH]}")
        return 0
    record = reply.content.config_records.get(RECORD, ConfigRecord())
    body: Any = record.get(body_key)
    if coordinator.step is Step.MASK:
        vector = reply.content.array_records.get(VECTOR_RECORD, ArrayRecord()).get("vector")
        body = vector.data if vector is not None else None
    if isinstance(body, bytes):
        coordinator.receive(node, body)
        return len(body)
    refusal = record.get(refusal_key)
    coordinator.lose(
        node,
        str(refusal)[:_REASON_LENGTH]
        if refusal is not None
        else "the reply is not of the protocol",
    )
    return 0
