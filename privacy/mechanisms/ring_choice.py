"""The server chooses the parameters of a `SkellamRing` (scale, rotation, rounding and noise) so that they fit
together, once for every kind of cohort."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fedsketch.errors import RingTooSmallError
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.ring_integers import modulus_of
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
"""(D2, D1), the L2 and L1 sensitivity -> variance of the noise of all honest survivors, in integer units."""

LARGEST_ROTATED_RING = 20  # bits
_LARGEST_PRICE = 1.01  # D2 of rounded sums, divided by D2 of rounded rows


def choose_ring(
    *,
    dim: int,
    clients: int,
    clip: float,
    noise: NoiseRule,
    unit: Unit = Unit.CLIENT,
    rows: int = 1,
    bits: int = 32,
    prime: int = 0,
    drops: int = 0,
    colluders: int = 0,
    honest: float | None = None,
    scale: float | None = None,
    wraparound_probability: float = 1e-9,
) -> SkellamRing:
    """Choose rotation, rounding and scale for the ring, ask `noise` for the variance, and check that the sum fits.

    `rows` is the largest number of vectors of norm C (`clip`) that one client adds up: 1, or the number of its examples
    if examples are the privacy unit. The modulus is `prime`, or 2^`bits`. Rings of up to 20 bits rotate, and use the
    largest scale s that fits. Larger rings do not rotate. They use s C = 2^12 (2^14 for more than ten thousand
    numbers), or less if the ring is tight, but never so little that rounding doubles the noise. A given `scale` is
    checked, not changed. `honest` is the number of devices that together add the required noise. By default these are
    all that neither drop out nor collude.

    If examples are the unit, the sum of a device is rounded instead of each of its rows, because this is faster. Small
    rings are an exception: rows are rounded if rounding the sum would cost more than 1 % of noise. When sums are
    rounded, the scale is up to s C = 2^9 sqrt(k) if that is more, with k numbers per row.
    """
    if honest is None:
        honest = clients - drops - colluders
    if min(dim, clients, rows) < 1 or min(drops, colluders) < 0 or honest <= 0:
        raise ValueError(
            f"{clients} clients with {drops} drops and {colluders} colluders leave no honest noise: "
            "lower drops or colluders."
        )
    if not SMALLEST_RING <= bits <= LARGEST_RING:
        raise ValueError(f"the ring has {SMALLEST_RING} to {LARGEST_RING} bits, not {bits}.")
    if not (clip > 0.0 and math.isfinite(clip)):
        raise ValueError(f"the clip must be positive and finite, not {clip}.")
    rotate, half = bits <= LARGEST_ROTATED_RING, modulus_of(bits, prime) // 2
    search = _ScaleSearch(dim, clients, rows, honest, clip, noise, wraparound_probability)
    of_sums = replace(search, rounds_once=True)
    found = of_sums.chosen(bits, half, scale) if unit is Unit.EXAMPLE and rows > 1 else None
    if of_sums.cheap(found):
        search, scale = of_sums, found
    else:
        scale = search.chosen(bits, half, scale)
    if scale is None or search.half_ring(scale, rotate=rotate) > half:
        raise RingTooSmallError(search.advice(bits, scale))
    local_variance = search.local_variance(scale)
    if local_variance > LARGEST_VARIANCE:
        raise ValueError(
            f"a device draws noise of variance 2^62 at most in integer units, not {local_variance:.3g}: "
            "lower the scale or the noise."
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
        rounds_once=search.rounds_once,
        prime=prime,
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
    rounds_once: bool = False

    def chosen(self, bits: int, half: int, scale: float | None) -> float | None:
        """Return the given scale, or else the best scale for a ring of this size whose modulus has this half. None if
        no scale fits."""
        if scale is not None:
            return scale
        rotate = bits <= LARGEST_ROTATED_RING
        return self.largest(half, rotate=rotate, most=math.inf if rotate else self.preferred)

    @property
    def preferred(self) -> float:
        """A scale at which rounding costs little: D2 of a rounded sum is then 0.2 % larger than s C."""
        scaled = 2.0**12 if self.dim <= 10_000 else 2.0**14
        if self.rounds_once:
            scaled = max(scaled, 2.0**9 * math.sqrt(self.dim))
        return scaled / self.clip

    def cheap(self, scale: float | None) -> bool:
        """Return whether rounding sums needs hardly more noise than rounding rows."""
        if scale is None:
            return False
        return self.l2(scale) <= _LARGEST_PRICE * l2_bound(self.dim, scale * self.clip)

    def l2(self, scale: float) -> float:
        if self.rounds_once:
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
            rounds_once=self.rounds_once,
        )

    def largest(self, limit: int, *, rotate: bool, most: float) -> float | None:
        """Return the largest scale up to `most` that fits this half of a ring (to a relative 1e-9), or None. The search
        relies on the required half growing with the scale."""
        if math.isfinite(most) and self.half_ring(most, rotate=rotate) <= limit:
            return most
        # With a scale below `low`, rounding alone would double D2^2 and with it the variance of the noise. A ring that
        # needs such a scale counts as too small.
        slack = self.dim / 4.0 + math.sqrt(self.dim) / 2.0
        low = (1.0 + math.sqrt(1.0 + 4.0 * slack)) / 2.0 / self.clip
        high = min(most, 2.0 * limit / self.clip)
        if low >= high:
            return None
        f_low = self.half_ring(low, rotate=rotate) - limit
        f_high = self.half_ring(high, rotate=rotate) - limit
        if f_low > 0.0:
            return None
        for step in range(200):
            if high - low <= 1e-9 * high:
                break
            # The required half ring is nearly linear in the scale. Every third step halves, so that both ends move.
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
            half, rotate = 1 << ring - 1, ring <= LARGEST_ROTATED_RING
            found = self.chosen(ring, half, scale)
            if found is not None and self.half_ring(found, rotate=rotate) <= half:
                break
        else:
            return "no ring up to 64 bits holds this sum: lower the scale, the clip or the noise."
        return (
            f"a ring of {bits} bits cannot hold the sum of {self.clients} clients in {self.dim} dimensions "
            f"with its noise; the smallest that holds it has {ring} bits."
        )
