"""Where the draw of a cohort counts as a secret, nothing but the sum may tell how it came out: not the noise, not the
lattice, not the divisor, not a round that nobody was asked for. And whatever its size, a round costs no more than it
was priced at."""

import itertools
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from fedsketch.conf import compose
from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting import releases as release
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.strategies.algorithm import Aggregate, Strategy
from fedsketch.strategies.noise.device import DeviceNoise
from tests.rounds import coordinator_of

MakeStrategy = Callable[..., Strategy]

DRAWN = ["clients.total=40", "clients.per_round=10", "rounds=12", "privacy.epsilon=3"]
MASKED = ["secagg=pairwise", "secagg.colluders=0.1"]
SAMPLINGS = ("fixed", "poisson")
CASES = {
    "server": ["privacy.against=server", *MASKED],
    "server, dropouts": [
        "privacy.against=server",
        *MASKED,
        "clients.tolerated_dropouts=0.3",
    ],
    "model": ["privacy.against=model", *MASKED],
    "model, small ring": ["privacy.against=model", *MASKED, "secagg.bits=18"],
    "client": ["privacy.against=client", *MASKED, "clients.tolerated_dropouts=0.2"],
    "model, unmasked": ["privacy.against=model", "secagg=none", "clients.tolerated_dropouts=0.2"],
    "client, unmasked": ["privacy.against=client", "secagg=none"],
    "model, unmasked integers": ["privacy.against=model", "secagg=none", "secagg.noise=skellam"],
}


@cache
def _noise(*overrides: str) -> DeviceNoise:
    config = compose([*DRAWN, *overrides])
    return DeviceNoise(config, 10, 1, config.privacy.clip, config.privacy.noise_multiplier)


def _asked(noise: DeviceNoise) -> list[int]:
    return [cohort for cohort in range(noise.sizes.largest + 1) if noise.accepts(cohort)]


every_case = pytest.mark.parametrize("case", CASES)


@every_case
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_cohort_and_every_set_of_survivors_shows_the_same(case: str, sampling: str) -> None:
    noise = _noise(f"clients.sampling={sampling}", *CASES[case])
    assert noise.draw_is_secret
    asked = _asked(noise)
    assert 10 in asked
    seen = set()
    for cohort in asked:
        mechanism = noise.mechanism(cohort)
        for clients in range(noise.sizes.survivors(cohort), cohort + 1):
            shown = noise.releases(cohort, clients)[Against.MODEL]
            seen.add((shown, getattr(mechanism, "scale", None), noise.variance(cohort, clients)))
            # What the server adds makes up for the rest, and is never negative.
            assert clients * mechanism.variance_per_device <= noise.variance(cohort, clients) * (
                1 + 1e-12
            )
    assert len(seen) == 1


@every_case
@pytest.mark.parametrize("sampling", [*SAMPLINGS, "passes"])
def test_no_round_costs_more_than_it_is_priced_at(case: str, sampling: str) -> None:
    """Whatever its size and whoever is lost, from retries too, which are smaller than any draw."""
    noise = _noise(f"clients.sampling={sampling}", *CASES[case])
    against = noise.config.privacy.against

    def epsilon(shown: release.Release) -> float:
        accountant = Accountant(1e-5)
        accountant.record(shown)
        return accountant.epsilon(tight=False).epsilon

    price = epsilon(noise.worst())
    costs = {
        noise.releases(cohort, clients)[against]
        for cohort in _asked(noise)
        for clients in {noise.sizes.survivors(cohort), cohort}
    }
    assert max(map(epsilon, costs)) <= price * (1 + 1e-9)
    accountant = Accountant(1e-5)
    accountant.record(noise.worst(), noise.config.rounds)
    assert accountant.epsilon().epsilon <= 3.0


def _sum(strategy: Strategy, cohort: int, dim: int) -> np.ndarray:
    """The sum of a cohort that says nothing, made by the devices' and the server's own code."""
    mechanism = strategy.noise.mechanism(cohort, dim)
    parts = []
    for client in range(cohort):
        with Stream() as stream:
            upload = mechanism.protect(torch.zeros(1, dim), stream, 1)
        parts.append((upload.vector, [client]))
    return coordinator_of(strategy).aggregate(1, mechanism, cohort, parts).sum.double().numpy()


