"""A mechanism: how what a device computed becomes what leaves it, and what that costs. One frozen object per round.

A strategy chooses it on the server; it travels once, as a flat record, inside the settings of the round; the device's
guard judges that very record, and the device does what it judged. Everything about a round's privacy is asked of this
object:

| where | what |
|---|---|
| device | `run`, usually `release`: bound every row, add them up, blur, encode. The only way out: nothing else makes an `Upload` |
| server | `total`: the sum of the uploads in real numbers, with noise of its own if asked; `noise_std`: the noise in it |
| accountant | `seen`: what a sum shows to an adversary, for a protected unit |
| wire | `to_record` and `mechanism_from_record`, which believes nothing that it reads |

A row is what one unit contributes: a client's vector, or one vector per example. Adjacency is zero-out everywhere: the
unit's rows are replaced by zeros, and its device still adds its noise.

How much noise there is, is always said as a variance in the mechanism's own units: `share` is what one device brings,
and what several bring adds up.

A mechanism that blurs inside of a training (`noisy_training`) runs that training itself, so that data is reached
through it alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.accounting.releases import Adversary, Release, Sampling, Unit
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.privacy.mechanisms.trainee import LocalHalf
from fedsketch.privacy.mechanisms.unsafe import UnsafeUpdateError

if TYPE_CHECKING:
    import torch

Scalar = bool | int | float | str | bytes
KIND = "mechanism"  # the key of a record that names its class


class UnsoundMechanismError(ValueError):
    """A record that is not a mechanism, or one whose numbers do not go together; the message is one sentence."""


@dataclass(frozen=True)
class Upload:
    """A vector that may leave a device. Mechanisms make these, and nobody else (tests/test_architecture.py looks)."""

    vector: NDArray[np.generic]


class RingShape(NamedTuple):
    """The integers modulo 2^bits in which uploads of `dim` numbers are added up under masks."""

    dim: int
    bits: int


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Subclasses are frozen dataclasses of plain numbers, so that they can travel, be compared and be hashed."""

    kind: ClassVar[str]
    adds: ClassVar[bool] = True  # whether the sum of uploads can stand for them
    takes_rows: ClassVar[bool] = True  # whether it blurs rows, and not a training
    at_once: ClassVar[bool] = False  # whether `release_sum` can stand for many a `release`
    unit: Unit = Unit.CLIENT  # what a row is
    rows: int = 1  # the largest number of them that one device adds up

    # ------------------------------------------------------------------ on the device
    @property
    @abstractmethod
    def bound(self) -> float | None:
        """The L2 norm that no row exceeds as it leaves; None: no bound, and so no privacy."""

    def run(self, half: LocalHalf, stream: Stream, round: int) -> Upload:
        """The device's part of a round. `round` is public: it seeds what all devices do alike."""
        return self.release(half.rows(), stream, round)

    def release(self, rows: torch.Tensor, stream: Stream, round: int) -> Upload:
        """Bound every row, add the rows up, blur and encode the sum."""
        raise UnsafeUpdateError(
            f"the mechanism {self.kind} blurs nothing that is already computed."
        )

    @property
    def takes_blocks(self) -> bool:
        """Whether it clips rows a block at a time, and needs no more than their sum (`LocalHalf.blocks`)."""
        return False

    def release_sum(
        self, rows: torch.Tensor | Sequence[Rows], counts: Sequence[int], stream: Stream, round: int
    ) -> Upload:
        """For simulations: the sum of what devices release that have so many of these rows each, with the noise of all
        of them drawn at once. It has the law of the sum of their uploads."""
        raise UnsafeUpdateError(f"the mechanism {self.kind} draws the noise of one device.")

    @property
    def local_steps(self) -> int:
        """How many times it goes to the device's data in a round."""
        return 1

    @property
    def reach(self) -> float | None:
        """The norm of what one device sends without noise, if all that goes into it points one way; None: no bound."""
        return self.bound

    def release_nothing(self, stream: Stream) -> Upload:
        """Where uploads are masked: what a device with nothing to say releases, its noise alone."""
        raise self._unmaskable()

    # ------------------------------------------------------------------ on the server
    def with_bound(self, bound: float) -> Self:
        """The same for rows with another bound (or one a millionth smaller). Noise and resolution follow it: what is
        seen is the same."""
        raise UnsoundMechanismError(f"The bound of the mechanism {self.kind} is fixed.")

    @abstractmethod
    def total(self, vectors: Sequence[NDArray[Any]], round: int) -> NDArray[np.float64]:
        """The sum of what the devices released, in real numbers; a vector may itself be a sum, made under masks."""

    def fault(self, vector: NDArray[Any], dim: int) -> str | None:
        """What is wrong with an upload of a row of so many numbers; None if nothing is."""
        if vector.shape == (dim,):
            return None
        return f"sent numbers of shape {vector.shape} instead of {dim}"

    def sent(self, dim: int) -> int:
        """How many numbers of a row of so many a device sends, in the mean."""
        return dim

    def specimen(self, dim: int) -> NDArray[np.generic]:
        """Something as long as the upload of a row of so many numbers is in the mean."""
        return np.zeros(dim, np.float32 if self.ring is None else np.uint64)

    def noise_alone(self, dim: int, variance: float, stream: Stream) -> NDArray[np.generic]:
        """An upload of nothing but noise: what a server adds to a sum so that it has as much as all others."""
        raise UnsafeUpdateError(f"the mechanism {self.kind} has no noise but that of its devices.")

    @property
    @abstractmethod
    def share(self) -> float:
        """Variance of the noise that one device brings, in the mechanism's own units."""

    @abstractmethod
    def noise_std(self, variance: float) -> float:
        """Standard deviation of noise of this variance in each number of a sum, in real numbers."""

    @property
    def ring(self) -> RingShape | None:
        """Where uploads are added up, or None: real numbers, which cannot be masked."""
        return None

    def facts(self) -> dict[str, str]:
        """What a plan tells about it, besides the noise."""
        return {}

    # ------------------------------------------------------------------ for the accountant
    @abstractmethod
    def seen(
        self, variance: float, protected: Unit, sampling: Sampling, adversary: Adversary
    ) -> Release:
        """What a sum shows under so much noise: that of all in it whose noise the adversary does not know."""

    @abstractmethod
    def noise_multiplier(self, variance: float, protected: Unit) -> float:
        """Standard deviation of so much noise over what one protected unit can change in the sum."""

    def weight(self, protected: Unit) -> int:
        """How many times the bound of one row a protected unit can change the sum.

        A client is all of its rows. An example is one row where rows are examples; where a row is a whole client's, an
        example can turn it into any other, which is two rows apart.
        """
        if protected is Unit.CLIENT:
            return self.rows
        return 1 if self.unit is Unit.EXAMPLE else 2 * self.rows

    # ------------------------------------------------------------------ on the wire
    def to_record(self) -> dict[str, Scalar]:
        """Flat, for a ConfigRecord; what is as by default is left out."""
        record: dict[str, Scalar] = {KIND: self.kind}
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                record[one.name] = value.value if isinstance(value, Unit) else value
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `to_record`: every field of its type and in its range, and nothing else."""
        wanted = {one.name: one for one in fields(cls)}
        needed = [name for name, one in wanted.items() if one.default is MISSING]
        for name in [*record, *needed]:
            if name not in wanted or name not in record:
                problem = "lacks" if name in wanted else "holds an unknown"
                raise UnsoundMechanismError(
                    f"The mechanism {problem} {name!r}: use one version everywhere."
                )
        for name, value in record.items():
            if not _sound(value, str(wanted[name].type)):
                raise UnsoundMechanismError(f"The mechanism has no sound {name!r}.")
        made = cls(**{**record, "unit": Unit(str(record.get("unit", Unit.CLIENT.value)))})
        made.check()
        return made

    @abstractmethod
    def check(self) -> None:
        """Raises `UnsoundMechanismError` unless the numbers are in range and go together."""

    def check_round(self, ring: RingShape, most: int, drops: int, colluders: int) -> None:
        """Raises unless this was made for a round that masks vectors of this ring and adds up at most so many devices'
        vectors."""
        raise self._unmaskable()

    def _unmaskable(self) -> UnsoundMechanismError:
        return UnsoundMechanismError(
            f"Only ring integers can be summed under masks, and {self.kind} noise makes real numbers."
        )


def _sound(value: object, kind: str) -> bool:
    if kind == "Unit":
        return value in list(Unit)
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return type(value) is int and value >= 0
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]
