"""A Grid that tells people, while a round goes on, which clients it loses and for which it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from fedsketch.secagg import RECORD, REFUSAL, WrappedGrid, clean_text

_PATIENCE = 10.0  # seconds after which slow clients are named, if half of them have answered
_NO_ANSWER = 60.0  # the same, if not
_MOST_CLIENTS = 3  # that are named for one reason
_MOST_REASONS = 10  # that are told in one run; the log has all


class LossTeller:
    """Tells of the losses of a run: of each client and reason once, and of the first ones of many."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: dict[str, set[int]] = {}  # clients by reason

    def lost(self, client: int, reason: str) -> None:
        """Tell that a client does not take part, with a reason that is clean text already."""
        if reason not in self._told and len(self._told) == _MOST_REASONS:
            return
        clients = self._told.setdefault(reason, set())
        if client in clients or len(clients) > _MOST_CLIENTS:
            return
        clients.add(client)
        if len(clients) > _MOST_CLIENTS:
            self._tell("More clients are lost for the same reason: run.log names them.")
        else:
            self._tell(f"Client {client} is lost: {reason}")

    def failed(self, round: int, attempt: int, attempts: int, reason: str) -> None:
        """Tell that an attempt at a round failed."""
        self._tell(f"Round {round}, attempt {attempt} of {attempts}, failed: {reason.rstrip('.')}.")

    def waiting(self, clients: list[int], seconds: float) -> None:
        """Tell that these clients have not answered for so long."""
        named = ", ".join(map(str, clients[:10])) + (", ..." if len(clients) > 10 else "")
        noun = "client" if len(clients) == 1 else "clients"
        self._tell(f"Waiting for {noun} {named} since {seconds:.0f} s.")


class LossGrid(WrappedGrid):
    """Passes everything on, and tells at once of refusals and errors, and after a while of clients that are silent.
    `nodes` is the node of each client."""

    def __init__(self, grid: Grid, nodes: Mapping[int, int], teller: LossTeller) -> None:
        super().__init__(grid)
        self._nodes = nodes
        self._teller = teller
        self._asked: dict[str, int] = {}  # nodes that have not answered, by the message
        self._size = 0
        self._since = 0.0
        self._half: float | None = None  # seconds until half had answered
        self._told = False

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        outgoing = list(messages)
        identifiers = list(self._grid.push_messages(outgoing))
        nodes = [message.metadata.dst_node_id for message in outgoing]
        self._asked = dict(zip(identifiers, nodes, strict=True))
        self._size, self._since, self._half, self._told = len(nodes), time.monotonic(), None, False
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            reason = _refusal(reply)
            if node is not None and reason is not None:
                self._lost(node, reason)
        self._tell_of_waiting()
        return replies

    def _lost(self, node: int, reason: str) -> None:
        for client in self._clients({node}):
            self._teller.lost(client, reason)

    def _tell_of_waiting(self) -> None:
        waited = time.monotonic() - self._since
        if self._half is None and 2 * len(self._asked) <= self._size:
            self._half = waited
        limit = _NO_ANSWER if self._half is None else max(_PATIENCE, 2 * self._half)
        if self._asked and not self._told and waited > limit:
            self._told = True
            self._teller.waiting(self._clients(set(self._asked.values())), waited)

    def _clients(self, nodes: set[int]) -> list[int]:
        return sorted(client for client, node in self._nodes.items() if node in nodes)


def _refusal(reply: Message) -> str | None:
    """Return why a node does not do its part; None if it does."""
    if reply.has_error():
        return clean_text(reply.error.reason or f"error {reply.error.code}")
    own = reply.content.config_records.get(RECORD)
    return None if own is None or REFUSAL not in own else clean_text(own[REFUSAL])
