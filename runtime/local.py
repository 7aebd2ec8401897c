"""Runs all clients in this process: a Grid that calls the ClientApp itself, and keeps a state for each node.

There is no serialisation, no queue and no polling, so a round costs little more than its arithmetic. Messages are still
Flower's, and a handler that raises becomes an error reply, as everywhere else. So does one that takes longer than the
timeout. Clients run one after the other here, so each client alone has the time that all clients share in other
runtimes, and the result of a late client is dropped.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict, UserConfigValue
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

# Flower stamps new messages with this identity, which is global to the process, and has no public way to set it.
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1
SERVER_ID = 1
CLIENT_APP_RAISED = 2  # Flower's error code for a handler that raised
TOO_LATE = 5  # Flower's error code for a reply that comes too late
log = logging.getLogger(__name__)


class LocalGrid(Grid):
    """Nodes 2 to n + 1 in this process (1 is the server), each with its own state, and with `timeout` seconds to
    answer."""

    def __init__(self, client_app: ClientApp, nodes: int, timeout: float = math.inf) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, SERVER_ID, 1
        self._app = client_app
        self._timeout = timeout
        self._nodes = range(SERVER_ID + 1, SERVER_ID + 1 + nodes)
        self._states: dict[int, RecordDict] = {}  # only of nodes that keep something
        # Only of nodes that have a device folder with keys, policy and ledger.
        self.folders: dict[int, Path] = {}
        self._numbers = count(1)
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer every message immediately; the replies are kept until they are pulled."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"{next(self._numbers):032x}"
            self._replies[message.metadata.message_id] = self._answer(message)
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(key) for key in list(message_ids) if key in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        """Do nothing, because there is only one run."""

    @property
    def run(self) -> Any:
        raise RuntimeError("The local runtime has no Run record.")

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        place: dict[str, UserConfigValue] = {
            "partition-id": self._nodes.index(node),
            "num-partitions": len(self._nodes),
        }
        if node in self.folders:
            place["device"] = str(self.folders[node])
        context = Context(
            run_id=RUN_ID,
            node_id=node,
            node_config=place,
            state=self._states.get(node, RecordDict()),
            run_config={},
        )
        began = time.monotonic()
        try:
            reply = self._app(message, context)
        except Exception as error:  # a failing device must not end the server
            log.info("Node %d failed", context.node_id, exc_info=True)
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)
        finally:
            if context.state:
                self._states[node] = context.state
        took = time.monotonic() - began
        if took > self._timeout:
            reason = f"It took {took:.3g} s, longer than clients.timeout={self._timeout:g}."
            return Message(Error(TOO_LATE, reason), reply_to=message)
        return reply
