"""What a device remembers of its epochs, as bytes for Flower's `Context.state`. They stay in memory: a node that starts
again has new keys.

Secrets are dropped as soon as the protocol no longer needs them: the secret of a round when its answer has been made or
a later round is charged, the private key of an epoch when no more peers can come, an epoch when a round of a later one
is charged.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum

from ..errors import Malformed, Refusal
from ..settings import NONCE_BYTES
from ..wire import HASH_BYTES, MessageKind, Reader, Writer
from ..x25519 import PUBLIC_BYTES
from .keys import ADVERT_BYTES, KEY_BYTES, moved_on
from .settings import Cohort, Terms, TwoTripsSettings, static_digest, with_last

_EPOCHS = 2  # the current one, and the next, whose keys are exchanged ahead
_PEER_BYTES = PUBLIC_BYTES + KEY_BYTES


class TwoTripsStage(IntEnum):
    """What a device has done in the round that was charged last."""

    CHARGED = 1
    SHARED = 2
    ANSWERED = 3


@dataclass
class Epoch:
    """The keys of one epoch. `peers` maps a device, this one too, to its public key and the secret shared with it in
    the round `index` of the epoch. `private` is empty when it is no longer needed."""

    number: int
    private: bytes
    advert: bytes
    index: int = 0
    peers: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    @property
    def public(self) -> bytes:
        """This device's public key."""
        return self.advert[:PUBLIC_BYTES]

    def move_on(self, index: int) -> None:
        """Replace the secrets by those of a later round."""
        if index < self.index:
            raise Refusal("The secrets of this round were erased.")
        steps = index - self.index
        self.peers = {
            node: (public, moved_on(key, steps)) for node, (public, key) in self.peers.items()
        }
        self.index = index

    def encode(self, out: Writer) -> None:
        """Write the epoch."""
        out.u32(self.number).blob(self.private).raw(self.advert).u32(self.index)
        out.u32(len(self.peers)).raw(struct.pack(f"<{len(self.peers)}Q", *self.peers))
        out.raw(b"".join(public + key for public, key in self.peers.values()))

    @classmethod
    def decode(cls, reader: Reader) -> Epoch:
        """Read an epoch."""
        number, private, advert = reader.u32(), reader.blob(), reader.raw(ADVERT_BYTES)
        index, count = reader.u32(), reader.u32()
        nodes = struct.unpack(f"<{count}Q", reader.view(8 * count))
        table = reader.raw(_PEER_BYTES * count)
        rows = (table[at : at + _PEER_BYTES] for at in range(0, len(table), _PEER_BYTES))
        peers = {
            node: (row[:PUBLIC_BYTES], row[PUBLIC_BYTES:])
            for node, row in zip(nodes, rows, strict=True)
        }
        return cls(number, private, advert, index, peers)


@dataclass
class OpenRound:
    """The round that was charged last."""

    settings: TwoTripsSettings
    absent: tuple[int, ...]  # positions of those who gave no key
    stage: TwoTripsStage
    broadcast: bytes
    answer: bytes = b""
    answered: bytes = b""  # the hash of the list that it is about

    def encode(self, out: Writer) -> None:
        """Write the round."""
        settings = self.settings
        out.blob(settings.announced.encoded).blob(settings.terms.encoded)
        out.u64(settings.round).raw(settings.nonce).raw(settings.keys).blob(settings.key)
        out.members(settings.n, self.absent).u8(self.stage).raw(self.broadcast)
        out.blob(self.answer).blob(self.answered)

    @classmethod
    def decode(cls, reader: Reader) -> OpenRound:
        """Read a round."""
        cohort, terms = Cohort.decode(reader.blob()), Terms.decode(reader.blob())
        settings = TwoTripsSettings.of(
            cohort,
            terms,
            reader.u64(),
            reader.raw(NONCE_BYTES),
            reader.raw(HASH_BYTES),
            reader.blob(),
        )
        absent = reader.members(settings.n)
        try:
            stage = TwoTripsStage(reader.u8())
        except ValueError as error:
            raise Malformed("The device's state is damaged.") from error
        broadcast = reader.raw(HASH_BYTES)
        return cls(settings, absent, stage, broadcast, reader.blob(), reader.blob())


@dataclass
class Memory:
    """The context of the round that was charged last (empty before the first), that round if it may still be answered,
    the epochs by their numbers, and the cohorts and terms that the server may name."""

    charged: bytes = b""
    open: OpenRound | None = None
    epochs: dict[int, Epoch] = field(default_factory=dict)
    cohorts: dict[bytes, Cohort] = field(default_factory=dict)
    terms: dict[bytes, Terms] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the memory as bytes."""
        out = Writer(MessageKind.EPOCHS).blob(self.charged).u8(self.open is not None)
        if self.open is not None:
            self.open.encode(out)
        out.u8(len(self.epochs)).u8(len(self.cohorts)).u8(len(self.terms))
        for epoch in self.epochs.values():
            epoch.encode(out)
        for cohort in self.cohorts.values():
            out.blob(cohort.encoded)
        for terms in self.terms.values():
            out.blob(terms.encoded)
        return out.done()

    @classmethod
    def decode(cls, data: bytes) -> Memory:
        """Return the memory in these bytes; no bytes are that of a new device."""
        if not data:
            return cls()
        reader = Reader(data, MessageKind.EPOCHS)
        memory = cls(charged=reader.blob())
        if reader.u8():
            memory.open = OpenRound.decode(reader)
        counts = reader.u8(), reader.u8(), reader.u8()
        epochs = [Epoch.decode(reader) for _ in range(counts[0])]
        memory.epochs = {epoch.number: epoch for epoch in epochs}
        cohorts = [Cohort.decode(reader.blob()) for _ in range(counts[1])]
        memory.cohorts = {cohort.digest: cohort for cohort in cohorts}
        terms = [Terms.decode(reader.blob()) for _ in range(counts[2])]
        memory.terms = {one.digest: one for one in terms}
        reader.end()
        return memory

    def begin(self, epoch: Epoch) -> None:
        """Remember a new epoch, and forget the oldest if there are too many. That of the open round stays."""
        self.epochs[epoch.number] = epoch
        needed = -1 if self.open is None else self.open.settings.epoch
        for number in sorted(self.epochs)[:-_EPOCHS]:
            if number != needed:
                del self.epochs[number]

    def named(self, static: bytes) -> tuple[Cohort, Terms]:
        """Return the cohort and the terms of this name."""
        for cohort in self.cohorts.values():
            for terms in self.terms.values():
                if static_digest(cohort, terms) == static:
                    return cohort, terms
        raise Refusal("This device does not have the settings that the request names.")

    def learn(self, cohort: Cohort, terms: Terms) -> None:
        """Remember the parts that were used last, and a few before."""
        self.cohorts = with_last(self.cohorts, cohort)
        self.terms = with_last(self.terms, terms)
