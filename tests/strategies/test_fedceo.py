"""FedCEO: averaging rounds are UDP-FedAvg, smoothing rounds smooth the right stack, and every part has its noise and
its price."""

from collections.abc import Callable
from typing import cast

import pytest
import torch

from fedsketch.client.app import app
from fedsketch.conf import compose
from fedsketch.errors import ConfigError
from fedsketch.privacy.accounting.releases import (
    Gaussian,
    NoSampling,
    Release,
    Skellam,
    WithoutReplacement,
)
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import WrappedGrid
from fedsketch.server.accounts import Accounts
from fedsketch.server.grids.stack import wrap_grid
from fedsketch.sketching.tensor_svd import smooth
from fedsketch.strategies.algorithm import Aggregate, Strategy
from fedsketch.strategies.fedceo import FedCeo
from tests.rounds import ask, coordinator_of

MakeStrategy = Callable[..., Strategy]

CEO = ("strategy=fedceo", "strategy.every=2", "strategy.local.batch=5", "strategy.local.epochs=2")
QUIET = ("privacy=none", "secagg=none")
SLOTS = ("strategy.start=slots",)
GROUPS = (
    *SLOTS,
    "strategy.groups=3",
    "secagg=pairwise",
    "secagg.colluders=0",
    "clients.total=12",
    "clients.per_round=12",
    "privacy.against=server",
)


def _play(strategy: Strategy, rounds: range) -> list[Aggregate]:
    """Rounds over the real app, and what the strategy made of their replies."""
    local = LocalGrid(app, strategy.config.clients.total)
    grid = wrap_grid(WrappedGrid(local), strategy.config, strategy.parcels)
    seen: list[Aggregate] = []
    update = strategy.update

    def watched(server_round: int, aggregate: Aggregate) -> None:
        seen.append(aggregate)
        update(server_round, aggregate)

    strategy.update = watched  # type: ignore[method-assign]
    for server_round in rounds:
        asked = ask(strategy, server_round, grid)
        coordinator_of(strategy).aggregate_train(server_round, grid.send_and_receive(asked))
    strategy.update = update  # type: ignore[method-assign]
    return seen


def _ceo(make: MakeStrategy, *overrides: str) -> FedCeo:
    return cast(FedCeo, make(*CEO, *overrides))


def test_without_smoothing_it_is_dp_fedavg_with_local_training(make_strategy: MakeStrategy) -> None:
    """UDP-FedAvg: the baseline."""
    never = _ceo(make_strategy, *QUIET, "strategy.every=null")
    other = make_strategy(
        "strategy=dp_fedavg",
        *QUIET,
        "strategy.local.epochs=2",
        "strategy.local.batch=5",
        "strategy.server.optimizer=sgd",
        "strategy.server.lr=1",
    )
    _play(never, range(1, 4))
    _play(other, range(1, 4))
    torch.testing.assert_close(never.model.vector, other.model.vector)


@pytest.mark.parametrize("start", ["mean", "slots"])
def test_a_threshold_of_0_is_udp_fedavg_until_slots_are_used(
    make_strategy: MakeStrategy, start: str
) -> None:
    smoothing = _ceo(make_strategy, *QUIET, f"strategy.start={start}", "strategy.edge=0")
    never = _ceo(make_strategy, *QUIET, "strategy.every=null")
    _play(smoothing, range(1, 3))
    _play(never, range(1, 3))
    torch.testing.assert_close(smoothing.model.vector, never.model.vector, atol=1e-5, rtol=1e-4)


