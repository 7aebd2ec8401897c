"""The mechanism that devices apply under a plan of `strategies.noise.device`, and the variance that it needs.

All variances are in the mechanism's own units: of integers for the ring, of multiples of the clip for real numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from fedsketch.conf.schema import Accounting, Noise
from fedsketch.errors import ConfigError
from fedsketch.privacy.accounting.calibration import calibrate_skellam
from fedsketch.privacy.accounting.dome_theorem import paper_noise_multiplier
from fedsketch.privacy.accounting.releases import Adjacency, Release
from fedsketch.privacy.mechanisms.gaussian import GaussianNoise
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.strategies.noise.plan import calibrated

if TYPE_CHECKING:
    from fedsketch.strategies.noise.device import DeviceNoise


@lru_cache(maxsize=256)
def of_plan(plan: DeviceNoise, cohort: int, dim: int) -> Mechanism:
    """Return the mechanism of each device in a cohort of this size, for an upload of `dim` numbers."""
    contributors = plan.contributors(cohort)
    if contributors < 1:
        raise ConfigError(
            f"{cohort} clients with {plan.sizes.drops(cohort)} drops and {plan.known(cohort)} colluders leave no "
            "honest noise: raise clients.per_round, or lower clients.tolerated_dropouts or secagg.colluders."
        )
    if plan.config.secagg.noise is not Noise.SKELLAM:
        return _gaussian_noise(plan, math.sqrt(needed_variance(plan) / contributors))
    ring, needed = _ring(plan, plan.sizes.largest if plan.draw_is_secret else cohort)
    # For an upload shorter than the longest both sensitivities are smaller, so it costs no more than the accountant
    # books.
    return replace(
        ring,
        dim=dim,
        clients=plan.sizes.members(cohort),
        drops=plan.sizes.drops(cohort),
        colluders=plan.sizes.colluders(cohort),
        local_variance=math.ceil(needed / contributors),
    )


def needed_variance(plan: DeviceNoise) -> float:
    """Return the variance of the noise that the contributors to a sum must add together."""
    if plan.config.secagg.noise is not Noise.SKELLAM:
        return _gaussian_multiplier(plan) ** 2
    usual = plan.config.clients.per_round
    return _ring(plan, plan.sizes.largest if plan.draw_is_secret else usual)[1]


def fixed_variance(plan: DeviceNoise) -> float:
    """Return the variance of the noise in every sum if the draw is secret. No cohort that is asked adds more by
    itself."""
    if plan.config.secagg.noise is Noise.SKELLAM:
        ring, _ = _ring(plan, plan.sizes.largest)
        return ring.clients * ring.local_variance
    return needed_variance(plan) / plan.contributing_fraction


@lru_cache(maxsize=8)
def _gaussian_multiplier(plan: DeviceNoise) -> float:
    """Return the noise multiplier z of the sum over all contributors: from the budget, unless it is given."""
    given = _given(plan)
    if given is not None:
        return given
    sampling, adversary = plan.worst_draw()

    def template(z: float) -> Release:
        return _gaussian_noise(plan, z).release_to(z**2, plan.unit, sampling, adversary)

    return calibrated(plan.config, template)


def _given(plan: DeviceNoise) -> float | None:
    """Return the noise multiplier if the user or a paper's theorem gives it. None if the accountant computes it."""
    privacy = plan.config.privacy
    if plan.multiplier is not None or privacy.accounting is Accounting.EXACT:
        return plan.multiplier
    assert privacy.epsilon is not None  # or the config would not have passed
    return paper_noise_multiplier(
        epsilon=privacy.epsilon, delta=privacy.delta, compositions=plan.config.rounds
    )


def _gaussian_noise(plan: DeviceNoise, multiplier: float) -> GaussianNoise:
    return GaussianNoise(
        unit=plan.unit, rows=plan.rows, local_multiplier=multiplier, clip=plan.clip
    )


@lru_cache(maxsize=64)
def _ring(plan: DeviceNoise, cohort: int) -> tuple[SkellamRing, float]:
    """Return the ring with its scale, for cohorts of up to this size and the longest upload, and the variance that the
    contributors to a sum must add together.

    If the draw is secret, each device's part in the returned ring is such that this cohort would add the fixed
    variance, the most that any accepted cohort adds.
    """
    privacy, sizes = plan.config.privacy, plan.sizes
    assert plan.clip is not None
    sampling, adversary = plan.worst_draw()
    given = _given(plan)

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

    members, secret = sizes.members(cohort), plan.draw_is_secret
    honest = members * plan.contributing_fraction if secret else plan.contributors(cohort)
    # A device's part is rounded up to an integer, so a cohort adds up to one unit more for each of its members.
    rounding = members if secret else 0
    ring = choose_ring(
        dim=plan.dim,
        clients=members,
        unit=plan.unit,
        rows=plan.rows,
        clip=plan.clip,
        noise=lambda l2, l1: needed(l2, l1) + rounding,
        bits=plan.config.secagg.bits,
        drops=sizes.drops(cohort),
        colluders=sizes.colluders(cohort),
        honest=honest,
    )
    return ring, needed(ring.l2_sensitivity, ring.l1_sensitivity)
