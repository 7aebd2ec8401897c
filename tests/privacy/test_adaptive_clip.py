from __future__ import annotations

import numpy as np
import pytest

from privacy import exact_gaussian
from privacy.adaptive_clip import (
    AdaptiveClip,
    joint_noise_multiplier,
    update_noise_multiplier,
    within_clip,
)


def test_updates_and_count_together_cost_what_was_booked() -> None:
    """Independent computation: the squared mu of the two Gaussian releases, 1/z_u^2 and (1/2)^2/std^2, add up to 1/z^2."""
    z, count_std = 2.0, 5.0
    update = update_noise_multiplier(z, count_std)
    mu = (update**-2 + (0.5 / count_std) ** 2) ** 0.5
    assert exact_gaussian.epsilon(mu, 1e-5) == pytest.approx(
        exact_gaussian.epsilon(1 / z, 1e-5), rel=1e-12
    )
    assert joint_noise_multiplier(update, count_std) == pytest.approx(z, rel=1e-12)
    assert update > z


def test_a_count_that_spends_everything_is_refused() -> None:
    with pytest.raises(ValueError, match="must exceed 1"):
        update_noise_multiplier(2.0, 1.0)
    with pytest.raises(ValueError, match="must exceed 1"):
        update_noise_multiplier(2.0, 0.0)


def test_no_noise_stays_no_noise() -> None:
    assert update_noise_multiplier(0.0, 1.0) == 0.0
    assert joint_noise_multiplier(1.0, 0.0) == 0.0
    assert joint_noise_multiplier(0.0, 1.0) == 0.0


@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.9])
def test_clip_finds_the_quantile_under_noise(quantile: float) -> None:
    """1000 log-normal norms, count noise 10: after 300 rounds the clip is within 15 % of the quantile; fixed seed."""
    rng = np.random.default_rng(5)
    norms = np.exp(rng.normal(0.0, 1.0, 1000))
    rule = AdaptiveClip(clip=100.0, quantile=quantile)
    for _ in range(300):
        count = sum(within_clip(norm, rule.clip) for norm in norms) + rng.normal(0.0, 10.0)
        rule = rule.updated(count, len(norms))
    assert rule.clip == pytest.approx(np.quantile(norms, quantile), rel=0.15)


def test_wild_noise_moves_the_clip_by_one_step_at_most() -> None:
    rule = AdaptiveClip(clip=1.0, quantile=0.5, learning_rate=0.2)
    assert rule.updated(-1e9, 10).clip == pytest.approx(np.exp(0.1))
    assert rule.updated(+1e9, 10).clip == pytest.approx(np.exp(-0.1))


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="clip"):
        AdaptiveClip(clip=0.0)
    with pytest.raises(ValueError, match="quantile"):
        AdaptiveClip(clip=1.0, quantile=1.5)
