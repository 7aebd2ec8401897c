"""The plan of an integer encoding: ring, scale, rotation and noise that fit together. Frozen data, made once by the server, checked by all.

`scale` s turns a real number into an integer; clip C of one privacy unit, n clients of whom D may drop and A may collude, at most u units
(rows) per client, k numbers, ring of b bits.

- Bound: a unit's integer vector q satisfies |q|^2 <= D2^2 = min{s^2 C^2 + k/4 + s C + sqrt(k)/2, (s C + sqrt(k))^2}, by rejection
  (Kairouz, Liu, Steinke 2021, Proposition 26, with beta = exp(-1/2)), and |q|_1 <= D1 = D2 min(sqrt(k), D2). Privacy uses these alone.
- Noise: every client adds Skellam noise of variance mu_l = ceil(mu / (n - D - A)), so that the honest survivors always hold at least the
  wanted mu. Zero-out adjacency for clients (a zeroed client still brings its noise).
- No wraparound with probability 1 - p, with m = n u rows: 2^(b-1) >= m s C + sqrt(2 ln(2k/p)) sqrt(m/4 + n mu_l) without rotation, and
  2^(b-1) >= sqrt(2 ln(2k/p)) sqrt(2 (m s C)^2 / k + m/4 + n mu_l) with it. It costs accuracy when it fails, never privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Release,
    Sampling,
    Skellam,
    Unit,
)

NoiseRule = Callable[[float, float], float]
"""(D2, D1) -> variance of the honest survivors' noise, in integer units."""

SMALLEST_RING, LARGEST_RING = 16, 64
LARGEST_ROTATED_RING = 20


class RingTooSmallError(ValueError):
    """The ring cannot hold the sum; the message names the smallest one that can."""


@dataclass(frozen=True)
class EncodingPlan:
    """How every client of a round turns its vector into ring integers, and the server turns the sum back."""

    dim: int
    bits: int
    scale: float
    rotate: bool
    clip: float
    clients: int
    units: int
    drops: int
    colluders: int
    local_variance: int
    wraparound_probability: float

    @property
    def l2_bound_squared(self) -> int:
        """The integer that |q|^2 may not exceed: D2^2 rounded down."""
        return math.floor(l2_bound(self.dim, self.scale * self.clip) ** 2 * (1.0 - 2.0**-50))

    @property
    def l2_sensitivity(self) -> float:
        return l2_bound(self.dim, self.scale * self.clip)

    @property
    def l1_sensitivity(self) -> float:
        return l1_bound(self.dim, self.l2_sensitivity)

    def noise_variance(self, survivors: int, colluders: int = 0) -> int:
        """Of the sum, in integer units, as far as `colluders` of the survivors do not know it."""
        return (survivors - colluders) * self.local_variance

    def noise_std(self, survivors: int) -> float:
        """Of the decoded sum, per coordinate, in real units (Skellam only; rounding adds less than 1/(2 s) per client)."""
        return math.sqrt(self.noise_variance(survivors)) / self.scale

    def release(
        self,
        *,
        survivors: int,
        sampling: Sampling,
        unit: Unit,
        adversary: Adversary,
        adjacency: Adjacency = Adjacency.ZERO_OUT,
    ) -> Release:
        """What was released when `survivors` clients are in the sum, with the noise that was really there."""
        if survivors < self.clients - self.drops:
            raise ValueError(
                f"{survivors} survivors are fewer than the {self.clients - self.drops} that the noise was planned for: abort the round."
            )
        variance = float(self.noise_variance(survivors, adversary.colluders))
        mechanism = Skellam(variance, self.l2_sensitivity, self.l1_sensitivity)
        return Release(mechanism, sampling, adjacency, unit, adversary)


def l2_bound(dim: int, scaled_clip: float) -> float:
    """D2 for s C = `scaled_clip`."""
    conditional = scaled_clip**2 + dim / 4.0 + scaled_clip + math.sqrt(dim) / 2.0
    return min(math.sqrt(conditional), scaled_clip + math.sqrt(dim))


def l1_bound(dim: int, l2: float) -> float:
    """|q|_1 <= sqrt(k) |q|_2, and for integers |q|_1 <= |q|_2^2."""
    return l2 * min(math.sqrt(dim), l2)


def required_half_ring(
    *,
    dim: int,
    clients: int,
    units: int,
    scaled_clip: float,
    local_variance: float,
    rotate: bool,
    probability: float,
) -> float:
    """What 2^(b-1) must reach. Skellam noise of these variances has Gaussian tails to within 1e-6 of the exponent at this distance."""
    deviations = math.sqrt(2.0 * math.log(2.0 * dim / probability))
    rows = clients * units
    noise = 0.25 * rows + clients * local_variance
    if rotate:
        return deviations * math.sqrt(2.0 * (rows * scaled_clip) ** 2 / dim + noise)
    return rows * scaled_clip + deviations * math.sqrt(noise)


