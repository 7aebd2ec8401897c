"""Choosing the ring, scale, rotation and noise of a `SkellamRing` so that they fit together: the server's work, once
per kind of cohort."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.rows import sum_bound
from fedsketch.privacy.mechanisms.skellam_ring import (
    LARGEST_RING,
    SMALLEST_RING,
    SkellamRing,
    l1_bound,
    l2_bound,
    required_half_ring,
)
from fedsketch.privacy.mechanisms.skellam_sampler import LARGEST_VARIANCE

NoiseRule = Callable[[float, float], float]
"""(D2, D1) -> variance of the honest survivors' noise, in integer units."""

LARGEST_ROTATED_RING = 20
_LARGEST_PRICE = 1.01  # D2 of rounded sums over that of rounded rows


class RingTooSmallError(ValueError):
    """The ring cannot hold the sum; the message names the smallest one that can."""


def choose_ring(
    *,
    dim: int,
    clients: int,
    clip: float,
    noise: NoiseRule,
    unit: Unit = Unit.CLIENT,
    rows: int = 1,
    bits: int = 32,
    drops: int = 0,
    colluders: int = 0,
    honest: float | None = None,
    scale: float | None = None,
    wraparound_probability: float = 1e-9,
) -> SkellamRing:
    """Choose rotation, rounding and scale for the ring, ask `noise` for the variance, and check that the sum fits.

    `rows` is the largest number of vectors of norm C that one client adds up: 1, or its examples where those are the
    privacy unit. Rings up to 20 bits rotate and take the largest scale that fits; larger ones do not rotate, and take s
    C = 2^12 (2^14 above ten thousand numbers) or less where the ring is tight, but never so little that rounding
    doubles the noise. A `scale` that is given is checked, not changed. So many devices bring the noise that is asked
    for as `honest` says: those who neither drop nor collude, if it says nothing.

    Where examples are the unit, a device's sum is rounded and not each of its rows, which is faster, unless that costs
    more than 1 % of noise, as in small rings. The scale is then up to s C = 2^9 sqrt(k).
    """
    if honest is None:
        honest = clients - drops - colluders
    if min(dim, clients, rows) < 1 or min(drops, colluders) < 0 or honest <= 0:
        raise ValueError(
            f"{clients} clients with {drops} drops and {colluders} colluders leave no honest noise: lower drops or colluders."
        )
    if not SMALLEST_RING <= bits <= LARGEST_RING:
        raise ValueError(f"the ring has {SMALLEST_RING} to {LARGEST_RING} bits, not {bits}.")
    if not (clip > 0.0 and math.isfinite(clip)):
        raise ValueError(f"the clip must be positive and finite, not {clip}.")
    rotate = bits <= LARGEST_ROTATED_RING
    search = _ScaleSearch(dim, clients, rows, honest, clip, noise, wraparound_probability)
    of_sums = replace(search, rounds_sum=True)
    if unit is Unit.EXAMPLE and rows > 1 and of_sums.cheap(found := of_sums.chosen(bits, scale)):
        search, scale = of_sums, found
    else:
        scale = search.chosen(bits, scale)
    if scale is None or search.half_ring(scale, rotate=rotate) > 2.0 ** (bits - 1):
        raise RingTooSmallError(search.advice(bits, scale))
    local_variance = search.local_variance(scale)
    if local_variance > LARGEST_VARIANCE:
        raise ValueError(
            f"a device draws noise of variance 2^62 at most in integer units, not {local_variance:.3g}: lower the scale or the noise."
        )
    return SkellamRing(
        unit=unit,
        rows=rows,
        dim=dim,
        bits=bits,
        scale=scale,
        rotate=rotate,
        clip=clip,
        clients=clients,
        drops=drops,
        colluders=colluders,
        local_variance=local_variance,
        wraparound_probability=wraparound_probability,
        rounds_sum=search.rounds_sum,
    )


@dataclass(frozen=True)
class _ScaleSearch:
    dim: int
    clients: int
    rows: int
    honest: float
    clip: float
    noise: NoiseRule
    probability: float
    rounds_sum: bool = False

    def chosen(self, bits: int, scale: float | None) -> float | None:
        """The scale for a ring, if none is given; None: there is none."""
        if scale is not None:
            return scale
        rotate = bits <= LARGEST_ROTATED_RING
        return self.largest(bits, rotate=rotate, most=math.inf if rotate else self.preferred)

    @property
    def preferred(self) -> float:
        """At which rounding costs little: D2 of a sum is then larger than s C by 0.2 %."""
        scaled = 2.0**12 if self.dim <= 10_000 else 2.0**14
        if self.rounds_sum:
            scaled = max(scaled, 2.0**9 * math.sqrt(self.dim))
        return scaled / self.clip

    def cheap(self, scale: float | None) -> bool:
        """Whether rounding sums takes hardly more noise than rounding rows."""
        if scale is None:
            return False
        return self.l2(scale) <= _LARGEST_PRICE * l2_bound(self.dim, scale * self.clip)

    def l2(self, scale: float) -> float:
        if self.rounds_sum:
            return sum_bound(self.dim, scale * self.clip, self.rows, 1)
        return l2_bound(self.dim, scale * self.clip)

    def local_variance(self, scale: float) -> int:
        l2 = self.l2(scale)
        return math.ceil(self.noise(l2, l1_bound(self.dim, l2)) / self.honest)

    def half_ring(self, scale: float, *, rotate: bool) -> float:
        return required_half_ring(
            dim=self.dim,
            clients=self.clients,
            rows=self.rows,
            scaled_clip=scale * self.clip,
            local_variance=self.local_variance(scale),
            rotate=rotate,
            probability=self.probability,
            rounds_sum=self.rounds_sum,
        )

    def largest(self, bits: int, *, rotate: bool, most: float) -> float | None:
        """The largest scale up to `most` that fits the ring (to 1e-9), or None. The half ring needed grows with the
        scale."""
        limit = 2.0 ** (bits - 1)
        if math.isfinite(most) and self.half_ring(most, rotate=rotate) <= limit:
            return most
        # A smaller scale would let the rounding alone double D2^2, and with it the noise: such a ring does not hold the
        # sum.
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
