"""The noise that devices bring: shares that add up, releases that say what is seen, and a budget that is met and never
broken."""

from functools import cache

import pytest

from fedsketch.conf import compose
from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting import releases as release
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import Adversary, Release
from fedsketch.strategies.noise.device import DeviceNoise

PLAIN = ["secagg=none", "privacy.against=model"]


@cache
def _plan(*overrides: str) -> DeviceNoise:
    config = compose([*PLAIN, *overrides])
    return DeviceNoise(config, 10, 1, config.privacy.clip, config.privacy.noise_multiplier)


def _epsilon(plan: DeviceNoise, against: Against, rounds: int) -> float:
    cohort = plan.config.clients.per_round
    accountant = Accountant(plan.config.privacy.delta)
    accountant.record(plan.releases(cohort, plan.sizes.survivors(cohort))[against], rounds)
    return accountant.epsilon().epsilon


@pytest.mark.parametrize("tolerated", [0.0, 0.1, 0.29, 0.5, 0.99])
@pytest.mark.parametrize("cohort", [1, 2, 7, 100])
def test_shares_of_any_allowed_survivors_add_up(cohort: int, tolerated: float) -> None:
    plan = _plan(
        "privacy.noise_multiplier=1.7",
        "privacy.epsilon=null",
        "privacy.clip=0.3",
        f"clients.tolerated_dropouts={tolerated}",
    )
    mechanism = plan.mechanism(cohort)
    own = mechanism.noise_std(mechanism.variance_per_device)
    fewest = plan.sizes.survivors(cohort)
    assert 1 <= fewest <= cohort
    assert cohort - fewest <= cohort * tolerated
    for survivors in range(fewest, cohort + 1):
        assert survivors * own**2 >= (1.7 * 0.3) ** 2 * (1 - 1e-12)
        assert mechanism.noise_std(survivors * mechanism.variance_per_device) == pytest.approx(
            survivors**0.5 * own
        )
    # And not more than needed: with the fewest it is exactly that.
    assert fewest * own**2 == pytest.approx((1.7 * 0.3) ** 2)


def test_without_a_clip_there_is_neither_bound_nor_noise() -> None:
    mechanism = _plan("privacy=none").mechanism(10)
    assert mechanism.bound is None
    assert mechanism.noise_std(10 * mechanism.variance_per_device) == 0


@pytest.mark.parametrize(
    ("overrides", "sampling"),
    [
        (["clients.sampling=fixed"], release.WithoutReplacement(10, 40)),
        (["clients.sampling=poisson"], release.Poisson(0.25)),
        (["clients.sampling=passes"], release.FullPasses(4)),
        (["clients.sampling=passes", "clients.per_round=15"], release.FullPasses(3)),
        (["clients.sampling=fixed", "clients.per_round=40"], release.NoSampling()),
        (["clients.sampling=poisson", "clients.per_round=40"], release.NoSampling()),
    ],
)
def test_releases_state_the_sampling_of_the_model_and_none_for_the_server(
    overrides: list[str], sampling: release.SecretDraw
) -> None:
    plan = _plan(
        "clients.total=40", "clients.per_round=10", "privacy.noise_multiplier=2", *overrides
    )
    cohort = plan.config.clients.per_round
    releases = plan.releases(cohort, cohort)
    assert releases[Against.MODEL].sampling == sampling
    assert releases[Against.MODEL].adversary == Adversary.MODEL
    assert releases[Against.SERVER].sampling == release.NoSampling()
    assert releases[Against.SERVER].adversary == Adversary.SERVER


@pytest.mark.parametrize("unit", ["client", "example"])
def test_releases_state_unit_and_adjacency(unit: str) -> None:
    for shown in _plan(f"privacy={unit}", "privacy.noise_multiplier=2").releases(100, 100).values():
        assert shown.unit.value == unit
        assert shown.adjacency is release.Adjacency.ZERO_OUT


def _multiplier(shown: Release) -> float:
    assert isinstance(shown.law, release.Gaussian)
    return shown.law.noise_multiplier


