"""L2-CSGM, the coordinate-sampled Gaussian mechanism (Chen, Isik, Kairouz, No, Oh, Xu 2024): a device sends a secret
random part of its vector, and a trusted server adds the noise.

A device works in five steps:

- It clips its row x to the L2 norm D2 = `clip`.
- It applies a public rotation: random signs computed from the round's number, then the cosine transform, which needs
  no padding.
- It clips every number to Dinf = `peak`.
- It rounds to the integers -t .. t, which stand for multiples of Dinf / t, with t = 2^(bits-1) - 1.
- It keeps each integer with probability gamma = `rate`.

It sends the kept integers and a seed of 16 bytes, from which the server computes the mask. The server adds the vectors
up, divides by gamma, adds its noise and undoes the rotation.

Formal guarantee, for zero-out adjacency: that of `privacy.accounting.coordinate_sampling`. It holds against those who
see the sum with its noise of standard deviation sigma (before the division by gamma), but neither a mask nor an
upload. It covers rounded vectors for these reasons. Rounding is random and independent of the mask. The integers q
always satisfy |q_j| <= t and |q|^2 <= `l2_bound_squared`, because a vector beyond the bound is rounded again. The
theorem holds given q, and exp((alpha - 1) D_alpha) is jointly convex, so it also holds for the mixture over q.
Floating-point errors affect only accuracy, because both bounds are checked in exact integers. The server's Gaussian
noise is floating point (see `randomness`).

Without clipping at Dinf the sum is unbiased, because rounding (except for a rejection of probability below 1e-9) and
masks are. With n devices each number of their mean has the variance sigma^2 / (n gamma)^2 +
(1 - gamma) / (gamma n^2) * (sum of its squares) in rotated coordinates (Corollary 4.2). Rounding adds at most
(Dinf / t)^2 / (4 n gamma).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsketch.errors import UnsafeUpdateError, UnsoundMechanismError
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    CoordinateSampledGaussian,
    Gaussian,
    NoiseLaw,
    Release,
    SecretDraw,
    Unit,
)
from fedsketch.privacy.mechanisms.encoding import (
    clip_rows,
    rotated,
    round_conditionally,
    unrotated,
)
from fedsketch.privacy.mechanisms.gaussian import add_gaussian
from fedsketch.privacy.mechanisms.mechanism import Mechanism, Upload
from fedsketch.privacy.mechanisms.randomness import KEY_BYTES, Stream
from fedsketch.privacy.mechanisms.skellam_ring import l2_bound

if TYPE_CHECKING:
    import torch

_TYPES = {8: "<i1", 16: "<i2", 32: "<i4"}
_WORDS_AT_ONCE = 1 << 16
# With this margin a rounded row exceeds its bound with probability 1e-9.
_DEVIATIONS = math.sqrt(2.0 * math.log(1e9))


@dataclass(frozen=True, kw_only=True)
class CoordinateSampling(Mechanism):
    """Variances are those of the sum after its division by gamma, in units of clip^2: (sigma / (gamma D2))^2. So a
    noise multiplier has the same effect on the mean as it would have without compression."""

    kind: ClassVar[str] = "coordinate_sampling"
    additive: ClassVar[bool] = False

    dim: int
    clip: float
    peak: float
    rate: float
    bits: int

    # ------------------------------------------------------------------ on the device
    @property
    def bound(self) -> float:
        return self.clip

    def protect(self, rows: torch.Tensor, stream: Stream, round: int) -> Upload:
        if tuple(rows.shape) != (1, self.dim):
            raise UnsafeUpdateError(
                f"the mechanism is for one row of {self.dim} numbers; the local step made shape {tuple(rows.shape)}."
            )
        turned = rotated(clip_rows(rows.cpu().numpy(), self.clip), round)
        scaled = np.clip(turned / self.step, -self.top, self.top)
        integers = round_conditionally(scaled, self.l2_bound_squared, stream)[0]
        seed = stream.bytes(KEY_BYTES)  # drawn last: the mask is independent of what it hides
        kept = integers[self._mask(seed)].astype(_TYPES[self.bits])
        return Upload(np.frombuffer(seed + kept.tobytes(), dtype=np.uint8))

    # ------------------------------------------------------------------ on the server
    def fault(self, vector: NDArray[Any], dim: int) -> str | None:
        if vector.dtype != np.uint8 or vector.ndim != 1 or len(vector) < KEY_BYTES:
            return f"sent {vector.dtype} of shape {vector.shape} instead of a seed and values"
        seed = vector[:KEY_BYTES].tobytes()
        wanted = KEY_BYTES + int(np.count_nonzero(self._mask(seed))) * self.bits // 8
        if len(vector) != wanted:
            return f"sent {len(vector)} bytes instead of {wanted}"
        if np.any(self._kept(vector) < -self.top):
            return "sent values out of range"
        return None

    def sent(self, dim: int) -> int:
        return round(self.rate * dim)

    def typical_upload(self, dim: int) -> NDArray[np.uint8]:
        return np.zeros(KEY_BYTES + self.sent(dim) * self.bits // 8, np.uint8)

    def total(self, vectors: Sequence[NDArray[Any]], round: int) -> NDArray[np.float64]:
        """Return the sum of uploads, which are arrays of bytes, and of the server's noise, which are real numbers in
        rotated coordinates."""
        integers, rest = np.zeros(self.dim, np.int64), np.zeros(self.dim)
        for vector in vectors:
            if vector.dtype == np.uint8:
                integers[self._mask(vector[:KEY_BYTES].tobytes())] += self._kept(vector)
            else:
                rest += vector
        return unrotated(integers * (self.step / self.rate) + rest, round)

    def noise_alone(self, dim: int, variance: float, stream: Stream) -> NDArray[np.float64]:
        return add_gaussian(np.zeros(self.dim), self.noise_std(variance), stream)

    def turned(self, vector: NDArray[np.float64], round: int) -> NDArray[np.float64]:
        """Rotate a vector from the model's coordinates to those that `total` expects for real numbers."""
        return rotated(vector[None], round)[0]

    def clipped(self, vectors: Sequence[NDArray[Any]]) -> float:
        """Return the fraction of all values in these uploads that are at Dinf, where larger values are clipped."""
        kept = [np.abs(self._kept(v).astype(np.int64)) for v in vectors if v.dtype == np.uint8]
        count = sum(map(len, kept))
        return sum(int(np.count_nonzero(part == self.top)) for part in kept) / max(count, 1)

    @property
    def variance_per_device(self) -> float:
        return 0.0

    def noise_std(self, variance: float) -> float:
        return self.clip * math.sqrt(variance)

    def facts(self) -> dict[str, str]:
        return {
            "values kept": f"{self.rate:g} of {self.dim:,}, {self.bits} bits each, by a secret mask of each client",
            "largest value": f"{self.peak:.4g}: 1/{self.clip / self.peak:.4g} of the clip",
        }

    # ------------------------------------------------------------------ for the accountant
    def release_to(
        self, variance: float, protected: Unit, sampling: SecretDraw, adversary: Adversary
    ) -> Release:
        if protected is not Unit.CLIENT:
            raise UnsoundMechanismError(
                f"The mechanism {self.kind} masks the vectors of whole clients: set privacy.unit=client."
            )
        sigma = self.rate * self.noise_std(variance)
        law: NoiseLaw = CoordinateSampledGaussian(
            sigma, self.rate, self.l2_sensitivity, min(self.peak, self.l2_sensitivity)
        )
        if self.rate == 1.0:  # no value is dropped: this is the plain Gaussian mechanism
            law = Gaussian(sigma / self.l2_sensitivity)
        return Release(law, sampling, Adjacency.ZERO_OUT, protected, adversary)

    def noise_multiplier(self, variance: float, protected: Unit) -> float:
        return math.sqrt(variance) / self.weight(protected)

    @property
    def top(self) -> int:
        """The integer that stands for Dinf."""
        return (1 << (self.bits - 1)) - 1

    @property
    def step(self) -> float:
        """Return the distance of two neighbouring values that an upload can have."""
        return self.peak / self.top

    @property
    def l2_sensitivity(self) -> float:
        """The L2 sensitivity: D2 plus what rounding can add."""
        return self.step * self._l2_bound

    @property
    def l2_bound_squared(self) -> int:
        """The largest integer that |q|^2 may be."""
        return math.floor(self._l2_bound**2 * (1.0 - 2.0**-50))

    @property
    def _l2_bound(self) -> float:
        return l2_bound(self.dim, self.clip / self.step, _DEVIATIONS)

    # ------------------------------------------------------------------ on the wire
    def check(self) -> None:
        for name in ("dim", "clip", "peak", "rate"):
            if getattr(self, name) <= 0:
                raise UnsoundMechanismError(f"The mechanism has an invalid {name!r}.")
        if self.unit is not Unit.CLIENT or self.rows != 1:
            raise UnsoundMechanismError(f"The mechanism {self.kind} is for one row of a client.")
        if self.rate > 1 or self.bits not in _TYPES or not self.clip / self.peak < 2.0**20:
            raise UnsoundMechanismError(
                f"The mechanism {self.kind} needs a rate of at most 1, {', '.join(map(str, _TYPES))} bits, "
                "and a peak of at least a millionth of the clip."
            )

    # ------------------------------------------------------------------ inside
    def _mask(self, seed: bytes) -> NDArray[np.bool_]:
        """Return which numbers a device with this seed keeps: each with probability gamma, rounded down to a multiple
        of 2^-64."""
        mask = np.ones(self.dim, dtype=np.bool_)
        if self.rate < 1.0:
            below = np.uint64(int(self.rate * 2**64))
            with Stream(seed) as stream:
                for start in range(0, self.dim, _WORDS_AT_ONCE):
                    part = mask[start : start + _WORDS_AT_ONCE]
                    np.less(stream.uint64(len(part)), below, out=part)
        return mask

    def _kept(self, vector: NDArray[np.uint8]) -> NDArray[np.signedinteger[Any]]:
        return np.frombuffer(vector[KEY_BYTES:].tobytes(), dtype=_TYPES[self.bits])


def default_peak(clip: float, dim: int, clients: int) -> float:
    """Return Dinf = D2 sqrt(2 ln(d n) / d), at most D2. After a random rotation fewer than two numbers of a whole
    cohort are larger, on average: 0.15 at d = 25,450 and n = 100."""
    return clip * min(1.0, math.sqrt(2.0 * math.log(dim * clients) / dim))
