"""The settings of a round in two trips.

What does not change from round to round travels once and is then named by its hash: the cohort of an epoch, and the
terms. Together with the number and the nonce of the round, and with the epoch's keys of all its clients, they make the
round's context. Every number that two devices share depends on it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeVar

from ..errors import Malformed, SettingsError
from ..settings import RoundSettings, Scalar, Sizes, get_application, put_application
from ..wire import HASH_BYTES, MessageKind, Reader, Writer
from .shape import Shape

LONGEST_EPOCH = 256  # rounds


@dataclass(frozen=True)
class Cohort:
    """The clients of a sum, in ascending order, and the epoch whose keys they use. `closed` promises that no other
    client comes in this epoch."""

    run: int
    epoch: int
    closed: bool
    ids: tuple[int, ...]

    @cached_property
    def encoded(self) -> bytes:
        """The canonical encoding."""
        out = Writer(MessageKind.COHORT).u64(self.run).u64(self.epoch).u8(self.closed)
        return out.u32(len(self.ids)).raw(struct.pack(f"<{len(self.ids)}Q", *self.ids)).done()

    @cached_property
    def digest(self) -> bytes:
        """The hash by which the cohort is named."""
        return hashlib.sha256(self.encoded).digest()

    @classmethod
    @lru_cache(maxsize=16)  # a process that simulates many devices decodes the same bytes for each
    def decode(cls, data: bytes) -> Cohort:
        """Return the cohort in these bytes."""
        reader = Reader(data, MessageKind.COHORT)
        run, epoch, closed, n = reader.u64(), reader.u64(), reader.u8(), reader.u32()
        if closed > 1:
            raise Malformed("A flag is neither 0 nor 1.")
        ids = struct.unpack(f"<{n}Q", reader.view(8 * n))
        reader.end()
        return cls(run, epoch, bool(closed), ids)


@dataclass(frozen=True)
class Terms:
    """What the rounds of one kind have in common. `total` counts the clients of all groups."""

    total: int
    groups: int
    drops: int
    losses: int
    colluders: int
    dim: int
    bits: int
    application: Mapping[str, Scalar] = field(default_factory=dict)

    @cached_property
    def encoded(self) -> bytes:
        """The canonical encoding."""
        out = Writer(MessageKind.TERMS)
        for number in (self.total, self.groups, self.drops, self.losses, self.colluders, self.dim):
            out.u32(number)
        out.u8(self.bits)
        put_application(out, self.application)
        return out.done()

    @cached_property
    def digest(self) -> bytes:
        """The hash by which the terms are named."""
        return hashlib.sha256(self.encoded).digest()

    @classmethod
    @lru_cache(maxsize=16)
    def decode(cls, data: bytes) -> Terms:
        """Return the terms in these bytes."""
        reader = Reader(data, MessageKind.TERMS)
        total, groups, drops, losses, colluders, dim = (reader.u32() for _ in range(6))
        bits, application = reader.u8(), get_application(reader)
        reader.end()
        return cls(total, groups, drops, losses, colluders, dim, bits, application)


Part = TypeVar("Part", Cohort, Terms)
_KNOWN = 4  # cohorts, and terms, that a device remembers


def with_last(known: Mapping[bytes, Part], part: Part) -> dict[bytes, Part]:
    """Return the parts that were used last, by their hashes. Both sides keep the same."""
    others = [digest for digest in known if digest != part.digest]
    return {**{digest: known[digest] for digest in others[-(_KNOWN - 1) :]}, part.digest: part}


def static_digest(cohort: Cohort, terms: Terms) -> bytes:
    """Return the name of what does not change from round to round."""
    return hashlib.sha256(b"secagg/2 static" + cohort.digest + terms.digest).digest()


@dataclass(frozen=True, kw_only=True)
class TwoTripsSettings(RoundSettings):
    """One round of one group. `keys` is the hash of the public keys of its clients, in the order of the cohort. `key`
    is the hash of the device's own public key of the epoch, for its guard: empty on the server, and in no digest."""

    epoch: int
    closed: bool
    losses: int
    total: int
    keys: bytes
    key: bytes = b""

    @classmethod
    def of(
        cls, cohort: Cohort, terms: Terms, round: int, nonce: bytes, keys: bytes, key: bytes = b""
    ) -> TwoTripsSettings:
        """Return the settings of a round. Raise `SettingsError` if a rule is broken."""
        return cls(
            run=cohort.run,
            round=round,
            nonce=nonce,
            cohort=cohort.ids,
            drops=terms.drops,
            colluders=terms.colluders,
            groups=terms.groups,
            dim=terms.dim,
            bits=terms.bits,
            application=terms.application,
            epoch=cohort.epoch,
            closed=cohort.closed,
            losses=terms.losses,
            total=terms.total,
            keys=keys,
            key=key,
        )

    @property
    def sizes(self) -> Sizes:
        """The numbers of clients in a sum."""
        return Sizes(self.total, self.drops, self.colluders, self.groups)

    @cached_property
    def shape(self) -> Shape:
        """The numbers of the sharing."""
        return Shape(self.n, self.drops, self.losses, self.colluders, self.dim, self.bits)

    @property
    def modulus(self) -> int:
        """The number modulo which vectors are summed: the largest prime of so many bits."""
        return self.shape.modulus

    @property
    def withstands_lies(self) -> bool:
        """Always."""
        return True

    @cached_property
    def digest(self) -> bytes:
        """The round's context, by which everything of the round is bound together."""
        named = static_digest(self.announced, self.terms)
        moment = struct.pack("<Q", self.round) + self.nonce
        return hashlib.sha256(b"secagg/2 round" + named + moment + self.keys).digest()

    @property
    def announced(self) -> Cohort:
        """The cohort as it is announced."""
        return Cohort(self.run, self.epoch, self.closed, self.cohort)

    @property
    def terms(self) -> Terms:
        """What the rounds of this kind have in common."""
        return Terms(
            self.total, self.groups, self.drops, self.losses, self.colluders, self.dim, self.bits,
            self.application,
        )  # fmt: skip

    def _check_rules(self) -> None:
        if not 0 <= self.round - self.epoch < LONGEST_EPOCH:
            raise SettingsError(
                f"An epoch has at most {LONGEST_EPOCH} rounds, and begins with its first."
            )
        if not 1 <= self.groups <= self.total // 2:
            raise SettingsError("A group has 2 clients at least.")
        if self.n not in (self.sizes.fewest, self.sizes.most):
            raise SettingsError(
                f"A group of {self.n} of {self.total} clients is not one of {self.groups}."
            )
        if self.losses < 0 or len(self.keys) != HASH_BYTES:
            raise SettingsError("The losses or the hash of the keys are no such thing.")
        if len(self.key) not in (0, HASH_BYTES):
            raise SettingsError("The hash of the device's key has a wrong length.")
        _ = self.shape  # raises if a rule of the sharing is broken
