"""The smallest ring that serves: in it a sum has hardly more noise than in a very large one, for the same guarantee.

A small ring needs a small scale s, or the sum would wrap around. Then rounding costs more. It adds its own error, and
it lengthens rows, which then need more noise: those of length s C by about k / (8 s C).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedsketch.errors import RingTooSmallError
from fedsketch.privacy.mechanisms.ring_choice import NoiseRule
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing

LARGEST_COST = 1.01
"""The standard deviation of noise and rounding in the chosen ring, divided by that in a very large one."""


def smallest_ring(
    sizes: Iterable[int],
    choose: Callable[[int, NoiseRule], SkellamRing],
    noise: NoiseRule,
    large: SkellamRing,
    *,
    fine: bool = False,
) -> int:
    """Return the bits of the smallest ring of these sizes that costs at most 1 % of noise beside the `large` one.

    `choose` makes the ring of a size with a rule for its noise. Sums of devices are rounded where the large ring rounds
    them: rounding their rows would do in a smaller ring, but is slower and needs more memory. With `fine` the ring does
    not rotate, and its scale is that of the large ring.
    """
    multiple = noise(large.l2_sensitivity, large.l1_sensitivity) / large.l2_sensitivity**2

    def least(l2: float, l1: float) -> float:
        # In a small ring it is not less than this, and `noise` may take seconds.
        return multiple * l2**2

    for bits in sizes:
        if all(_serves(choose, bits, rule, large, fine) for rule in (least, noise)):
            return bits
    raise RingTooSmallError(
        f"no ring of up to {max(sizes)} bits holds the sum of {large.clients} clients in {large.dim} dimensions "
        "at a cost below 1 % of noise: set its bits to a number, which accepts any cost, or take a protocol with "
        "larger rings."
    )


def error_std(ring: SkellamRing) -> float:
    """Return the standard deviation of noise and rounding in a sum, at most, if every client is in it."""
    roundings = ring.clients * (1 if ring.rounds_once else ring.rows)
    return ring.noise_std(ring.clients * ring.local_variance + roundings / 4.0)


def _serves(
    choose: Callable[[int, NoiseRule], SkellamRing],
    bits: int,
    noise: NoiseRule,
    large: SkellamRing,
    fine: bool,
) -> bool:
    try:
        ring = choose(bits, noise)
    except RingTooSmallError:
        return False
    if ring.rounds_once != large.rounds_once:
        return False
    if fine and (ring.rotate or ring.scale != large.scale):
        return False
    return error_std(ring) <= LARGEST_COST * error_std(large)
