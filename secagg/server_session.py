"""What both protocols look like from the server, one round and all rounds, without any transport."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol, TypeVar

from .codec import Sum, VectorFormat
from .settings import RoundSettings


class RoundStage(IntEnum):
    """What the devices are asked for, in order. A protocol takes some of the stages."""

    HELLO = 0
    ADVERTISE = 1
    SHARE = 2
    MASK = 3
    SIGN = 4
    UNMASK = 5
    ANSWER = 6
    DONE = 7


class Conversation(Protocol):
    """Stages with some nodes. The caller takes the requests of a stage, sends them, feeds every answer to `receive` and
    every failure to `lose`, and calls `close` when all answered or time is up."""

    @property
    def stage(self) -> RoundStage:
        """The stage that comes now."""

    def requests(self) -> dict[int, bytes]:
        """Return the request for every node that takes part in the stage."""

    def receive(self, node: int, body: bytes) -> None:
        """Process a node's answer. An invalid answer makes the node a dropout."""

    def lose(self, node: int, reason: str) -> None:
        """Note that a node failed, refused, or did not answer in time."""

    def close(self) -> None:
        """End the stage: nodes without an answer are lost, and the next stage begins. Raise `Aborted` if too few are
        left."""


class ServerSession(Conversation, Protocol):
    """One round."""

    @property
    def settings(self) -> RoundSettings:
        """The settings of the round. With groups that are rounds of their own, those of the first."""

    @property
    def lost(self) -> dict[int, str]:
        """The nodes that dropped out, with the stage and the reason."""

    @property
    def sums(self) -> list[Sum]:
        """The sum of each group, at the end."""


class Numbers:
    """The numbers of a run's rounds. Every round that is opened has a new one."""

    def __init__(self, first: int) -> None:
        self.next = first

    def draw(self) -> int:
        """Return the next number."""
        self.next += 1
        return self.next - 1


Own = TypeVar("Own", bound=ServerSession)


class Sessions(Protocol[Own]):
    """Makes the session of each round."""

    def begin(
        self,
        run: int,
        numbers: Numbers,
        nodes: Iterable[int],
        vector: VectorFormat,
        broadcast: bytes,
    ) -> Own:
        """Return the next round, in which these nodes answer this broadcast with such vectors."""

    def ahead(
        self, session: Own, numbers: Numbers, nodes: Iterable[int] | None, vector: VectorFormat
    ) -> Conversation | None:
        """Return what goes with the messages of the coming stage to prepare a round with these nodes, if they are
        known; None if nothing does."""

    def drop_ahead(self) -> None:
        """Forget what was to be prepared."""
