"""The settings of a round, which the server proposes and every device checks by itself.

The settings have one canonical encoding; its hash goes into every signature and every key of the
round, so two devices that were shown different settings cannot finish a round together. Rules
(derived in part; the same as in Google's secure aggregation), with n clients, D tolerated drops
and A colluders with the server:

- share threshold t >= floor((h + A) / 2) + 1 for the h holders of a secret (a client's neighbours
  and itself): the shares that h - A honest holders give once and A colluders give twice never
  make both secrets of a client;
- quorum q >= floor((n + A) / 2) + 1: two different survivor lists never both get a quorum of
  signatures;
- n - D >= max(t, q): the tolerated drops do not stop the round.

With signed survivor lists (`consistency`) the graph is complete: n <= 1,024, and a sparse graph is
refused, because a server that lies about dropouts cuts it. Without them more than 128 clients may form
a ring, whose threshold follows Bell et al. for a semi-honest server. Groups are complete graphs of at
most 1,024 clients each. Every group obeys the rules alone and with all A colluders inside it, because
who is in which group may be steered.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from . import graph
from .errors import Malformed, SettingsError
from .packing import LARGEST_RING, SMALLEST_RING
from .wire import HASH_BYTES, MAX_MEMBERS, MessageKind, Reader, Writer

NONCE_BYTES = 16
MAX_DIM = 2**31
MAX_APPLICATION = 64

Scalar = bool | int | float | str | bytes


@dataclass(frozen=True)
class RoundSettings:
    """One round, as hashed and signed. `cohort` ascends; `drops` counts per group.

    `application` is what the application commits to (clip, scale, noise, ...): it is covered by
    the hash and is for the device's guard and codec to judge. `broadcast` is the hash of the
    content of the train message, or empty when the keys were exchanged before it was known;
    either way the hash of what a device really received goes into its masks and its signature.
    """

    run: int
    round: int
    nonce: bytes
    cohort: tuple[int, ...]
    degree: int
    threshold: int
    quorum: int
    drops: int
    colluders: int
    groups: int
    consistency: bool
    dim: int
    bits: int
    broadcast: bytes
    application: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_fields()
        self._check_rules()

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.cohort)

    @property
    def sizes(self) -> Sizes:
        """The numbers of clients in a sum."""
        return Sizes(self.n, self.drops, self.colluders, self.groups)

    @property
    def complete(self) -> bool:
        """Whether every client of a sum exchanges masks with every other."""
        return self.groups > 1 or self.degree == self.n - 1

    def threshold_of(self, members: int) -> int:
        """Return the share threshold in a group of this many clients."""
        return self.threshold if self.groups == 1 else majority(members, self.colluders)

    def quorum_of(self, members: int) -> int:
        """Return the quorum of signatures in a group of this many clients."""
        return self.quorum if self.groups == 1 else majority(members, self.colluders)

    def index(self, node: int) -> int | None:
        """Return the position of a node in the cohort; None if it is not in it."""
        return self._places.get(node)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {node: place for place, node in enumerate(self.cohort)}

    @cached_property
    def digest(self) -> bytes:
        """The hash of the settings, by which all messages and keys are bound to the round."""
        return hashlib.sha256(b"secagg/1 settings" + self.encoded).digest()

    @cached_property
    def encoded(self) -> bytes:
        """The canonical encoding, which is also the request of the first stage."""
        out = Writer(MessageKind.ADVERTISE_REQUEST).u64(self.run).u64(self.round).raw(self.nonce)
        out.u32(self.n).raw(struct.pack(f"<{self.n}Q", *self.cohort))
        for number in (self.degree, self.threshold, self.quorum, self.drops, self.colluders):
            out.u32(number)
        out.u32(self.groups).u8(self.consistency).u32(self.dim).u8(self.bits)
        out.blob(self.broadcast).u8(len(self.application))
        for key in sorted(self.application):
            out.blob(key.encode())
            _put_scalar(out, self.application[key])
        return out.done()

    @classmethod
    @lru_cache(maxsize=4)  # a process that simulates many devices decodes the same bytes for each
    def decode(cls, data: bytes) -> RoundSettings:
        """Return the settings in these bytes. Raise `Malformed` or, if a rule is broken, `SettingsError`."""
        reader = Reader(data, MessageKind.ADVERTISE_REQUEST)
        run, round_, nonce = reader.u64(), reader.u64(), reader.raw(NONCE_BYTES)
        n = reader.u32()
        cohort = struct.unpack(f"<{n}Q", reader.view(8 * n))
        degree, threshold, quorum, drops, colluders, groups = (reader.u32() for _ in range(6))
        consistency = reader.u8()
        if consistency > 1:
            raise Malformed("A flag is neither 0 nor 1.")
        dim, bits, broadcast = reader.u32(), reader.u8(), reader.blob()
        application: dict[str, Scalar] = {}
        last = ""
        for _ in range(reader.u8()):
            try:
                key = reader.blob().decode()
            except UnicodeDecodeError as error:
                raise Malformed("A name is not text.") from error
            if application and key <= last:
                raise Malformed("The names of the application are not in order.")
            application[key] = _get_scalar(reader)
            last = key
        reader.end()
        return cls(
            run, round_, nonce, cohort, degree, threshold, quorum, drops, colluders, groups,
            bool(consistency), dim, bits, broadcast, application,
        )  # fmt: skip

    def _check_fields(self) -> None:
        if not all(0 <= number < 2**64 for number in (self.run, self.round, *self.cohort)):
            raise SettingsError("The run, the round and the node ids are 64-bit numbers.")
        if not 2 <= self.n <= MAX_MEMBERS:
            raise SettingsError(f"A cohort has 2 to {MAX_MEMBERS} clients, not {self.n}.")
        if any(a >= b for a, b in zip(self.cohort, self.cohort[1:], strict=False)):
            raise SettingsError("The cohort's ids are not distinct and ascending.")
        if len(self.nonce) != NONCE_BYTES or len(self.broadcast) not in (0, HASH_BYTES):
            raise SettingsError("The nonce or the hash of the broadcast has a wrong length.")
        if not 1 <= self.dim < MAX_DIM:
            raise SettingsError(f"A vector has 1 to {MAX_DIM - 1} coordinates, not {self.dim}.")
        if not SMALLEST_RING <= self.bits <= LARGEST_RING:
            raise SettingsError(
                f"A ring has {SMALLEST_RING} to {LARGEST_RING} bits, not {self.bits}."
            )
        if len(self.application) > MAX_APPLICATION:
            raise SettingsError(f"The application commits to at most {MAX_APPLICATION} values.")

    def _check_rules(self) -> None:
        if min(self.drops, self.colluders) < 0 or not 1 <= self.groups <= self.n // 2:
            raise SettingsError(
                "Drops and colluders are counts, and a group has 2 clients at least."
            )
        sizes = self.sizes
        if sizes.least < sizes.needed:
            raise SettingsError(
                f"{sizes.most} clients with {self.drops} drops and {self.colluders} colluders cannot "
                f"finish: at least {sizes.needed} must stay, so tolerate "
                "fewer drops or colluders, or take a larger cohort."
            )
        need_threshold = self._complete_threshold() if self.complete else self._ring_threshold()
        if self.threshold < need_threshold or self.quorum < sizes.needed:
            raise SettingsError(
                f"The threshold {self.threshold} and the quorum {self.quorum} are below the rule's "
                f"{need_threshold} and {sizes.needed}."
            )
        if sizes.least < max(self.threshold, self.quorum):
            raise SettingsError(
                f"The threshold {self.threshold} or the quorum {self.quorum} is above the "
                f"{sizes.least} clients that stay in the worst case."
            )

    def _complete_threshold(self) -> int:
        most = self.sizes.most
        if self.degree != most - 1:
            raise SettingsError("A group is a complete graph: its degree is its size less one.")
        if most > graph.LARGEST_COMPLETE:
            if self.groups > 1:
                otherwise = "or make more groups"
            elif self.consistency:
                otherwise = (
                    "or set consistency to False, which promises less: it protects from a server that "
                    "follows the protocol, not from one that lies"
                )
            else:
                otherwise = "or tolerate fewer drops or colluders, so that a ring will do"
            raise SettingsError(
                f"At most {graph.LARGEST_COMPLETE} clients can all exchange masks with each other, not "
                f"{most}: ask fewer clients per round, {otherwise}."
            )
        return self.sizes.needed

    def _ring_threshold(self) -> int:
        if self.consistency:
            raise SettingsError(
                "With signed survivor lists every client exchanges masks with all others, because a "
                "server that lies about dropouts cuts a sparse graph: set the degree to n - 1."
            )
        if self.n <= graph.RINGS_ABOVE:
            raise SettingsError(
                f"Up to {graph.RINGS_ABOVE} clients the graph is complete: set the degree to n - 1."
            )
        if self.degree % 2 or not 0 < self.degree < self.n:
            raise SettingsError("A ring's degree is even and smaller than the cohort.")
        least, _ = graph.ring_parameters(self.n, self.colluders, self.drops)
        if self.degree < least:
            raise SettingsError(f"The ring's degree {self.degree} is below the rule's {least}.")
        return graph.threshold_range(self.n, self.degree, self.colluders, self.drops)[0]


def _put_scalar(out: Writer, value: Scalar) -> None:
    # bool first: it is an int to Python.
    if isinstance(value, bool):
        out.u8(0).u8(value)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise SettingsError("A whole number of the application does not fit 64 bits.")
        out.u8(1).raw(struct.pack("<q", value))
    elif isinstance(value, float):
        out.u8(2).raw(struct.pack("<d", value))
    elif isinstance(value, str):
        out.u8(3).blob(value.encode())
    else:
        out.u8(4).blob(value)


def _get_scalar(reader: Reader) -> Scalar:
    match reader.u8():
        case 0:
            flag = reader.u8()
            if flag > 1:
                raise Malformed("A flag is neither 0 nor 1.")
            return bool(flag)
        case 1:
            return int(struct.unpack("<q", reader.view(8))[0])
        case 2:
            return float(struct.unpack("<d", reader.view(8))[0])
        case 3:
            try:
                return reader.blob().decode()
            except UnicodeDecodeError as error:
                raise Malformed("A text of the application is not text.") from error
        case 4:
            return reader.blob()
        case _:
            raise Malformed("A value of the application has an unknown type.")


@dataclass(frozen=True)
class Sizes:
    """The numbers of a round with `n` clients in `groups`, whose sizes differ by at most one, with a sum for each.

    `drops` clients of each group may drop out. `colluders` clients may work with the server; they count in every group,
    because they may all be in one. So a released sum is over at least `least` and at most `most` clients, `colluders`
    of whom may work with the server.
    """

    n: int
    drops: int
    colluders: int
    groups: int = 1

    @classmethod
    def of(cls, n: int, drops: int | float, colluders: int | float, groups: int = 1) -> Sizes:
        """Return the numbers of a round with `n` clients. A float is a share (of the smallest group for `drops`, of all
        `n` clients for `colluders`), rounded down; an int is the number itself."""
        return cls(n, _count(drops, n // groups), _count(colluders, n), groups)

    @property
    def fewest(self) -> int:
        """The clients of the smallest group."""
        return self.n // self.groups

    @property
    def most(self) -> int:
        """The clients of the largest group."""
        return -(-self.n // self.groups)

    @property
    def least(self) -> int:
        """The clients that stay in the smallest group if all tolerated drops happen."""
        return self.fewest - self.drops

    @property
    def needed(self) -> int:
        """The smallest threshold and quorum of the largest group. With fewer clients to the end a round stops."""
        return majority(self.most, self.colluders)


def majority(members: int, colluders: int) -> int:
    """Return the smallest threshold or quorum among so many clients, of whom `colluders` answer twice."""
    return (members + colluders) // 2 + 1


def _count(value: int | float, n: int) -> int:
    return int(value * n) if isinstance(value, float) else value
