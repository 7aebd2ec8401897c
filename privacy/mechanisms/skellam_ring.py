"""Skellam noise of each device on integers modulo 2^b: the mechanism under secure aggregation, exact for every set of survivors.

`scale` s turns a real number into an integer; clip C of one row, n clients of whom D may drop and A may collude, at most u rows per client,
k numbers, ring of b bits.

- Bound: a row's integer vector q satisfies |q|^2 <= D2^2 = min{s^2 C^2 + k/4 + s C + sqrt(k)/2, (s C + sqrt(k))^2}, by rejection
  (Kairouz, Liu, Steinke 2021, Proposition 26, with beta = exp(-1/2)), and |q|_1 <= D1 = D2 min(sqrt(k), D2). Privacy uses these alone.
- Noise: every client adds Skellam noise of variance mu_l = ceil(mu / (n - D - A)), so that the honest survivors always hold at least the
  wanted mu. Skellam noise is closed under sums, so the sum over m devices has variance m mu_l exactly.
- No wraparound with probability 1 - p, with m = n u rows: 2^(b-1) >= m s C + sqrt(2 ln(2k/p)) sqrt(m/4 + n mu_l) without rotation, and
  2^(b-1) >= sqrt(2 ln(2k/p)) sqrt(2 (m s C)^2 / k + m/4 + n mu_l) with it. It costs accuracy when it fails, never privacy.

Formal guarantee of one upload: whatever the rows, what leaves is a sum of integer vectors, one per row, each within the bound, plus exact
Skellam noise from the operating system's randomness, modulo 2^b. Reduction and decoding are post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Release,
    Sampling,
    Skellam,
    Unit,
)
from fedsketch.privacy.mechanisms.encoding import (
    clip_rows,
    rotated,
    round_conditionally,
    unrotated,
)
from fedsketch.privacy.mechanisms.mechanism import (
    Mechanism,
    RingShape,
    UnsoundMechanismError,
    Upload,
)
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.skellam_sampler import LARGEST_VARIANCE, sample_skellam
from fedsketch.privacy.mechanisms.sums import into_ring, ring_sum
from fedsketch.privacy.mechanisms.unsafe import UnsafeUpdateError

if TYPE_CHECKING:
    import torch

SMALLEST_RING, LARGEST_RING = 16, 64
_NUMBERS_AT_ONCE = (
    1 << 16
)  # of the rows: little memory, which stays in the caches (five times as fast as 2^20)
_LARGEST_SCALED_CLIP = 2.0**64  # beyond any ring; keeps squares from overflowing


@dataclass(frozen=True, kw_only=True)
class SkellamRing(Mechanism):
    """How every client of a round turns its rows into ring integers, and the server turns the sum back."""

    kind: ClassVar[str] = "skellam"
    at_once: ClassVar[bool] = True

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

    # ------------------------------------------------------------------ on the device
    @property
    def bound(self) -> float:
        return self.clip

    def release(self, rows: torch.Tensor, stream: Stream, round: int) -> Upload:
        return Upload(self.encode(rows.cpu().numpy(), stream, round))

    def release_sum(self, rows: torch.Tensor, clients: int, stream: Stream, round: int) -> Upload:
        """Rows are bounded and rounded each by itself, whoever they belong to; and Skellam noise is closed under sums."""
        return Upload(self.encode(rows.cpu().numpy(), stream, round, clients))

    def release_nothing(self, stream: Stream) -> Upload:
        return Upload(self.encode(np.zeros((1, self.dim)), stream, 0))

    def encode(
        self, rows: NDArray[np.floating], stream: Stream, round: int, clients: int = 1
    ) -> NDArray[np.uint64]:
        """Clip, rotate (small rings only), scale and round every row; add the rows and the noise (in simulations: that of so many clients);
        reduce to integers in [0, 2^b).

        Each row is rounded by itself, so that taking one away changes the integer sum by no more than the bound.
        """
        matrix = np.atleast_2d(rows)
        if matrix.shape[1:] != (self.dim,) or len(matrix) > clients * self.rows:
            raise UnsafeUpdateError(
                f"the mechanism is for at most {self.rows} rows of {self.dim} numbers; the local step made {np.shape(rows)}."
            )
        total = self._noise(clients, stream)
        at_once = max(1, _NUMBERS_AT_ONCE // self.dim)
        for start in range(0, len(matrix), at_once):
            values = clip_rows(matrix[start : start + at_once], self.clip)
            if self.rotate:
                values = rotated(values, round)
            rounded = round_conditionally(values * self.scale, self.l2_bound_squared, stream)
            total += rounded.sum(axis=0)
        return into_ring(total, self.bits)

    def _noise(self, clients: int, stream: Stream) -> NDArray[np.int64]:
        """Of so many devices, in as few draws as the sampler's largest variance allows."""
        most = LARGEST_VARIANCE // max(self.local_variance, 1)
        total = sample_skellam(min(clients, most) * self.local_variance, self.dim, stream)
        while clients > most:
            clients -= most
            total += sample_skellam(min(clients, most) * self.local_variance, self.dim, stream)
        return total

    # ------------------------------------------------------------------ on the server
    def with_bound(self, bound: float) -> SkellamRing:
        """With the scale that makes s C the very same number, so that the integers' bounds are the same. A quotient times its divisor
        misses by a last bit now and then; then a slightly smaller bound is tried."""
        scaled = self.scale * self.clip
        while (scaled / bound) * bound != scaled:
            bound *= 1.0 - 2.0**-30
        return replace(self, clip=bound, scale=scaled / bound)

    def total(self, vectors: Sequence[NDArray[Any]], round: int) -> NDArray[np.float64]:
        values = ring_sum(vectors, self.bits) / self.scale
        return unrotated(values, round) if self.rotate else values

    def noise_alone(self, dim: int, variance: float, stream: Stream) -> NDArray[np.uint64]:
        return into_ring(sample_skellam(int(variance), dim, stream), self.bits)

    @property
    def share(self) -> int:
        return self.local_variance

    def noise_std(self, variance: float) -> float:
        """Of the Skellam noise only; rounding adds less than 1/(2 s) per row."""
        return math.sqrt(variance) / self.scale

    @property
    def ring(self) -> RingShape:
        return RingShape(self.dim, self.bits)

    def facts(self) -> dict[str, str]:
        return {
            "ring": f"{self.bits} bits, scale {self.scale:.6g}",
            "wraparound in a round": f"probability at most {self.wraparound_probability:g}",
        }

    # ------------------------------------------------------------------ for the accountant
    def seen(
        self, variance: float, protected: Unit, sampling: Sampling, adversary: Adversary
    ) -> Release:
        weight = self.weight(protected)
        law = Skellam(
            float(variance),
            weight * self.l2_sensitivity,
            weight * self.l1_sensitivity,
        )
        return Release(law, sampling, Adjacency.ZERO_OUT, protected, adversary)

    def noise_multiplier(self, variance: float, protected: Unit) -> float:
        return math.sqrt(variance) / (self.weight(protected) * self.l2_sensitivity)

    @property
    def l2_sensitivity(self) -> float:
        return l2_bound(self.dim, self.scale * self.clip)

    @property
    def l1_sensitivity(self) -> float:
        return l1_bound(self.dim, self.l2_sensitivity)

    @property
    def l2_bound_squared(self) -> int:
        """The integer that |q|^2 may not exceed: D2^2 rounded down."""
        return math.floor(self.l2_sensitivity**2 * (1.0 - 2.0**-50))

    # ------------------------------------------------------------------ on the wire
    def check(self) -> None:
        """Also that the sum fits: one that does not is useless, and a sign that the numbers were not made together."""
        positive = ("dim", "bits", "scale", "clip", "clients", "rows", "wraparound_probability")
        for name in positive:
            if getattr(self, name) <= 0:
                raise UnsoundMechanismError(f"The mechanism has no sound {name!r}.")
        if self.local_variance > LARGEST_VARIANCE:
            raise UnsoundMechanismError("The mechanism has no sound 'local_variance'.")
        scaled = self.scale * self.clip
        if self.wraparound_probability >= 1:
            raise UnsoundMechanismError("The mechanism has no sound 'wraparound_probability'.")
        if (
            scaled > _LARGEST_SCALED_CLIP
            or self.bits > LARGEST_RING
            or required_half_ring(
                dim=self.dim,
                clients=self.clients,
                rows=self.rows,
                scaled_clip=scaled,
                local_variance=self.local_variance,
                rotate=self.rotate,
                probability=self.wraparound_probability,
            )
            > 2.0 ** (self.bits - 1) * (1 + 1e-9)
        ):
            raise UnsoundMechanismError(
                f"The round's sum does not fit its ring of {self.bits} bits."
            )

    def check_round(self, ring: RingShape, most: int, drops: int, colluders: int) -> None:
        mine = (*self.ring, self.clients, self.drops, self.colluders)
        names = ("dim", "bits", "clients", "drops", "colluders")
        for name, value, wanted in zip(names, mine, (*ring, most, drops, colluders), strict=True):
            if value != wanted:
                raise UnsoundMechanismError(
                    f"The round's mechanism is for {name} = {value}, the round for {wanted}."
                )


def l2_bound(dim: int, scaled_clip: float, deviations: float = 1.0) -> float:
    """D2 for s C = `scaled_clip`; a rounded row exceeds it with probability at most exp(-deviations^2 / 2)."""
    conditional = scaled_clip**2 + dim / 4.0 + deviations * (scaled_clip + math.sqrt(dim) / 2.0)
    return min(math.sqrt(conditional), scaled_clip + math.sqrt(dim))


def l1_bound(dim: int, l2: float) -> float:
    """|q|_1 <= sqrt(k) |q|_2, and for integers |q|_1 <= |q|_2^2."""
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
) -> float:
    """What 2^(b-1) must reach. Skellam noise of these variances has Gaussian tails to within 1e-6 of the exponent at this distance."""
    deviations = math.sqrt(2.0 * math.log(2.0 * dim / probability))
    all_rows = clients * rows
    noise = 0.25 * all_rows + clients * local_variance
    if rotate:
        return deviations * math.sqrt(2.0 * (all_rows * scaled_clip) ** 2 / dim + noise)
    return all_rows * scaled_clip + deviations * math.sqrt(noise)
