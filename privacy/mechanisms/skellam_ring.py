"""The Skellam mechanism: each device adds Skellam noise (integer noise) to integers modulo m. Used under secure
aggregation; the noise of the sum is exactly known for every set of surviving devices.

Notation: the `scale` s turns real numbers into integers, C is the clip of one row, k the length of a row and m the
modulus of the ring: 2^b, or the `prime` below it. Of n clients D may drop out and A may collude; each has at most u
rows. Either each row is rounded separately, or the sum of a device's clipped rows is rounded once (`rounds_once`).

- Bound if rows are rounded: the integer vector q of a row is drawn again until it satisfies |q|^2 <= D2^2 =
  min{s^2 C^2 + k/4 + s C + sqrt(k)/2, (s C + sqrt(k))^2} (Kairouz, Liu, Steinke 2021, Proposition 26, with beta =
  exp(-1/2)). It follows that |q|_1 <= D1 = D2 min(sqrt(k), D2). Privacy depends only on these two bounds.
- Bound if the sum is rounded: see the theorem below.
- Noise: every client adds Skellam noise of variance mu_l = ceil(mu / (n - D - A)), so that the honest survivors
  together always add at least the required variance mu. Skellam noise is closed under sums: the sum over m devices has
  variance m mu_l exactly.
- Wraparound: with n u rows and r roundings (r = n u if rows are rounded, n if sums are), a sum does not wrap around
  with probability 1 - p if h >= n u s C + sqrt(2 ln(2k/p)) sqrt(r/4 + n mu_l) without rotation, or h >=
  sqrt(2 ln(2k/p)) sqrt(2 (n u s C)^2 / k + r/4 + n mu_l) with rotation. Here h is half of the modulus, rounded down. A
  wraparound costs accuracy, never privacy.

Formal guarantee of one upload if rows are rounded: for any rows, what leaves the device is a sum of integer vectors,
one per row and each within the bound, plus exact Skellam noise from the operating system's randomness, modulo m.
Reduction modulo m and decoding are post-processing.

**Theorem (sums).** Let x be s times the sum of the clipped rows of a device (rotated in small rings), t in [0, 1)^k a
vector that does not depend on data, and q = floor(x + t). Replacing c of the rows by zeros changes q by an integer
vector of L2 norm at most D2 = c s C (1 + a) + sqrt(k) and L1 norm at most D2 min(sqrt(k), D2). Here a accounts for
floating-point errors (`rows.allowance`); the sqrt(k) has a margin of 2^-50 as well.

*Proof.* In real numbers x moves by some v with |v| <= c s C, because each row has norm at most C and a rotation
preserves lengths. As computed, x moves by v + w with |w| <= a s C. For real numbers y, z and one threshold t,
|floor(y + t) - floor(z + t)| <= ceil(|y - z|) < |y - z| + 1. So q moves by at most |v_j + w_j| + 1 in coordinate j,
and by the triangle inequality by at most |v + w| + sqrt(k) in total. The absolute value of an integer is at most its
square, which gives the L1 norm. []

The bound holds for every t. If t is drawn uniformly, q has the mean x, and the release is a mixture, over t, of
releases that the accountant's theorems cover. The mixture costs no more than these: t has the same distribution for
both neighbours, and hockey-stick divergences are jointly convex, as are the three-distribution profiles of
`accounting.skellam_as_gaussian`. D2 cannot be improved beyond the allowance:
tests/privacy/mechanisms/test_rounded_sums.py has rows at the thresholds that exceed any bound without the sqrt(k).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsketch.errors import UnsafeUpdateError, UnsoundMechanismError
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Release,
    SecretDraw,
    Skellam,
    Unit,
)
from fedsketch.privacy.mechanisms.bound_half import BoundHalf
from fedsketch.privacy.mechanisms.encoding import (
    clip_rows,
    rotated,
    round_conditionally,
    unrotated,
)
from fedsketch.privacy.mechanisms.mechanism import WIRE_NAME, Mechanism, RingShape, Upload
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.ring_integers import (
    into_ring,
    is_modulus,
    modulus_of,
    ring_sum,
    ring_text,
)
from fedsketch.privacy.mechanisms.rows import Factors, Rows, sum_bound, threshold_rounded
from fedsketch.privacy.mechanisms.skellam_sampler import LARGEST_VARIANCE, sample_skellam

if TYPE_CHECKING:
    import torch

SMALLEST_RING, LARGEST_RING = 16, 64
# How many numbers of the rows are worked on at a time. They stay in the caches: five times as fast as 2^20.
_NUMBERS_AT_ONCE = 1 << 16
_LARGEST_SCALED_CLIP = 2.0**64  # larger than any ring; squares do not overflow
_LARGEST_SCALED_SUM = 2.0**61  # of one device, if sums are rounded: it fits a 64-bit integer


@dataclass(frozen=True, kw_only=True)
class SkellamRing(Mechanism):
    """How every client of a round turns its rows into ring integers, and the server turns the sum back."""

    kind: ClassVar[str] = "skellam"
    can_protect_sum: ClassVar[bool] = True

    dim: int
    bits: int
    scale: float
    rotate: bool
    clip: float
    clients: int
    drops: int
    colluders: int
    local_variance: int
    wraparound_probability: float
    # Whether the sum of a device is rounded instead of each row.
    rounds_once: bool = field(default=False, metadata={WIRE_NAME: "rounds_sum"})
    # The modulus of the ring, if it is not 2^bits.
    prime: int = 0

    # ------------------------------------------------------------------ on the device
    @property
    def bound(self) -> float:
        return self.clip

    @property
    def takes_blocks(self) -> bool:
        return self.rounds_once

    def run(self, half: BoundHalf, stream: Stream, round: int) -> Upload:
        if not self.rounds_once:
            return super().run(half, stream, round)
        total = self._noise(1, stream)
        total += self._rounded_sum(half.blocks(), stream, round)
        return Upload(into_ring(total, self.ring.modulus))

    def protect(self, rows: torch.Tensor, stream: Stream, round: int) -> Upload:
        return Upload(self.encode(rows.cpu().numpy(), stream, round))

    def protect_sum(
        self, rows: torch.Tensor | Sequence[Rows], counts: Sequence[int], stream: Stream, round: int
    ) -> Upload:
        """Return clips and rounds exactly as each device would. The noise of all devices is drawn in one go, because
        Skellam noise is closed under sums."""
        each = rows if isinstance(rows, Sequence) else list(Rows.of(rows).split(counts))
        given = sum(map(len, each)) if isinstance(rows, Sequence) else len(rows)
        if given != sum(counts) or len(each) != len(counts):
            raise UnsafeUpdateError(
                f"the mechanism is for at most {self.rows} rows of each device."
            )
        for own in each:
            self._check_rows(own)
        total = self._noise(len(counts), stream)
        if self.rounds_once:
            for own in each:
                total += self._rounded_sum([own], stream, round)
        else:
            assert not isinstance(rows, Sequence)  # `Rows` are only for sums that are rounded
            total += self._rounded_rows(rows.cpu().numpy(), stream, round)
        return Upload(into_ring(total, self.ring.modulus))

    def protect_nothing(self, stream: Stream) -> Upload:
        return Upload(self.encode(np.zeros((1, self.dim)), stream, 0))

    def encode(self, rows: NDArray[np.floating], stream: Stream, round: int) -> NDArray[np.uint64]:
        """Return one device's upload: clip every row; rotate (small rings only), scale and round each row or their
        sum; add the noise; reduce to integers in [0, m)."""
        given = Rows((Factors(np.atleast_2d(rows)),))
        self._check_rows(given)
        total = self._noise(1, stream)
        if self.rounds_once:
            total += self._rounded_sum([given], stream, round)
        else:
            total += self._rounded_rows(np.atleast_2d(rows), stream, round)
        return into_ring(total, self.ring.modulus)

    def _check_rows(self, rows: Rows) -> None:
        """Raise if one device may not have these rows: wrong length, or too many."""
        if rows.width != self.dim or len(rows) > self.rows:
            raise UnsafeUpdateError(
                f"the mechanism is for at most {self.rows} rows of {self.dim} numbers; "
                f"the local step made {len(rows)} of {rows.width}."
            )

    def _rounded_rows(
        self, matrix: NDArray[np.floating], stream: Stream, round: int
    ) -> NDArray[np.int64]:
        """Round each row separately, so that removing one changes the integer sum by no more than the bound."""
        total = np.zeros(self.dim, dtype=np.int64)
        at_once = max(1, _NUMBERS_AT_ONCE // self.dim)
        for start in range(0, len(matrix), at_once):
            values = clip_rows(matrix[start : start + at_once], self.clip)
            if self.rotate:
                values = rotated(values, round)
            rounded = round_conditionally(values * self.scale, self.l2_bound_squared, stream)
            total += rounded.sum(axis=0)
        return total

    def _rounded_sum(self, blocks: Iterable[Rows], stream: Stream, round: int) -> NDArray[np.int64]:
        """Return the rounded sum of one device's clipped rows, which may come in blocks."""
        total, count = np.zeros(self.dim), 0
        for block in blocks:
            count += len(block)
            self._check_rows(block)
            total += block.clipped_sum(self.clip)
        if count > self.rows:
            raise UnsafeUpdateError(f"the mechanism is for at most {self.rows} rows, not {count}.")
        if self.rotate:
            total = rotated(total, round)
        return threshold_rounded(total * self.scale, stream.uniform(self.dim))

    def _noise(self, clients: int, stream: Stream) -> NDArray[np.int64]:
        """Return the noise of this many devices, in as few draws as the sampler's largest variance allows."""
        most = LARGEST_VARIANCE // max(self.local_variance, 1)
        total = sample_skellam(min(clients, most) * self.local_variance, self.dim, stream)
        while clients > most:
            clients -= most
            total += sample_skellam(min(clients, most) * self.local_variance, self.dim, stream)
        return total

    # ------------------------------------------------------------------ on the server
    def with_bound(self, bound: float) -> SkellamRing:
        """Return the scale changes so that s C stays exactly the same float, and with it the bounds of the integers. If
        rounding makes the product differ in its last bit, a slightly smaller bound is tried."""
        scaled = self.scale * self.clip
        while (scaled / bound) * bound != scaled:
            bound *= 1.0 - 2.0**-30
        return replace(self, clip=bound, scale=scaled / bound)

    def total(self, vectors: Sequence[NDArray[Any]], round: int) -> NDArray[np.float64]:
        values = ring_sum(vectors, self.ring.modulus) / self.scale
        return unrotated(values, round) if self.rotate else values

    def noise_alone(self, dim: int, variance: float, stream: Stream) -> NDArray[np.uint64]:
        return into_ring(sample_skellam(int(variance), dim, stream), self.ring.modulus)

    @property
    def variance_per_device(self) -> int:
        return self.local_variance

    def noise_std(self, variance: float) -> float:
        """Return the standard deviation of the Skellam noise only. Each rounding adds at most 1/(2 s)."""
        return math.sqrt(variance) / self.scale

    @property
    def ring(self) -> RingShape:
        return RingShape(self.dim, self.bits, modulus_of(self.bits, self.prime))

    def facts(self) -> dict[str, str]:
        return {
            "ring": ring_text(self.bits, self.prime, self.scale),
            "wraparound in a round": f"probability at most {self.wraparound_probability:g}",
        }

    # ------------------------------------------------------------------ for the accountant
    def release_to(
        self, variance: float, protected: Unit, sampling: SecretDraw, adversary: Adversary
    ) -> Release:
        l2, l1 = self._sensitivities(protected)
        law = Skellam(float(variance), l2, l1)
        return Release(law, sampling, Adjacency.ZERO_OUT, protected, adversary)

    def noise_multiplier(self, variance: float, protected: Unit) -> float:
        return math.sqrt(variance) / self._sensitivities(protected)[0]

    def _sensitivities(self, protected: Unit) -> tuple[float, float]:
        """Return the L2 and L1 sensitivity (D2, D1) of the sum to one protected unit."""
        weight = self.weight(protected)
        if not self.rounds_once:
            return weight * self.l2_sensitivity, weight * self.l1_sensitivity
        l2 = sum_bound(self.dim, self.scale * self.clip, self.rows, weight)
        return l2, l1_bound(self.dim, l2)

    @property
    def l2_sensitivity(self) -> float:
        """D2 of one row."""
        scaled = self.scale * self.clip
        return (
            sum_bound(self.dim, scaled, self.rows, 1)
            if self.rounds_once
            else l2_bound(self.dim, scaled)
        )

    @property
    def l1_sensitivity(self) -> float:
        """D1 that follows from `l2_sensitivity`."""
        return l1_bound(self.dim, self.l2_sensitivity)

    @property
    def l2_bound_squared(self) -> int:
        """The largest integer that |q|^2 may be if rows are rounded: D2^2 rounded down."""
        return math.floor(self.l2_sensitivity**2 * (1.0 - 2.0**-50))

    # ------------------------------------------------------------------ on the wire
    def check(self) -> None:
        """Check also that the sum fits the ring. If it does not, the result would be useless, and the numbers were
        probably not made together."""
        positive = ("dim", "bits", "scale", "clip", "clients", "rows", "wraparound_probability")
        for name in positive:
            if getattr(self, name) <= 0:
                raise UnsoundMechanismError(f"The mechanism has an invalid {name!r}.")
        if self.local_variance > LARGEST_VARIANCE:
            raise UnsoundMechanismError("The mechanism has an invalid 'local_variance'.")
        scaled = self.scale * self.clip
        if self.wraparound_probability >= 1:
            raise UnsoundMechanismError("The mechanism has an invalid 'wraparound_probability'.")
        if not is_modulus(self.bits, self.prime):
            raise UnsoundMechanismError("The mechanism has an invalid 'prime'.")
        if (
            scaled > _LARGEST_SCALED_CLIP
            or (self.rounds_once and self.rows * scaled > _LARGEST_SCALED_SUM)
            or self.bits > LARGEST_RING
            or required_half_ring(
                dim=self.dim,
                clients=self.clients,
                rows=self.rows,
                scaled_clip=scaled,
                local_variance=self.local_variance,
                rotate=self.rotate,
                probability=self.wraparound_probability,
                rounds_once=self.rounds_once,
            )
            > self.ring.modulus // 2 * (1 + 1e-9)
        ):
            raise UnsoundMechanismError(
                f"The round's sum does not fit its ring of {self.bits} bits."
            )

    def check_round(self, ring: RingShape, most: int, drops: int, colluders: int) -> None:
        mine = (*self.ring, self.clients, self.drops, self.colluders)
        names = ("dim", "bits", "modulus", "clients", "drops", "colluders")
        for name, value, wanted in zip(names, mine, (*ring, most, drops, colluders), strict=True):
            if value != wanted:
                raise UnsoundMechanismError(
                    f"The mechanism was made for {name} = {value}, but the round has {wanted}."
                )


