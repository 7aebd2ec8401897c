from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest

from fedsketch.errors import RingTooSmallError, UnsoundMechanismError
from fedsketch.privacy.accounting import renyi, skellam
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.calibration import calibrate, calibrate_skellam
from fedsketch.privacy.accounting.releases import Adversary, NoSampling, Release, Skellam, Unit
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing

MakeRelease = Callable[..., Release]
NoiseRule = Callable[[float, float], float]


@pytest.fixture
def design_noise(make_release: MakeRelease) -> NoiseRule:
    """100 rounds, epsilon 4, delta 1e-5, no amplification, by Renyi curves."""

    def price(release: Release, rounds: int, delta: float) -> float:
        law = release.law
        assert isinstance(law, Skellam)
        curve = skellam.curve(law.variance, law.l2_sensitivity, law.l1_sensitivity)
        return renyi.epsilon(rounds * curve, delta)

    def noise(l2: float, l1: float) -> float:
        z = calibrate(
            lambda z: make_release(Skellam((z * l2) ** 2, l2, l1)),
            rounds=100,
            epsilon=4.0,
            delta=1e-5,
            price=price,
        )
        return (z * l2) ** 2

    return noise


@pytest.fixture
def least_noise(make_release: MakeRelease) -> NoiseRule:
    """The accountant's, for the same budget."""

    def noise(l2: float, l1: float) -> float:
        return calibrate_skellam(
            make_release, l2_sensitivity=l2, l1_sensitivity=l1, rounds=100, epsilon=4.0, delta=1e-5
        )

    return noise


def _extra_error(plan: SkellamRing) -> float:
    """Against the continuous Gaussian with the same Renyi accounting."""
    return (plan.noise_std(plan.clients * plan.variance_per_device) / 11.577693) ** 2 - 1


@pytest.mark.parametrize(
    ("dim", "scale", "variance", "deviation", "extra"),
    [
        (100, 2**12, 22_494_209, 4742.806, 2.5e-4),
        (10_000, 2**12, 22_497_587, 4743.162, 4.0e-4),
        (100_000, 2**14, 359_874_530, 18970.359, 1.6e-4),
        (1_000_000, 2**14, 360_176_585, 18978.319, 9.9e-4),
    ],
)
def test_design_table_with_32_bits(
    design_noise: NoiseRule, dim: int, scale: float, variance: int, deviation: float, extra: float
) -> None:
    plan = choose_ring(dim=dim, clients=100, clip=1.0, noise=design_noise)
    assert (plan.bits, plan.rotate, plan.scale) == (32, False, scale)
    assert plan.local_variance == variance
    assert math.sqrt(plan.local_variance) == pytest.approx(deviation, abs=5e-4)
    assert _extra_error(plan) == pytest.approx(extra, rel=0.04)


@pytest.mark.parametrize(
    ("dim", "bits", "scale", "deviation", "extra"),
    [
        (100, 20, 3976.2, 4604.069, 2.5e-4),
        (100_000, 20, 5573.2, 6455.650, 9.9e-4),
        (100, 16, 248.3, 288.120, 4.5e-3),
        # The design prints 403.541; mu_l is a whole number here, and the largest scale that fits differs in its 6th
        # digit.
        (100_000, 16, 309.87, 403.541, 0.265),
    ],
)
def test_design_table_with_rotation(
    design_noise: NoiseRule, dim: int, bits: int, scale: float, deviation: float, extra: float
) -> None:
    plan = choose_ring(dim=dim, clients=100, clip=1.0, noise=design_noise, bits=bits)
    assert plan.rotate
    assert plan.scale == pytest.approx(scale, rel=1.3e-5, abs=0.05 if scale > 1000 else 5e-3)
    assert math.sqrt(plan.local_variance) == pytest.approx(deviation, rel=6e-6)
    assert _extra_error(plan) == pytest.approx(extra, rel=0.02)


def test_infeasible_ring_names_the_smallest_that_holds(design_noise: NoiseRule) -> None:
    with pytest.raises(RingTooSmallError, match="smallest that holds it has 18 bits"):
        choose_ring(dim=1_000_000, clients=100, clip=1.0, noise=design_noise, bits=16)
    choose_ring(dim=1_000_000, clients=100, clip=1.0, noise=design_noise, bits=18)
    with pytest.raises(RingTooSmallError):
        choose_ring(dim=1_000_000, clients=100, clip=1.0, noise=design_noise, bits=17)


