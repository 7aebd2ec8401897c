"""What a device remembers between messages, as bytes for Flower's `Context.state`.

A node runs a new process for every message, so the state is the only memory. It holds at most two
rounds: one whose vector has left, and the next one, whose keys may be exchanged ahead. Secrets
are dropped as soon as the protocol no longer needs them: the keys and the seed when the vector
leaves, the rest with the round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from ..errors import Malformed, Refusal
from ..wire import HASH_BYTES, MessageKind, Reader, Writer
from ..x25519 import PUBLIC_BYTES
from .keys import SHARES_BYTES
from .settings import PairwiseSettings

PEER_BYTES = PUBLIC_BYTES + 32  # the peer's key s, and the key that opens its shares


class DeviceStage(IntEnum):
    """The last step that a device has taken in a round."""

    ADVERTISED = 1
    SHARED = 2
    SPENT = 3  # charged: the train handler runs, or has failed
    MASKED = 4
    SIGNED = 5


@dataclass
class Session:
    """One open round. Tables are by position in the cohort."""

    settings: PairwiseSettings
    stage: DeviceStage
    private_c: bytes = b""
    private_s: bytes = b""
    seed: bytes = b""
    context: bytes = b""
    members: tuple[int, ...] = ()
    peers: dict[int, bytes] = field(default_factory=dict)
    broadcast: bytes = b""
    alive: tuple[int, ...] = ()
    shares: dict[int, bytes] = field(default_factory=dict)
    signed: bytes = b""

    def encode(self) -> bytes:
        """Return the round as bytes."""
        n = self.settings.n
        out = Writer(MessageKind.STATE).blob(self.settings.encoded).u8(self.stage)
        for secret in (self.private_c, self.private_s, self.seed, self.context):
            out.blob(secret)
        out.members(n, self.members).table(n, self.peers).blob(self.broadcast)
        return out.members(n, self.alive).table(n, self.shares).blob(self.signed).done()

    @classmethod
    def decode(cls, data: bytes) -> Session:
        """Return the round in these bytes."""
        reader = Reader(data, MessageKind.STATE)
        settings = PairwiseSettings.decode(reader.blob())
        n = settings.n
        try:
            stage = DeviceStage(reader.u8())
        except ValueError as error:
            raise Malformed("The device's state is damaged.") from error
        session = cls(
            settings,
            stage,
            private_c=reader.blob(),
            private_s=reader.blob(),
            seed=reader.blob(),
            context=reader.blob(),
            members=reader.members(n),
            peers=reader.table(n, PEER_BYTES),
            broadcast=reader.blob(),
            alive=reader.members(n),
            shares=reader.table(n, SHARES_BYTES),
            signed=reader.blob(),
        )
        reader.end()
        return session


@dataclass
class DeviceState:
    """The highest round seen in this run, and the open rounds by the hash of their settings."""

    last_round: int = -1
    sessions: dict[bytes, Session] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the state as bytes."""
        out = Writer(MessageKind.STATE).u64(self.last_round + 1).u8(len(self.sessions))
        for digest, session in self.sessions.items():
            out.raw(digest).blob(session.encode())
        return out.done()

    @classmethod
    def decode(cls, data: bytes) -> DeviceState:
        """Return the state in these bytes; no bytes are the state of a new device."""
        if not data:
            return cls()
        reader = Reader(data, MessageKind.STATE)
        state = cls(last_round=reader.u64() - 1)
        for _ in range(reader.u8()):
            digest = reader.raw(HASH_BYTES)
            state.sessions[digest] = Session.decode(reader.blob())
        reader.end()
        return state

    def open(self, session: Session) -> None:
        """Start a round. Rounds whose vector never left are forgotten, and at most one other round stays."""
        waiting = [
            (digest, other)
            for digest, other in self.sessions.items()
            if other.stage >= DeviceStage.MASKED
        ]
        self.sessions = dict(waiting[-1:])
        self.sessions[session.settings.digest] = session
        self.last_round = session.settings.round

    def at(self, digest: bytes, *stages: DeviceStage) -> Session:
        """Return the round of a request, which must have taken exactly the step before."""
        session = self.sessions.get(digest)
        if session is None:
            raise Refusal(
                "The request is about a round that this device does not know or has ended."
            )
        if session.stage not in stages:
            raise Refusal(
                f"Round {session.settings.round} has reached the step {session.stage.name.lower()} "
                "on this device: the request is out of order or repeated."
            )
        return session
