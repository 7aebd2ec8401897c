"""L2-CSGM: with everything kept it is DP-FedAvg, the server adds the noise once, and only those who see models are
promised anything."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats

from fedsketch.client.app import app
from fedsketch.conf import compose
from fedsketch.errors import ConfigError
from fedsketch.privacy.accounting.releases import (
    CoordinateSampledGaussian,
    FullPasses,
    Gaussian,
    NoSampling,
    Poisson,
    WithoutReplacement,
)
from fedsketch.privacy.mechanisms.coordinate_sampling import CoordinateSampling, default_peak
from fedsketch.privacy.mechanisms.mechanism import Upload
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import WrappedGrid
from fedsketch.server.accounts import Accounts
from fedsketch.server.grids.stack import wrap_grid
from fedsketch.server.guarantee import guarantee
from fedsketch.strategies import csgm
from fedsketch.strategies.algorithm import Aggregate, Strategy
from tests.rounds import ask, coordinator_of

MakeStrategy = Callable[..., Strategy]

OWN = ("strategy=csgm", "strategy.bits=32", "privacy.randomness=seeded")
COMMON = ("strategy=csgm", "strategy.mask=common", "strategy.rate=0.4")
QUIET = ("privacy.epsilon=null", "privacy.noise_multiplier=0")
LOCAL = ("strategy.local.steps=3", "strategy.local.batch=4", "strategy.local.lr=0.2")
POISSON = ("clients.total=40", "clients.per_round=10", "clients.sampling=poisson")
FIXED = ("clients.total=40", "clients.per_round=10")


def _play(strategy: Strategy, rounds: int) -> list[Aggregate]:
    """Rounds over the real app, and what the strategy made of their replies."""
    local = LocalGrid(app, strategy.config.clients.total)
    grid = wrap_grid(WrappedGrid(local), strategy.config, strategy.parcels)
    seen: list[Aggregate] = []
    update = strategy.update

    def watched(server_round: int, aggregate: Aggregate) -> None:
        seen.append(aggregate)
        update(server_round, aggregate)

    strategy.update = watched  # type: ignore[method-assign]
    for server_round in range(1, rounds + 1):
        asked = ask(strategy, server_round, grid)
        coordinator_of(strategy).aggregate_train(server_round, grid.send_and_receive(asked))
    return seen


def _law(strategy: Strategy) -> CoordinateSampling:
    mechanism = strategy.mechanism(1, strategy.config.clients.per_round)
    assert isinstance(mechanism, CoordinateSampling)
    return mechanism


# ---------------------------------------------------------------------- rounds
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_with_everything_kept_and_no_noise_it_is_dp_fedavg(
    make_strategy: MakeStrategy, optimizer: str
) -> None:
    server = (f"strategy.server.optimizer={optimizer}", "strategy.server.lr=0.3")
    common = (*QUIET, *LOCAL, *server, "strategy.server.momentum=0.9")
    whole = make_strategy(*OWN, *common, "strategy.rate=1", "strategy.peak=9")
    plain = make_strategy("strategy=dp_fedavg", *common)
    before = plain.model.vector.clone()
    _play(whole, 4)
    _play(plain, 4)
    torch.testing.assert_close(whole.model.vector, plain.model.vector, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before, plain.model.vector, atol=1e-2)


def test_the_server_adds_the_noise_of_the_plan_once(make_strategy: MakeStrategy) -> None:
    """Masks follow from the seed, so runs whose model stays differ by the noise alone: 8 rounds of 21 numbers; false
    alarm 1e-6."""
    sums = []
    for noise in ("0", "5"):
        strategy = make_strategy(
            *(*OWN, "privacy.epsilon=null", "privacy.clip=0.2", "strategy.server.lr=1e-9"),
            f"privacy.noise_multiplier={noise}",
        )
        seen = _play(strategy, 8)
        sums.append(torch.stack([aggregate.sum for aggregate in seen]).double())
    assert seen[-1].noise_std == pytest.approx(5 * 0.2)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], sums[0].numel())
    assert low < float(((sums[1] - sums[0]) / (5 * 0.2)).square().sum()) < high


def test_the_range_follows_the_size_of_model_and_cohort(make_strategy: MakeStrategy) -> None:
    law = _law(make_strategy(*OWN))
    assert law.peak == pytest.approx(0.3 * math.sqrt(2 * math.log(21 * 6) / 21))
    assert _law(make_strategy(*OWN, "strategy.peak=0.1")).peak == 0.1
    assert default_peak(0.3, 2, 6) == 0.3  # no number is larger than the whole


def test_an_upload_of_another_form_is_a_dropout(
    make_strategy: MakeStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = make_strategy(*OWN, *QUIET, "clients.tolerated_dropouts=0.2")
    protect, calls = CoordinateSampling.protect, iter(range(6))

    def cut(*arguments: object) -> Upload:
        upload = protect(*arguments)  # type: ignore[arg-type]
        return Upload(upload.vector[:-1]) if next(calls) == 4 else upload

    monkeypatch.setattr(CoordinateSampling, "protect", cut)
    assert _play(strategy, 1)[0].clients == 5
    assert "bytes instead of" in coordinator_of(strategy).dropped[4]


def test_the_server_counts_what_was_clipped(make_strategy: MakeStrategy) -> None:
    wide = make_strategy(*OWN, *QUIET, "strategy.rate=1", "strategy.peak=0.3")
    narrow = make_strategy(*OWN, *QUIET, "strategy.rate=1", "strategy.peak=1e-4")
    for strategy in (wide, narrow):
        assert strategy.metrics()["clipped_fraction"] is None
        _play(strategy, 1)
    assert wide.metrics() == {"server": "trusted", "clipped_fraction": 0.0}
    assert narrow.metrics()["clipped_fraction"] > 0.9


# ---------------------------------------------------------------------- what is promised
def test_only_those_who_see_models_have_an_epsilon(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy(*OWN, "privacy.epsilon=5", "strategy.rate=0.3", "rounds=3")
    accounts = Accounts(strategy)
    for server_round in range(1, 4):
        assert accounts.affordable(server_round)
        accounts.charge_attempt(server_round, 6)
        accounts.charge_applied(server_round, 6)
    assert not accounts.affordable(4)
    spent = accounts.epsilon()
    assert set(spent) == {"model", "client"}
    assert spent["model"] == spent["client"] == pytest.approx(5, rel=1e-3)


def test_the_guarantee_says_that_the_server_is_trusted(make_strategy: MakeStrategy) -> None:
    compressed = make_strategy(*OWN, "strategy.rate=0.3", "rounds=3")
    whole = make_strategy(*OWN, "strategy.rate=1", "rounds=3")
    for strategy in (compressed, whole):
        assert "The server is trusted" in guarantee(strategy)
    ratio = compressed.noise.noise_multiplier / whole.noise.noise_multiplier
    assert ratio > 1
    assert f"would be {whole.noise.noise_multiplier:.4g}: this is {ratio:.4g} times" in guarantee(
        compressed
    )


def test_every_cohort_has_the_same_mechanism_and_the_same_noise(
    make_strategy: MakeStrategy,
) -> None:
    strategy = make_strategy(*OWN, *POISSON, "privacy.epsilon=3")
    noise = strategy.noise
    assert noise.draw_is_secret
    assert {strategy.mechanism(1, cohort) for cohort in (1, 10, 25)} == {_law(strategy)}
    assert len({noise.variance(cohort, cohort // 2) for cohort in (0, 1, 10, 25)}) == 1
    assert noise.accepts(1)
    assert not noise.accepts(0)
    before = strategy.model.vector.clone()
    coordinator_of(strategy).skip_round(1)  # a draw of nobody passes as noise alone
    assert not torch.equal(strategy.model.vector, before)


def test_draws_count_as_far_as_they_are_secrets(make_strategy: MakeStrategy) -> None:
    """Devices are told nothing of a cohort's size, so a Poisson draw stays one for fellow participants."""
    shown = make_strategy(*OWN, *POISSON).releases(1, 9, 9)
    assert [shown[name].sampling for name in ("model", "client")] == [Poisson(0.25)] * 2
    assert isinstance(shown["model"].law, CoordinateSampledGaussian)
    shown = make_strategy(*OWN, *FIXED).releases(1, 10, 10)
    assert shown["model"].sampling == WithoutReplacement(10, 40)
    assert shown["client"].sampling == WithoutReplacement(10, 39)
    shown = make_strategy(*OWN, *FIXED, "clients.sampling=passes").releases(1, 10, 10)
    assert shown["client"].sampling == FullPasses(4)
    assert make_strategy(*OWN).releases(1, 6, 6)["client"].sampling == NoSampling()