def test_the_noise_of_real_sums_does_not_tell_the_size(make_strategy: MakeStrategy) -> None:
    """With a tenth of colluders the devices' noise alone jumps by a ninth from 9 clients to 10."""
    strategy = make_strategy(
        "clients.total=40",
        "clients.per_round=10",
        "clients.sampling=poisson",
        "secagg=pairwise",
        "privacy.against=server",
    )
    numbers = 40_000
    variances = {c: _sum(strategy, c, numbers).var() for c in (9, 10, 11, 19, 20)}
    expected = strategy.noise.mechanism(10).noise_std(strategy.noise.variance(10, 10)) ** 2
    for cohort, variance in variances.items():
        assert abs(variance / expected - 1) < 5 * (2 / numbers) ** 0.5, cohort


def test_the_lattice_of_a_small_ring_does_not_tell_the_size(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy(
        "clients.total=40",
        "clients.per_round=10",
        "clients.sampling=poisson",
        "secagg=pairwise",
        "secagg.bits=18",
        "privacy.against=model",
    )
    *some, last = _asked(strategy.noise)
    scales = {strategy.mechanism(1, c).to_record()["scale"] for c in (*some[::4], last)}
    assert len(scales) == 1


@pytest.mark.parametrize("law", ["gaussian", "skellam"])
def test_a_round_that_nobody_is_asked_for_is_noise_like_any_other(
    make_strategy: MakeStrategy, monkeypatch: pytest.MonkeyPatch, law: str
) -> None:
    strategy = make_strategy(
        "clients.per_round=1",
        "clients.sampling=poisson",
        f"secagg.noise={law}",
        "privacy.noise_multiplier=2",
        "privacy.epsilon=null",
    )
    sums: list[Aggregate] = []
    monkeypatch.setattr(strategy, "update", lambda round, aggregate: sums.append(aggregate))
    for _ in range(400):
        coordinator_of(strategy).skip_round(1)
    values = torch.stack([one.sum for one in sums]).double()
    expected = strategy.noise.mechanism(1).noise_std(strategy.noise.variance(1, 1))
    assert {(one.noise_std, one.clients) for one in sums} == {(expected, 0)}
    assert abs(float(values.var()) / expected**2 - 1) < 5 * (2 / values.numel()) ** 0.5
    assert expected == pytest.approx(2 * strategy.noise.clip, rel=1e-3)


def test_without_a_secret_draw_the_server_adds_nothing() -> None:
    for case in (
        ["privacy.against=server", "secagg=none"],  # each device's noise does alone
        ["clients.sampling=passes", *MASKED],
        ["clients.per_round=40", *MASKED],
    ):
        noise = _noise(*case)
        assert not noise.draw_is_secret
        assert noise.variance(10, 8) == 8 * noise.mechanism(10).variance_per_device


@pytest.mark.parametrize("size", [4, 7])
def test_the_draws_that_show_are_those_that_one_unit_decides(size: int) -> None:
    """Of all subsets of a few clients: with the unit a cohort is asked, without it not, and somebody else is in it."""
    noise = _noise(
        f"clients.total={size}",
        "clients.per_round=2",
        "clients.sampling=poisson",
        "privacy.against=model",
        *MASKED,
    )
    rate = 2 / size
    shown = noise.releases(2, 2)[Against.MODEL].sampling
    assert isinstance(shown, release.Poisson)
    expected = 0.0
    for others in itertools.product((0, 1), repeat=size - 1):
        drawn = sum(others)
        if drawn and not noise.accepts(drawn) and noise.accepts(drawn + 1):
            expected += rate * rate**drawn * (1 - rate) ** (size - 1 - drawn)
    assert expected > 0
    assert shown.missed == pytest.approx(expected)


def _multipliers(law: str, *overrides: str) -> tuple[Mechanism, float]:
    noise = _noise(
        "clients.per_round=40", "secagg=none", f"secagg.noise={law}", "privacy.against=server",
        *overrides,
    )  # fmt: skip
    mechanism = noise.mechanism(40)
    return mechanism, mechanism.noise_multiplier(noise.variance(40, 40), noise.unit)


def test_a_given_multiplier_is_that_of_the_sum_for_every_law() -> None:
    given = ("privacy.noise_multiplier=1", "privacy.epsilon=null")
    for law in ("gaussian", "skellam"):
        assert _multipliers(law, *given)[1] == pytest.approx(1.0, rel=1e-3)


def test_a_papers_noise_is_that_of_what_the_server_sees() -> None:
    for law in ("gaussian", "skellam"):
        mechanism, _ = _multipliers(law, "privacy.accounting=paper")
        seen = mechanism.noise_multiplier(mechanism.variance_per_device, release.Unit.CLIENT)
        assert seen == pytest.approx((8 * 12 * np.log(1e5)) ** 0.5 / 3, rel=1e-3)


def test_fellow_clients_know_their_own_noise_and_under_masks_the_cohort() -> None:
    masked = _noise("privacy.against=model", "clients.sampling=poisson", *MASKED).releases(20, 20)
    model, client = masked[Against.MODEL], masked[Against.CLIENT]
    assert client.sampling == release.NoSampling()
    share = (
        _noise("privacy.against=model", "clients.sampling=poisson", *MASKED)
        .mechanism(20)
        .variance_per_device
    )
    assert isinstance(model.law, release.Skellam)
    assert isinstance(client.law, release.Skellam)
    assert client.law.variance == model.law.variance - 2 * share
    bare = _noise("privacy.against=model", "clients.sampling=poisson", "secagg=none")
    # The share that it was told says how many there are, and one of the forty is itself.
    assert bare.releases(12, 12)[Against.CLIENT].sampling == release.WithoutReplacement(12, 39)


def test_who_vanishes_shows_where_sizes_do() -> None:
    """Each device's noise does alone, so that the sum tells its size; and if some are lost, who is dead tells more."""
    noise = _noise("privacy.against=server", "secagg=none", "clients.tolerated_dropouts=0.2")
    assert noise.releases(10, 9)[Against.MODEL].sampling == release.NoSampling()
    complete = _noise("privacy.against=server", "secagg=none")
    assert complete.releases(10, 10)[Against.MODEL].sampling == release.WithoutReplacement(10, 40)


# Fellow clients without masks
@pytest.mark.parametrize("law", ["gaussian", "skellam"])
def test_fellow_clients_are_told_nothing_of_a_poisson_draw_and_the_budget_is_spent(
    make_strategy: MakeStrategy, law: str
) -> None:
    """The attack that this prevents: a device reads the size of the cohort from the noise that it has to add. Then only
    a draw of fixed size could be booked, at the largest size that there may be, and most of the budget was unspent."""
    common = ("clients.sampling=poisson", "secagg=none", f"secagg.noise={law}")
    open_size = _noise("privacy.against=model", *common)
    assert len({open_size.mechanism(cohort) for cohort in (5, 10, 15)}) == 3
    strategy = make_strategy(*DRAWN, "privacy.against=client", *common)
    noise = strategy.noise
    assert isinstance(noise, DeviceNoise)
    sizes = range(1, noise.sizes.largest + 1)
    assert all(map(noise.accepts, sizes))
    told, seen = set(), set()
    for cohort in sizes:
        told.add(str(strategy.mechanism(1, cohort).to_record()))
        for clients in {noise.sizes.survivors(cohort), cohort}:
            seen.add(noise.releases(cohort, clients)[Against.CLIENT])
            devices = clients * noise.mechanism(cohort).variance_per_device
            assert devices <= noise.variance(cohort, clients) * (1 + 1e-12)
    assert len(told) == 1
    (shown,) = seen
    assert shown.sampling == release.Poisson(0.25)
    accountant = Accountant(1e-5)
    accountant.record(shown, noise.config.rounds)
    assert 0.99 * 3.0 < accountant.epsilon().epsilon <= 3.0
    known = noise.sizes.colluding_clients(noise.sizes.largest)
    least = noise.variance(10, 10) - known * noise.mechanism(10).variance_per_device
    assert noise.noise_multiplier == noise.mechanism(10).noise_multiplier(
        least, release.Unit.CLIENT
    )


# Memory
@pytest.mark.parametrize("against", ["model", "client"])
def test_a_fixed_size_draw_of_devices_that_remember_is_booked_as_seen(against: str) -> None:
    """And costs more noise; a Poisson draw does not."""
    common = ("strategy=dome", f"privacy.against={against}", "secagg=none")
    drawn = ("clients.total=40", "clients.per_round=10")
    feedback = "strategy.error_feedback=0.5"
    hidden = _noise(*common, *drawn)
    seen = _noise(*common, *drawn, feedback)
    for plan, remembers in ((hidden, False), (seen, True)):
        draw = plan.releases(10, 10)[Against(against)].sampling
        assert isinstance(draw, release.WithoutReplacement)
        assert draw.with_memory is remembers
    assert seen.noise_multiplier > 1.2 * hidden.noise_multiplier
    if against == "model":
        poisson = "clients.sampling=poisson"
        one, other = (_noise(*common, *drawn, poisson, *more) for more in ((), (feedback,)))
        assert one.noise_multiplier == other.noise_multiplier
