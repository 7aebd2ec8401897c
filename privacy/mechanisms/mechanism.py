"""A mechanism: how a device turns what it computed into an upload, and what that upload costs in privacy.

There is one frozen object per round. A strategy chooses it on the server. It is sent once, as a flat record inside the
round's settings. The device's guard (the code that decides whether the device takes part) checks this record, and the
device then uses exactly the record that was checked. Every question about the privacy of a round is answered by this
object:

| where | what |
|---|---|
| device | `run`, which usually calls `release`: clip every row, add the rows up, add noise, encode |
| server | `total`: the sum of the uploads in real numbers; `noise_std`: its noise; `noise_alone`: the server's noise |
| accountant | `release_to`: the release that an adversary sees, for a protected unit |
| network | `to_record`, and `mechanism_from_record`, which checks everything that it reads |

Only mechanisms create an `Upload`, so nothing leaves a device in any other way.

A row is what one unit contributes: the vector of a client, or one vector per example. Adjacency is zero-out
everywhere: the rows of the unit are replaced by zeros, and its device still adds its noise.

The amount of noise is always given as a variance in the mechanism's own units. `variance_per_device` is the variance
that one device adds; the variances of several devices add up.

A mechanism that adds noise during training (`noisy_training`) runs the training itself, so that the data can only be
reached through the mechanism.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedsketch.errors import UnsafeUpdateError, UnsoundMechanismError
from fedsketch.privacy.accounting.releases import Adversary, Release, SecretDraw, Unit
from fedsketch.privacy.mechanisms.bound_half import BoundHalf
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.rows import Rows

if TYPE_CHECKING:
    import torch

Scalar = bool | int | float | str | bytes
KIND = "mechanism"  # the key under which a record names the kind of mechanism
WIRE_NAME = "wire name"  # in the metadata of a field that has another name in records


@dataclass(frozen=True)
class Upload:
    """A vector that may leave a device. Only mechanisms create uploads (tests/test_architecture.py checks this)."""

    vector: NDArray[np.generic]


class RingShape(NamedTuple):
    """Uploads are vectors of `dim` integers of `bits` bits, modulo `modulus`. Only such vectors can be summed under
    masks."""

    dim: int
    bits: int
    modulus: int


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Subclasses are frozen dataclasses of plain numbers, so that they can be sent, compared and hashed."""

    kind: ClassVar[str]
    additive: ClassVar[bool] = True  # whether the server may work with the sum of uploads alone
    takes_rows: ClassVar[bool] = True  # whether it adds noise to rows, not inside of training
    can_protect_sum: ClassVar[bool] = False  # whether `protect_sum` is implemented
    unit: Unit = Unit.CLIENT  # what one row belongs to
    rows: int = 1  # the largest number of rows that one device adds up

    # ------------------------------------------------------------------ on the device
    @property
    @abstractmethod
    def bound(self) -> float | None:
        """The largest L2 norm of a row after clipping. None means no bound, and therefore no privacy."""

    def run(self, half: BoundHalf, stream: Stream, round: int) -> Upload:
        """Return the device's part of a round. `round` is public: it seeds whatever all devices must do in the same
        way."""
        return self.protect(half.rows(), stream, round)

    def protect(self, rows: torch.Tensor, stream: Stream, round: int) -> Upload:
        """Clip every row, add the rows up, add noise to the sum and encode it."""
        raise UnsafeUpdateError(
            f"the mechanism {self.kind} cannot add noise to rows that are already computed."
        )

    @property
    def takes_blocks(self) -> bool:
        """Whether it clips rows block by block and needs only their sum (`BoundHalf.blocks`)."""
        return False

    def protect_sum(
        self, rows: torch.Tensor | Sequence[Rows], counts: Sequence[int], stream: Stream, round: int
    ) -> Upload:
        """Return, for simulations, the sum of the uploads of several devices, with their noise drawn in one go.

        `counts` says how many of the rows belong to each device. The result has the same distribution as the sum of
        the devices' separate uploads.
        """
        raise UnsafeUpdateError(f"the mechanism {self.kind} draws noise for one device at a time.")

    @property
    def local_steps(self) -> int:
        """How many times a round reads the device's data."""
        return 1

    @property
    def reach(self) -> float | None:
        """The signal that a plan compares with the noise: the norm of one clipped row, or of local training in which
        all rows point the same way. None means no bound."""
        return self.bound

    def protect_nothing(self, stream: Stream) -> Upload:
        """Return what a device without an update sends if uploads are masked: its noise alone."""
        raise self._unmaskable()

    # ------------------------------------------------------------------ on the server
    def with_bound(self, bound: float) -> Self:
        """Return the same mechanism for rows with another bound, or a bound at most a millionth smaller. Noise and
        resolution scale with the bound, so the release costs the same."""
        raise UnsoundMechanismError(f"The bound of the mechanism {self.kind} is fixed.")

    @abstractmethod
    def total(self, vectors: Sequence[NDArray[Any]], round: int) -> NDArray[np.float64]:
        """Return the sum of the uploads in real numbers. A vector may itself be a sum that was made under masks."""

    def fault(self, vector: NDArray[Any], dim: int) -> str | None:
        """Return what is wrong with the upload of a row of `dim` numbers; None if nothing is."""
        if vector.shape != (dim,):
            return f"sent numbers of shape {vector.shape} instead of {dim}"
        kind = np.floating if self.ring is None else np.unsignedinteger
        if not np.issubdtype(vector.dtype, kind):
            return f"sent {vector.dtype} instead of {kind.__name__} numbers"
        if not np.isfinite(vector).all():
            return "sent numbers that are not finite"
        return None

    def sent(self, dim: int) -> int:
        """Return how many numbers a device sends on average for a row of `dim` numbers."""
        return dim

    def typical_upload(self, dim: int) -> NDArray[np.generic]:
        """Return an array of zeros with the type and the average size of the upload of a row of `dim` numbers."""
        return np.zeros(dim, np.float32 if self.ring is None else np.uint64)

    def noise_alone(self, dim: int, variance: float, stream: Stream) -> NDArray[np.generic]:
        """Return an upload that contains only noise. The server adds it to a sum that has too little noise."""
        raise UnsafeUpdateError(f"in the mechanism {self.kind} only devices add noise.")

    @property
    @abstractmethod
    def variance_per_device(self) -> float:
        """Variance of the noise that one device adds, in the mechanism's own units."""

    @abstractmethod
    def noise_std(self, variance: float) -> float:
        """Return the standard deviation, in real numbers, that noise of this variance has in each number of a sum."""

    @property
    def ring(self) -> RingShape | None:
        """The ring in which uploads are added up. None means real numbers, which cannot be masked."""
        return None

    def facts(self) -> dict[str, str]:
        """Return what a plan says about this mechanism, besides its noise."""
        return {}

    # ------------------------------------------------------------------ for the accountant
    @abstractmethod
    def release_to(
        self, variance: float, protected: Unit, sampling: SecretDraw, adversary: Adversary
    ) -> Release:
        """Return the release that the adversary sees. `variance` is that of all noise in the sum that it does not
        know."""

    @abstractmethod
    def noise_multiplier(self, variance: float, protected: Unit) -> float:
        """Return the standard deviation of noise of this variance, divided by how far one protected unit can move the
        sum."""

    def weight(self, protected: Unit) -> int:
        """Return how far a protected unit can move the sum, in multiples of the bound of one row.

        A client is all of its rows. An example is one row if rows belong to examples. If a row belongs to a whole
        client, one example can turn it into any other row, and two rows can be twice the bound apart.
        """
        if protected is Unit.CLIENT:
            return self.rows
        return 1 if self.unit is Unit.EXAMPLE else 2 * self.rows

    # ------------------------------------------------------------------ on the wire
    def to_record(self) -> dict[str, Scalar]:
        """Return a flat dictionary for a ConfigRecord. Fields that have their default value are left out."""
        record: dict[str, Scalar] = {KIND: self.kind}
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                record[_wire_name(one)] = value.value if isinstance(value, Unit) else value
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the inverse of `to_record`. Raises if a field is missing, unknown, of the wrong type or out of
        range."""
        wanted = {_wire_name(one): one for one in fields(cls)}
        needed = [name for name, one in wanted.items() if one.default is MISSING]
        for name in [*record, *needed]:
            if name not in wanted or name not in record:
                problem = "lacks" if name in wanted else "holds an unknown"
                raise UnsoundMechanismError(
                    f"The mechanism {problem} {name!r}: use one version everywhere."
                )
        for name, value in record.items():
            if not _valid(value, str(wanted[name].type)):
                raise UnsoundMechanismError(f"The mechanism has an invalid {name!r}.")
        values = {wanted[name].name: value for name, value in record.items()}
        made = cls(**{**values, "unit": Unit(str(record.get("unit", Unit.CLIENT.value)))})
        made.check()
        return made

    @abstractmethod
    def check(self) -> None:
        """Raise `UnsoundMechanismError` unless the numbers are in range and consistent with each other."""

    def check_round(self, ring: RingShape, most: int, drops: int, colluders: int) -> None:
        """Raise unless this mechanism was made for a round that masks vectors of this ring and adds up the vectors of
        at most `most` devices, with this many dropouts and colluders."""
        raise self._unmaskable()

    def _unmaskable(self) -> UnsoundMechanismError:
        return UnsoundMechanismError(
            f"Only ring integers can be summed under masks, and {self.kind} noise makes real numbers."
        )


def _wire_name(one: Field[Any]) -> str:
    """Return the name of a field in a record. It is another one if the field was renamed after records were sent."""
    return str(one.metadata.get(WIRE_NAME, one.name))


def _valid(value: object, kind: str) -> bool:
    if kind == "Unit":
        return value in list(Unit)
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return type(value) is int and value >= 0
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]
