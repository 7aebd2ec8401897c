"""What every round has, whichever protocol sums it: who takes part, and what is summed.

The server proposes the settings and every device checks them by itself. They have one canonical encoding, and its
hash goes into every key of the round, so two devices that were shown different settings cannot finish a round
together.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .errors import Malformed, SettingsError
from .packing import LARGEST_RING, SMALLEST_RING
from .wire import MAX_MEMBERS, Reader, Writer

NONCE_BYTES = 16
MAX_DIM = 2**31
MAX_APPLICATION = 64

Scalar = bool | int | float | str | bytes


@dataclass(frozen=True, kw_only=True)
class RoundSettings(ABC):
    """One round. `cohort` ascends; `drops` counts per group.

    `application` is what the application commits to (clip, scale, noise, ...): it is covered by
    the hash and is for the device's guard and codec to judge.
    """

    run: int
    round: int
    nonce: bytes
    cohort: tuple[int, ...]
    drops: int
    colluders: int
    groups: int
    dim: int
    bits: int
    application: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_fields()
        self.check_rules()

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.cohort)

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """The numbers of clients in a sum."""

    @property
    @abstractmethod
    def digest(self) -> bytes:
        """The hash of the settings, by which all messages and keys are bound to the round."""

    @property
    @abstractmethod
    def modulus(self) -> int:
        """The number modulo which vectors are summed."""

    @property
    @abstractmethod
    def withstands_lies(self) -> bool:
        """Whether the guarantee holds against a server that lies, and not only against one that follows the
        protocol."""

    def index(self, node: int) -> int | None:
        """Return the position of a node in the cohort; None if it is not in it."""
        return self._places.get(node)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {node: place for place, node in enumerate(self.cohort)}

    def _check_fields(self) -> None:
        if not all(0 <= number < 2**64 for number in (self.run, self.round, *self.cohort)):
            raise SettingsError("The run, the round and the node ids are 64-bit numbers.")
        if not 2 <= self.n <= MAX_MEMBERS:
            raise SettingsError(f"A cohort has 2 to {MAX_MEMBERS} clients, not {self.n}.")
        if any(a >= b for a, b in zip(self.cohort, self.cohort[1:], strict=False)):
            raise SettingsError("The cohort's ids are not distinct and ascending.")
        if len(self.nonce) != NONCE_BYTES:
            raise SettingsError("The nonce has a wrong length.")
        if min(self.drops, self.colluders) < 0:
            raise SettingsError("Drops and colluders are counts.")
        if not 1 <= self.dim < MAX_DIM:
            raise SettingsError(f"A vector has 1 to {MAX_DIM - 1} coordinates, not {self.dim}.")
        if not SMALLEST_RING <= self.bits <= LARGEST_RING:
            raise SettingsError(
                f"A ring has {SMALLEST_RING} to {LARGEST_RING} bits, not {self.bits}."
            )
        if len(self.application) > MAX_APPLICATION:
            raise SettingsError(f"The application commits to at most {MAX_APPLICATION} values.")

    @abstractmethod
    def check_rules(self) -> None:
        """Raise `SettingsError` if the numbers break a rule of the protocol."""


def put_application(out: Writer, application: Mapping[str, Scalar]) -> None:
    """Write what the application commits to, in the order of its names."""
    out.u8(len(application))
    for key in sorted(application):
        out.blob(key.encode())
        _put_scalar(out, application[key])


def get_application(reader: Reader) -> dict[str, Scalar]:
    """Return what the application commits to."""
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
    return application


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
        return cls(n, count_of(drops, n // groups), count_of(colluders, n), groups)

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


def count_of(value: int | float, n: int) -> int:
    """Return a share of n, rounded down, or the number itself."""
    return int(value * n) if isinstance(value, float) else value