def test_many_units_per_client_need_a_larger_ring_not_more_noise(design_noise: NoiseRule) -> None:
    one = choose_ring(dim=100, clients=100, clip=1.0, noise=design_noise)
    many = choose_ring(
        dim=100, clients=100, clip=1.0, noise=design_noise, rows=1000, scale=one.scale
    )
    assert many.local_variance == one.local_variance
    with pytest.raises(RingTooSmallError, match="30 bits"):
        choose_ring(
            dim=100, clients=100, clip=1.0, noise=design_noise, rows=1000, scale=one.scale, bits=24
        )


def test_given_scale_is_checked_not_changed(design_noise: NoiseRule) -> None:
    plan = choose_ring(dim=100, clients=100, clip=1.0, noise=design_noise, scale=2.0**10)
    assert plan.scale == 2.0**10
    with pytest.raises(RingTooSmallError, match="smallest that holds it has 35 bits"):
        choose_ring(dim=100, clients=100, clip=1.0, noise=design_noise, scale=2.0**26)


@pytest.mark.parametrize(
    ("drops", "colluders", "factor"), [(0, 0, 1.0), (5, 0, 1.053), (5, 20, 1.333)]
)
def test_noise_of_the_fewest_honest_survivors_is_enough(
    least_noise: NoiseRule, drops: int, colluders: int, factor: float
) -> None:
    """The price in variance if nobody drops out, and the budget is kept if as many drop out as may."""
    plan = choose_ring(
        dim=100, clients=100, clip=1.0, noise=least_noise, drops=drops, colluders=colluders
    )
    nobody = choose_ring(dim=100, clients=100, clip=1.0, noise=least_noise)
    assert plan.local_variance / nobody.local_variance == pytest.approx(factor, abs=5e-4)
    accountant = Accountant(1e-5)
    honest = 100 - drops - colluders
    worst = plan.release_to(
        honest * plan.variance_per_device, Unit.CLIENT, NoSampling(), Adversary.server(colluders)
    )
    accountant.record(worst, 100)
    assert 3.9999 < accountant.epsilon().epsilon <= 4.0


def test_clip_only_rescales(design_noise: NoiseRule) -> None:
    one = choose_ring(dim=100, clients=100, clip=1.0, noise=design_noise)
    small = choose_ring(dim=100, clients=100, clip=0.25, noise=design_noise)
    assert small.local_variance == one.local_variance
    assert small.noise_std(100 * small.variance_per_device) == pytest.approx(
        0.25 * one.noise_std(100 * one.variance_per_device)
    )
    assert one.noise_std(100 * one.variance_per_device) == pytest.approx(11.577693, rel=2e-4)


@pytest.mark.parametrize(
    "terms",
    [
        {"clients": 10, "drops": 6, "colluders": 4},
        {"bits": 15},
        {"bits": 65},
        {"clip": 0.0},
        {"drops": -1},
    ],
)
def test_nonsense_is_refused(terms: dict[str, float]) -> None:
    values: dict[str, float] = {"dim": 10, "clients": 10, "clip": 1.0} | terms
    with pytest.raises(ValueError, match=r"\."):
        choose_ring(noise=lambda l2, l1: l2**2, **values)  # type: ignore[arg-type]


def test_noise_that_no_device_can_draw_is_refused() -> None:
    """Both where the ring is chosen and where a device reads what was chosen; 2^62 itself is drawn."""
    plan = choose_ring(dim=1, clients=1, clip=1.0, bits=64, noise=lambda l2, l1: 2.0**62)
    assert mechanism_from_record(plan.to_record()) == plan
    with pytest.raises(ValueError, match=r"variance 2\^62 at most .* lower the scale"):
        choose_ring(dim=1, clients=1, clip=1.0, bits=64, noise=lambda l2, l1: 2.0**63)
    with pytest.raises(UnsoundMechanismError, match="local_variance"):
        mechanism_from_record(plan.to_record() | {"local_variance": 2**62 + 1})


@pytest.mark.parametrize("clients", [1_650, 1_975])
def test_the_ring_that_an_error_names_is_large_enough(clients: int) -> None:
    """So many numbers need a larger scale than short vectors do."""

    def choose(bits: int) -> None:
        choose_ring(
            dim=10**8, clients=clients, clip=1.0, noise=lambda l2, l1: (4 * l2) ** 2, bits=bits
        )

    with pytest.raises(RingTooSmallError) as error:
        choose(21)
    named = re.search(r"smallest that holds it has (\d+) bits", str(error.value))
    assert named is not None
    choose(int(named[1]))
    with pytest.raises(RingTooSmallError):
        choose(int(named[1]) - 1)
