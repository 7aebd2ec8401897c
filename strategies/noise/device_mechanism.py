"""The mechanism that devices apply under a plan of `strategies.noise.device`, and the variance that it needs.

All variances are in the mechanism's own units: of integers for the ring, of multiples of the clip for real numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from fedsketch.conf.schema import Noise
from fedsketch.errors import ConfigError
from fedsketch.privacy.accounting.releases import Release
from fedsketch.privacy.mechanisms.gaussian import GaussianNoise
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.strategies.noise.plan import calibrated
from fedsketch.strategies.noise.rings import ring_of

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
    ring, needed = ring_of(plan, plan.sizes.largest if plan.draw_is_secret else cohort)
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
    return ring_of(plan, plan.sizes.largest if plan.draw_is_secret else usual)[1]


def fixed_variance(plan: DeviceNoise) -> float:
    """Return the variance of the noise in every sum if the draw is secret. No cohort that is asked adds more by
    itself."""
    if plan.config.secagg.noise is Noise.SKELLAM:
        ring, _ = ring_of(plan, plan.sizes.largest)
        return ring.clients * ring.local_variance
    return needed_variance(plan) / plan.contributing_fraction


@lru_cache(maxsize=8)
def _gaussian_multiplier(plan: DeviceNoise) -> float:
    """Return the noise multiplier z of the sum over all contributors: from the budget, unless it is given."""
    given = plan.given_multiplier
    if given is not None:
        return given
    sampling, adversary = plan.worst_draw()

    def template(z: float) -> Release:
        return _gaussian_noise(plan, z).release_to(z**2, plan.unit, sampling, adversary)

    return calibrated(plan.config, template)


def _gaussian_noise(plan: DeviceNoise, multiplier: float) -> GaussianNoise:
    return GaussianNoise(
        unit=plan.unit, rows=plan.rows, local_multiplier=multiplier, clip=plan.clip
    )
