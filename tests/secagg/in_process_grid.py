"""A Flower Grid that runs a ClientApp in this process. It needs Flower only, and nothing of this project."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RUN = 7


def begin(set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Say who this process is, which Flower's messages ask; the process of a ServerApp is told by Flower itself."""
    for name, value in (("_run_id", RUN), ("_node_id", 1), ("_task_id", 1)):
        set_attribute(TaskIdentity, name, value)


class InProcessGrid(Grid):
    """Calls a ClientApp for every message, with one lasting Context per node.

    `failing` decides which messages fail as Flower reports it; `log` keeps every message and reply.
    """

    def __init__(self, app: ClientApp, nodes: Iterable[int]) -> None:
        self.app = app
        self.contexts = {
            i: Context(RUN, i, {"partition-id": p}, RecordDict(), {}) for p, i in enumerate(nodes)
        }
        self.failing: Callable[[Message], Error | None] = lambda message: None
        self.silent: Callable[[Message], bool] = lambda message: False
        self.log: list[tuple[Message, Message]] = []
        self._waiting: dict[str, Message] = {}
        self._ids = count(1)

    @property
    def run(self) -> Any:
        return type("Run", (), {"run_id": RUN})()

    def set_run(self, run: Any) -> None:
        raise AssertionError("not used")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("not used")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            identifier = f"m{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = identifier
            ids.append(identifier)
            if not self.silent(message):
                self._waiting[identifier] = self._deliver(message)
                self.log.append((message, self._waiting[identifier]))
        return ids

    def _deliver(self, message: Message) -> Message:
        error = self.failing(message)
        if error is not None:
            reply = Message(error, reply_to=message)
            if error.code == 5:
                reply.metadata.__dict__["_src_node_id"] = 1
            return reply
        context = self.contexts[message.metadata.dst_node_id]
        copy = Message(
            RecordDict(dict(message.content)),
            message.metadata.dst_node_id,
            message.metadata.message_type,
        )
        copy.metadata.__dict__["_message_id"] = message.metadata.message_id
        return self.app(copy, context)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._waiting.pop(i) for i in message_ids if i in self._waiting]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(list(messages)))
