"""The ring in which the integers of a round are summed, and the noise that it needs.

With `secagg.bits=auto` it is the smallest that serves (`privacy.mechanisms.smallest_ring`), for the largest cohort that
is asked. Each kind of round has a plan of its own, and so its own ring.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from fedsketch.privacy.accounting.calibration import calibrate_skellam
from fedsketch.privacy.accounting.releases import Adjacency, Release
from fedsketch.privacy.mechanisms.ring_choice import NoiseRule, choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import LARGEST_RING, SkellamRing
from fedsketch.privacy.mechanisms.smallest_ring import smallest_ring
from fedsketch.secagg import ProtocolName, ring_sizes
from fedsketch.strategies.noise.protocol import prime_of, protocol_of

if TYPE_CHECKING:
    from fedsketch.strategies.noise.device import DeviceNoise


@lru_cache(maxsize=64)
def ring_of(plan: DeviceNoise, cohort: int) -> tuple[SkellamRing, float]:
    """Return the ring with its scale, for cohorts of up to this size and the longest upload, and the variance that the
    contributors to a sum must add together.

    If the draw is secret, each device's part in the returned ring is such that this cohort would add the fixed
    variance, the most that any accepted cohort adds.
    """
    protocol, needed = _protocol(plan), _needed(plan)
    bits = bits_of(plan, protocol)
    ring = _chosen(plan, cohort, bits, prime_of(protocol, bits), needed)
    return ring, needed(ring.l2_sensitivity, ring.l1_sensitivity)


@lru_cache(maxsize=64)
def _protocol(plan: DeviceNoise) -> ProtocolName:
    return protocol_of(plan.config, plan.groups, plan.dim, lambda name: bits_of(plan, name))


@lru_cache(maxsize=64)
def bits_of(plan: DeviceNoise, protocol: ProtocolName) -> int:
    """Return the size of the ring in which this protocol sums. Raises RingTooSmallError if it has none that serves."""
    given = plan.config.secagg.bits
    if isinstance(given, int):
        return given
    cohort, needed = plan.sizes.largest, _needed(plan)
    return smallest_ring(
        ring_sizes(protocol),
        lambda bits, noise: _chosen(plan, cohort, bits, prime_of(protocol, bits), noise),
        needed,
        _chosen(plan, cohort, LARGEST_RING, 0, needed),
        fine=plan.fine,
    )


@lru_cache(maxsize=64)
def _needed(plan: DeviceNoise) -> NoiseRule:
    """Return the rule for the variance that the contributors to a sum must add together."""
    privacy, given = plan.config.privacy, plan.given_multiplier
    sampling, adversary = plan.worst_draw()

    @lru_cache(maxsize=1)
    def needed(l2: float, l1: float) -> float:
        if given is not None:
            return (given * l2) ** 2
        assert privacy.epsilon is not None
        return calibrate_skellam(
            lambda law: Release(law, sampling, Adjacency.ZERO_OUT, plan.unit, adversary),
            l2_sensitivity=l2,
            l1_sensitivity=l1,
            rounds=plan.config.rounds,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
        )

    return needed


def _chosen(plan: DeviceNoise, cohort: int, bits: int, prime: int, noise: NoiseRule) -> SkellamRing:
    sizes, secret = plan.sizes, plan.draw_is_secret
    members = sizes.members(cohort)
    # A device's part is rounded up to an integer, so a cohort adds up to one unit more for each of its members.
    rounding = members if secret else 0
    assert plan.clip is not None
    return choose_ring(
        dim=plan.dim,
        clients=members,
        unit=plan.unit,
        rows=plan.rows,
        clip=plan.clip,
        noise=lambda l2, l1: noise(l2, l1) + rounding,
        bits=bits,
        prime=prime,
        drops=sizes.drops(cohort),
        colluders=sizes.colluders(cohort),
        honest=members * plan.contributing_fraction if secret else plan.contributors(cohort),
    )