def test_the_stack_holds_every_clients_model_and_is_smoothed_tensor_by_tensor(
    make_strategy: MakeStrategy,
) -> None:
    strategy = _ceo(
        make_strategy, *QUIET, *SLOTS, "strategy.threshold=paper", "strategy.weight=0.4"
    )
    _play(strategy, range(1, 2))
    before = strategy.model.vector.clone()
    (aggregate,) = _play(strategy, range(2, 3))
    assert [part.members for part in aggregate.parts] == [(client,) for client in range(6)]
    stack = torch.stack([before - part.sum for part in aggregate.parts])
    weight = next(slot for slot in strategy.model.layout if len(slot.shape) == 2)
    threshold = 1.03 ** (2 / 2) / (2 * 0.4)
    expected = stack.clone()
    folded = stack[:, weight.start : weight.stop].reshape(6, *weight.shape)
    expected[:, weight.start : weight.stop] = smooth(folded, threshold).stack.reshape(6, -1)
    assert strategy.slots is not None
    torch.testing.assert_close(strategy.slots, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(expected, stack, atol=1e-3)  # it did smooth
    torch.testing.assert_close(strategy.model.vector, expected.mean(dim=0), atol=1e-5, rtol=1e-4)
    told = strategy.metrics()["smoothing"]
    assert set(told) == {weight.name}  # the bias is left alone
    assert told[weight.name]["threshold"] == pytest.approx(threshold)


def test_the_mean_of_the_smoothed_models_needs_the_sum_alone(make_strategy: MakeStrategy) -> None:
    """Both ways give the same model after a smoothing round, from a stack and from the sum."""
    paper = ("strategy.threshold=paper", "strategy.weight=0.4")
    stacked = _ceo(make_strategy, *QUIET, *SLOTS, *paper)
    summed = _ceo(make_strategy, *QUIET, *paper)
    _play(stacked, range(1, 3))
    (_, aggregate) = _play(summed, range(1, 3))
    assert aggregate.parts == ()
    torch.testing.assert_close(stacked.model.vector, summed.model.vector, atol=1e-5, rtol=1e-4)


def test_every_upload_starts_from_its_own_slot(make_strategy: MakeStrategy) -> None:
    strategy = _ceo(make_strategy, *QUIET, *SLOTS, "strategy.local.lr=1e-9")
    slots = torch.randn(4, strategy.model.size)
    strategy.slots = slots
    _play(strategy, range(1, 2))
    expected = slots[[client % 4 for client in range(6)]].mean(dim=0)
    torch.testing.assert_close(strategy.model.vector, expected, atol=1e-5, rtol=1e-4)
    assert strategy.slots is None  # for one round


def test_groups_are_summed_apart_under_masks_and_averaging_rounds_are_one_sum(
    make_strategy: MakeStrategy,
) -> None:
    strategy = _ceo(make_strategy, *GROUPS, "privacy.epsilon=null", "privacy.noise_multiplier=0.5")
    averaged, stacked = _play(strategy, range(1, 3))
    assert averaged.parts == ()
    assert averaged.members == tuple(range(12))
    assert [part.clients for part in stacked.parts] == [4, 4, 4]
    everybody = sorted(client for part in stacked.parts for client in part.members)
    assert everybody == list(range(12))
    total = torch.stack([part.sum for part in stacked.parts]).sum(dim=0)
    torch.testing.assert_close(total, stacked.sum, atol=1e-4, rtol=1e-4)
    assert strategy.slots is not None
    assert strategy.slots.shape == (3, strategy.model.size)


def test_every_group_has_the_noise_that_the_budget_asks_of_a_sum(
    make_strategy: MakeStrategy,
) -> None:
    strategy = _ceo(make_strategy, *GROUPS, "privacy.epsilon=8")
    whole, group = (strategy.mechanism(server_round, 12) for server_round in (1, 2))
    assert group.noise_std(4 * group.variance_per_device) == pytest.approx(
        whole.noise_std(12 * whole.variance_per_device), rel=1e-3
    )
    accounts = Accounts(strategy)
    for server_round in range(1, strategy.config.rounds + 1):
        assert accounts.affordable(server_round)
        accounts.charge_attempt(server_round, 12, 12)
        accounts.charge_applied(server_round, 12, 12)
    spent = accounts.epsilon()
    assert spent["server"] is not None
    assert 7.5 < spent["server"] <= 8.0


def _noise(release: Release) -> float:
    law = release.law
    if isinstance(law, Skellam):
        return law.variance**0.5 / law.l2_sensitivity
    assert isinstance(law, Gaussian)
    return law.noise_multiplier


def test_a_stack_of_single_models_is_priced_by_the_noise_of_one(
    make_strategy: MakeStrategy,
) -> None:
    """The paper's noise: the server, and those who get the slots, see a sixth of the variance."""
    strategy = _ceo(make_strategy, *SLOTS, "privacy.epsilon=null", "privacy.noise_multiplier=1.2")
    averaging, smoothing = (strategy.releases(server_round, 6, 6) for server_round in (1, 2))
    assert _noise(averaging["model"]) == pytest.approx(1.2, rel=1e-6)
    assert _noise(smoothing["model"]) == pytest.approx(1.2 / 6**0.5, rel=1e-6)
    assert _noise(smoothing["server"]) == pytest.approx(1.2 / 6**0.5, rel=1e-6)


def test_a_budget_gives_every_single_model_its_noise(make_strategy: MakeStrategy) -> None:
    strategy = _ceo(make_strategy, *SLOTS, "privacy.epsilon=8")
    averaging, smoothing = (strategy.releases(server_round, 6, 6) for server_round in (1, 2))
    assert _noise(smoothing["model"]) == pytest.approx(_noise(averaging["model"]), rel=1e-6)


def test_a_stack_hides_nobody_by_the_draw_of_the_cohort(make_strategy: MakeStrategy) -> None:
    """Swapping one client for another moves others to other slots, so no theorem about a secret draw holds."""
    drawn = ("clients.total=30", "privacy.epsilon=8")
    stacked, averaged = _ceo(make_strategy, *SLOTS, *drawn), _ceo(make_strategy, *drawn)
    assert averaged.releases(1, 6, 6)["model"].sampling == WithoutReplacement(6, 30)
    for server_round in (1, 2):
        assert stacked.releases(server_round, 6, 6)["model"].sampling == NoSampling()


def test_a_mean_start_costs_what_an_averaging_round_costs(make_strategy: MakeStrategy) -> None:
    strategy = _ceo(make_strategy, "privacy.epsilon=8")
    assert strategy.releases(1, 6, 6) == strategy.releases(2, 6, 6)


def test_slots_are_kept_in_checkpoints(make_strategy: MakeStrategy) -> None:
    one, two = (_ceo(make_strategy, *QUIET, *SLOTS) for _ in range(2))
    _play(one, range(1, 3))
    two.model.load(one.model.vector)
    two.load_state_dict(one.state_dict())
    _play(one, range(3, 6))
    _play(two, range(3, 6))
    torch.testing.assert_close(one.model.vector, two.model.vector)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("secagg=pairwise", *SLOTS), "promises that the server sees only sums"),
        ((*SLOTS, "strategy.groups=3"), "without masks the server sees each model separately"),
        (("secagg=pairwise", "strategy.groups=3"), "needs only the whole sum"),
        (("secagg=pairwise", *SLOTS, "strategy.groups=4"), "a multiple of strategy.groups"),
        ((*SLOTS, "clients.sampling=poisson", "clients.total=20"), "set clients.sampling=fixed"),
        (
            ("privacy=example", "strategy.local.epochs=null", "strategy.local.batch=0"),
            "set privacy.unit=client",
        ),
        (("strategy.server.optimizer=adam",), "set strategy.server.optimizer=sgd"),
    ],
)
def test_what_cannot_be_promised_is_refused(overrides: tuple[str, ...], sentence: str) -> None:
    few = ("clients.total=6", "clients.per_round=6", "secagg=none", "privacy.against=model")
    with pytest.raises(ConfigError, match=sentence):
        compose([*CEO, *few, *overrides])