def test_a_server_without_masks_sees_one_devices_noise_only() -> None:
    plan = _plan("privacy.noise_multiplier=3", "clients.tolerated_dropouts=0.19")
    releases = plan.releases(100, 81)
    assert _multiplier(releases[Against.MODEL]) == pytest.approx(3.0)
    assert _multiplier(releases[Against.SERVER]) == pytest.approx(3.0 / 9.0)


def test_more_survivors_never_mean_less_noise() -> None:
    plan = _plan("privacy.noise_multiplier=3", "clients.tolerated_dropouts=0.5")
    noises = [_multiplier(plan.releases(20, clients)[Against.MODEL]) for clients in range(10, 21)]
    assert noises == sorted(noises)
    assert noises[0] == pytest.approx(3.0)


@pytest.mark.parametrize("against", ["model", "server"])
@pytest.mark.parametrize(
    "sampling",
    [
        ["clients.per_round=40"],
        ["clients.per_round=10", "clients.sampling=fixed"],
        ["clients.per_round=10", "clients.sampling=poisson"],
        ["clients.per_round=10", "clients.sampling=passes"],
    ],
    ids=["all", "fixed", "poisson", "passes"],
)
def test_all_rounds_cost_the_budget_and_never_more(sampling: list[str], against: str) -> None:
    plan = _plan(
        "clients.total=40",
        "rounds=12",
        "privacy.epsilon=3",
        f"privacy.against={against}",
        "clients.tolerated_dropouts=0.2",
        *sampling,
    )
    spent = _epsilon(plan, Against(against), 12)
    assert spent <= 3.0
    assert spent == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize("secagg", ["pairwise", "semi_honest"])
def test_the_budget_against_the_server_is_met_under_secure_aggregation(secagg: str) -> None:
    plan = _plan(
        f"secagg={secagg}",
        "privacy.against=server",
        "clients.total=40",
        "clients.per_round=20",
        "rounds=12",
        "privacy.epsilon=3",
        "clients.tolerated_dropouts=0.2",
        "secagg.colluders=0.1",
    )
    spent = _epsilon(plan, Against.SERVER, 12)
    # Rounding to integers costs a little; more than a few percent would be a mistake.
    assert 2.8 <= spent <= 3.0
    # Of 16 survivors 2 may tell the server their noise. Those who only see models face that of all who were asked, to
    # which the server brings it, and two fellow clients know theirs.
    seen = {against: shown.law for against, shown in plan.releases(20, 16).items()}
    variances = [law.variance for law in seen.values() if isinstance(law, release.Skellam)]
    share = plan.mechanism(20).variance_per_device
    assert variances == pytest.approx([20 * share, 18 * share, 14 * share], rel=1e-5)


def test_masks_let_the_server_see_only_the_sum() -> None:
    plain = ["privacy.noise_multiplier=1", "clients.total=100", "clients.per_round=100"]
    alone = _plan(*plain)
    masked = _plan(*plain, "secagg=pairwise", "privacy.against=server")
    assert _epsilon(masked, Against.SERVER, 10) < _epsilon(alone, Against.SERVER, 10) / 5


def test_a_given_noise_multiplier_is_taken_as_it_is() -> None:
    plan = _plan("privacy.noise_multiplier=0.77", "privacy.epsilon=3")
    assert plan.noise_multiplier == 0.77
    assert _multiplier(plan.releases(100, 100)[Against.MODEL]) == pytest.approx(0.77)


def test_a_smaller_budget_brings_more_noise() -> None:
    noises = [_plan(f"privacy.epsilon={e}").noise_multiplier for e in (8, 4, 2, 1)]
    assert noises == sorted(noises)
    assert len(set(noises)) == 4


def test_the_papers_noise_is_more_than_the_accountant_asks_for() -> None:
    """DOME's Theorem 3.3 as printed, and what the accountant says that it costs."""
    common = ["clients.total=100", "clients.per_round=100", "rounds=100", "privacy.epsilon=4"]
    exact, paper = _plan(*common), _plan(*common, "privacy.accounting=paper")
    assert exact.noise_multiplier == pytest.approx(10.811618, rel=1e-4)
    assert paper.noise_multiplier == pytest.approx(23.992630, rel=1e-6)
    assert _epsilon(paper, Against.MODEL, 100) < 2