@pytest.mark.parametrize("against", ["model", "client"])
@pytest.mark.parametrize("clients", [POISSON, FIXED, ()])
def test_the_noise_meets_the_budget_of_either(
    make_strategy: MakeStrategy, against: str, clients: tuple[str, ...]
) -> None:
    strategy = make_strategy(
        *(*OWN, *clients, "rounds=2", "privacy.epsilon=4", f"privacy.against={against}")
    )
    accounts = Accounts(strategy)
    for server_round in (1, 2):
        assert accounts.affordable(server_round)
        accounts.charge_applied(server_round, 10 if clients else 6)
    assert accounts.epsilon()[against] == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("secagg=pairwise",), "cannot be summed under masks.*set secagg=none"),
        (("secagg.noise=skellam",), "set secagg=none"),
        (("privacy.against=server",), "server is trusted"),
        (("privacy.unit=example",), "set privacy.unit=client"),
        (
            ("privacy.clip=null", "privacy.noise_multiplier=0", "privacy.epsilon=null"),
            "to a number",
        ),
        (("privacy.clip=adaptive",), "to a number"),
        (("privacy.accounting=paper",), "set privacy.accounting=exact"),
        (("strategy.rate=0",), "strategy.rate"),
        (("strategy.bits=12",), "strategy.bits"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    overrides: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compose(["strategy=csgm", *overrides])


def test_its_defaults_trust_the_server() -> None:
    config = compose(["strategy=csgm"])
    assert (config.secagg.name, config.privacy.against) == ("none", "model")


# ---------------------------------------------------------------------- one public mask for all
def test_a_common_mask_without_noise_steps_along_the_sampled_mean(
    make_strategy: MakeStrategy,
) -> None:
    whole = make_strategy("strategy=dp_fedavg", *QUIET, "privacy.clip=100")
    (plain,) = _play(whole, 1)
    strategy = make_strategy(
        *(*COMMON, *QUIET, "privacy.clip=100", "strategy.server.lr=0.5"),
        "strategy.server.momentum=0",
    )
    start = strategy.model.vector.clone()
    (seen,) = _play(strategy, 1)
    assert len(seen.sum) == 8  # 0.4 of 21
    assert isinstance(strategy, csgm.Csgm)
    sample = csgm._sample(strategy.settings, 21, csgm.mask_seed(strategy.config, 1))
    torch.testing.assert_close(seen.sum, sample.forward(plain.sum), rtol=1e-4, atol=1e-6)
    wanted = start - 0.5 * sample.adjoint(sample.forward(plain.sum)) / 6
    torch.testing.assert_close(strategy.model.vector, wanted, rtol=1e-4, atol=1e-6)
    assert csgm.mask_seed(strategy.config, 1) != csgm.mask_seed(strategy.config, 2)


def test_a_common_mask_is_summed_under_masks_and_binds_the_server(
    make_strategy: MakeStrategy,
) -> None:
    strategy = make_strategy(
        *(*COMMON, "secagg=pairwise", "secagg.colluders=0.2", "privacy.against=server")
    )
    mechanism = strategy.mechanism(1, 6)
    assert isinstance(mechanism, SkellamRing)
    assert mechanism.dim == strategy.upload_length(1) == 8
    shown = strategy.releases(1, 6, 6)
    assert set(shown) == {"model", "client", "server"}
    assert "trusted" not in guarantee(strategy)
    (seen,) = _play(strategy, 1)
    assert seen.clients == 6
    assert strategy.metrics() == {}


def test_a_common_mask_gains_nothing_by_being_random(make_strategy: MakeStrategy) -> None:
    """The noise is that of a sum of all numbers."""
    shown = make_strategy(*COMMON, "privacy.epsilon=null", "privacy.noise_multiplier=2")
    law = shown.releases(1, 6, 6)["model"].law
    assert isinstance(law, Gaussian)
    assert law.noise_multiplier == pytest.approx(2)