def plan_encoding(
    *,
    dim: int,
    clients: int,
    clip: float,
    noise: NoiseRule,
    units: int = 1,
    bits: int = 32,
    drops: int = 0,
    colluders: int = 0,
    scale: float | None = None,
    wraparound_probability: float = 1e-9,
) -> EncodingPlan:
    """Choose rotation and scale for the ring, ask `noise` for the variance, and check that the sum fits.

    `units` is the largest number of vectors of norm C that one client adds up: 1, or its examples where those are the privacy unit.
    Rings up to 20 bits rotate and take the largest scale that fits; larger ones do not rotate, and take s C = 2^12 (2^14 above ten
    thousand numbers) or less where the ring is tight, but never so little that rounding doubles the noise. A `scale` that is given is
    checked, not changed.
    """
    honest = clients - drops - colluders
    if min(dim, clients, units) < 1 or min(drops, colluders) < 0 or honest < 1:
        raise ValueError(
            f"{clients} clients with {drops} drops and {colluders} colluders leave no honest noise: lower drops or colluders."
        )
    if not SMALLEST_RING <= bits <= LARGEST_RING:
        raise ValueError(f"the ring has {SMALLEST_RING} to {LARGEST_RING} bits, not {bits}.")
    if not (clip > 0.0 and math.isfinite(clip)):
        raise ValueError(f"the clip must be positive and finite, not {clip}.")
    search = _ScaleSearch(dim, clients, units, honest, clip, noise, wraparound_probability)
    rotate = bits <= LARGEST_ROTATED_RING
    if scale is None:
        preferred = (2.0**12 if dim <= 10_000 else 2.0**14) / clip
        scale = search.largest(bits, rotate=rotate, most=math.inf if rotate else preferred)
    if scale is None or search.half_ring(scale, rotate=rotate) > 2.0 ** (bits - 1):
        raise RingTooSmallError(search.advice(bits, scale))
    return EncodingPlan(
        dim=dim,
        bits=bits,
        scale=scale,
        rotate=rotate,
        clip=clip,
        clients=clients,
        units=units,
        drops=drops,
        colluders=colluders,
        local_variance=search.local_variance(scale),
        wraparound_probability=wraparound_probability,
    )


@dataclass(frozen=True)
class _ScaleSearch:
    dim: int
    clients: int
    units: int
    honest: int
    clip: float
    noise: NoiseRule
    probability: float

    def local_variance(self, scale: float) -> int:
        l2 = l2_bound(self.dim, scale * self.clip)
        return math.ceil(self.noise(l2, l1_bound(self.dim, l2)) / self.honest)

    def half_ring(self, scale: float, *, rotate: bool) -> float:
        return required_half_ring(
            dim=self.dim,
            clients=self.clients,
            units=self.units,
            scaled_clip=scale * self.clip,
            local_variance=self.local_variance(scale),
            rotate=rotate,
            probability=self.probability,
        )

    def largest(self, bits: int, *, rotate: bool, most: float) -> float | None:
        """The largest scale up to `most` that fits the ring (to 1e-9), or None. The half ring needed grows with the scale."""
        limit = 2.0 ** (bits - 1)
        if math.isfinite(most) and self.half_ring(most, rotate=rotate) <= limit:
            return most
        # A smaller scale would let the rounding alone double D2^2, and with it the noise: such a ring does not hold the sum.
        slack = self.dim / 4.0 + math.sqrt(self.dim) / 2.0
        low = (1.0 + math.sqrt(1.0 + 4.0 * slack)) / 2.0 / self.clip
        high = min(most, 2.0**bits / self.clip)
        if low >= high:
            return None
        f_low = self.half_ring(low, rotate=rotate) - limit
        f_high = self.half_ring(high, rotate=rotate) - limit
        if f_low > 0.0:
            return None
        for step in range(200):
            if high - low <= 1e-9 * high:
                break
            # The need is nearly linear in the scale; every third step halves, so that both ends move.
            guess = (
                low - f_low * (high - low) / (f_high - f_low) if step % 3 else 0.5 * (low + high)
            )
            guess = min(max(guess, low + 1e-10 * high), high - 1e-10 * high)
            f_guess = self.half_ring(guess, rotate=rotate) - limit
            low, f_low, high, f_high = (
                (guess, f_guess, high, f_high) if f_guess <= 0.0 else (low, f_low, guess, f_guess)
            )
        return low

    def advice(self, bits: int, scale: float | None) -> str:
        for ring in range(bits + 1, LARGEST_RING + 1):
            rotate = ring <= LARGEST_ROTATED_RING
            if scale is None and self.largest(
                ring, rotate=rotate, most=math.inf if rotate else 2.0**12 / self.clip
            ):
                break
            if scale is not None and self.half_ring(scale, rotate=rotate) <= 2.0 ** (ring - 1):
                break
        else:
            return "no ring up to 64 bits holds this sum: lower the scale, the clip or the noise."
        return (
            f"a ring of {bits} bits cannot hold the sum of {self.clients} clients in {self.dim} dimensions with its noise; the smallest "
            f"that holds it has {ring} bits."
        )