def l2_bound(dim: int, scaled_clip: float, deviations: float = 1.0) -> float:
    """Return D2 for s C = `scaled_clip`. A rounded row exceeds it with probability at most exp(-deviations^2 / 2)."""
    conditional = scaled_clip**2 + dim / 4.0 + deviations * (scaled_clip + math.sqrt(dim) / 2.0)
    return min(math.sqrt(conditional), scaled_clip + math.sqrt(dim))


def l1_bound(dim: int, l2: float) -> float:
    """Return |q|_1 <= sqrt(k) |q|_2, and for integers |q|_1 <= |q|_2^2."""
    return l2 * min(math.sqrt(dim), l2)


def required_half_ring(
    *,
    dim: int,
    clients: int,
    rows: int,
    scaled_clip: float,
    local_variance: float,
    rotate: bool,
    probability: float,
    rounds_once: bool = False,
) -> float:
    """Return the smallest half of a modulus for which the sum fits. It uses Gaussian tails; for such variances and
    distances the exponent of Skellam tails differs from them by a relative 1e-6."""
    deviations = math.sqrt(2.0 * math.log(2.0 * dim / probability))
    all_rows = clients * rows
    noise = 0.25 * (clients if rounds_once else all_rows) + clients * local_variance
    if rotate:
        return deviations * math.sqrt(2.0 * (all_rows * scaled_clip) ** 2 / dim + noise)
    return all_rows * scaled_clip + deviations * math.sqrt(noise)
