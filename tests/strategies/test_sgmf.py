"""SGMF: models carry exactly the noise B Z, a pass costs one release, and no client is in a pass twice."""

from collections.abc import Callable
from copy import deepcopy
from typing import cast

import numpy as np
import pytest
import torch

from fedsketch.client.app import app
from fedsketch.conf import compose
from fedsketch.errors import ConfigError
from fedsketch.privacy.accounting import exact_gaussian
from fedsketch.privacy.accounting.factorisation import column_norm, factorise, workload
from fedsketch.privacy.accounting.releases import (
    CoordinateSampledGaussian,
    FullPasses,
    MatrixGaussian,
)
from fedsketch.runtime.local import LocalGrid
from fedsketch.server.accounts import Accounts
from fedsketch.strategies.algorithm import Aggregate, LocalWork, Strategy
from fedsketch.strategies.local import forms
from fedsketch.strategies.sgmf import Sgmf
from tests.rounds import ask, coordinator_of

MakeStrategy = Callable[..., Strategy]
# Six clients in passes of three rounds.
PASSES = ("strategy=sgmf", "clients.per_round=2", "clients.sampling=passes", "rounds=6")
CYCLE = (
    *PASSES,
    "clients.sampling=cycle",
    "strategy.restarts=false",
    "strategy.factorisation=banded",
)
GIVEN = ("privacy.epsilon=null", "privacy.noise_multiplier=2")
STILL = ("privacy.epsilon=null", "privacy.noise_multiplier=0")


def _sgmf(make: MakeStrategy, *overrides: str) -> Sgmf:
    return cast(Sgmf, make(*overrides))


def _play(strategy: Strategy, rounds: range) -> torch.Tensor:
    """The models after these rounds, as rows."""
    grid = LocalGrid(app, strategy.config.clients.total)
    models = []
    for server_round in rounds:
        asked = ask(strategy, server_round, grid)
        coordinator_of(strategy).aggregate_train(server_round, grid.send_and_receive(asked))
        models.append(strategy.model.vector.clone())
    return torch.stack(models).double()


@pytest.fixture
def _linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client's loss is linear: it sends the same vector in every round, whatever the model."""

    def rows(half: object, prepared: object, work: LocalWork) -> torch.Tensor:
        generator = torch.Generator().manual_seed(work.client)
        return torch.randn(1, work.model.size, generator=generator)

    monkeypatch.setattr(forms, "rows", rows)


@pytest.mark.usefixtures("_linear")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("how", [PASSES, CYCLE])
def test_the_models_of_a_linear_problem_carry_the_noise_of_the_factorisation(
    make_strategy: MakeStrategy, how: tuple[str, ...], momentum: float
) -> None:
    """Every coordinate is a sample of the noise of all six models, whose covariance must be sigma^2 B B^T (block by
    block for restarts).

    With W its inverse root the samples become independent standard normals: 6,003 of them give a 6 x 6 covariance
    whose
    21 entries have a standard deviation of at most sqrt(2 / 6003). Beyond 6 of them once in 20 million times.
    """
    server = ("strategy.server.lr=0.5", f"strategy.server.momentum={momentum}")
    large = ("data.shape=[1,40,50]", *server, "checkpoint_every=1")
    noisy = _sgmf(make_strategy, *how, *large, *GIVEN)
    still = _sgmf(make_strategy, *how, *large, *STILL)
    # Dinf cuts nothing, and 16 bits round a little: both runs round differently.
    noise = (_play(noisy, range(1, 7)) - _play(still, range(1, 7))).numpy()
    clip = noisy.config.privacy.clip
    assert clip is not None
    matrix = noisy.strategy_matrix
    repeated = np.kron(np.eye(6 // len(matrix)), matrix)
    deviation = 2.0 * clip * column_norm(matrix)  # of Z
    mixing = workload(6, momentum) @ np.linalg.inv(repeated) * (0.5 / 2 * deviation)
    whitened = np.linalg.solve(mixing, noise)
    found = whitened @ whitened.T / noise.shape[1]
    assert np.abs(found - np.eye(6)).max() < 6 * np.sqrt(2 / noise.shape[1])
    # Independent noise of the same price is another one by far.
    other = np.linalg.solve(workload(6, momentum) * (0.5 / 2 * 2.0 * clip), noise)
    assert np.abs(other @ other.T / noise.shape[1] - np.eye(6)).max() > 0.15


@pytest.mark.parametrize("how", [PASSES, CYCLE])
def test_a_pass_costs_one_gaussian_whatever_the_factorisation(
    make_strategy: MakeStrategy, how: tuple[str, ...]
) -> None:
    strategy = _sgmf(make_strategy, *how, "privacy.epsilon=2", "strategy.bits=32")
    accounts = Accounts(strategy)
    for server_round in range(1, 7):
        assert accounts.affordable(server_round)
        accounts.charge_attempt(server_round, 2)
        accounts.charge_applied(server_round, 2)
    spent = accounts.epsilon()
    assert set(spent) == {"model", "client"}  # nothing is said about the server
    expected = exact_gaussian.epsilon(2**0.5 / strategy.noise.noise_multiplier, 1e-5)
    assert spent["model"] == spent["client"] == pytest.approx(expected, rel=1e-3)
    assert not accounts.affordable(7)


def test_what_is_booked_is_the_noise_that_is_added(make_strategy: MakeStrategy) -> None:
    strategy = _sgmf(make_strategy, *PASSES, *GIVEN, "strategy.factorisation=tree")
    seen = strategy.releases(1, 2, 2)["model"]
    norm = column_norm(factorise("tree", 3))
    assert seen.sampling == FullPasses(3)
    assert isinstance(seen.law, MatrixGaussian)
    assert seen.law.column_norm == norm
    assert seen.law.noise_multiplier == pytest.approx(2 * norm, rel=0.01)  # 16 bits


def test_sampled_coordinates_are_priced_with_both_bounds_times_the_column_norm(
    make_strategy: MakeStrategy,
) -> None:
    strategy = _sgmf(
        make_strategy, *PASSES, *GIVEN, "strategy.rate=0.5", "strategy.factorisation=tree"
    )
    law = strategy.releases(1, 2, 2)["model"].law
    assert isinstance(law, CoordinateSampledGaussian)
    norm, clip = column_norm(factorise("tree", 3)), strategy.config.privacy.clip
    assert clip is not None
    assert law.column_norm == norm
    assert law.sigma == pytest.approx(2 * norm * clip * 0.5)
    _play(strategy, range(1, 4))


@pytest.mark.parametrize("how", [PASSES, CYCLE])
def test_every_client_is_in_one_round_of_a_pass(
    make_strategy: MakeStrategy, how: tuple[str, ...]
) -> None:
    strategy = _sgmf(make_strategy, *how, *GIVEN)
    drawn = [coordinator_of(strategy).sampler.draw(server_round) for server_round in range(1, 7)]
    for start in (0, 3):
        one_pass = [client for cohort in drawn[start : start + 3] for client in cohort]
        assert sorted(one_pass) == list(range(6))
    if how is CYCLE:
        assert drawn[:3] == drawn[3:]


class _Repeating:
    """Draws the same two clients in every round."""

    rounds_per_pass = 3

    def draw(self, server_round: int) -> list[int]:
        return [1, 4]


def test_who_was_in_a_pass_is_not_asked_again_before_the_next(make_strategy: MakeStrategy) -> None:
    strategy = _sgmf(make_strategy, *PASSES, *GIVEN)
    coordinator_of(strategy).sampler = cast("object", _Repeating())  # type: ignore[assignment]
    grid = LocalGrid(app, 6)
    _play(strategy, range(1, 2))
    assert strategy.took_part == {1: 1, 4: 1}
    for server_round in (2, 3):
        assert not ask(strategy, server_round, grid)
    coordinator_of(strategy).lost.clear()
    assert len(ask(strategy, 4, grid)) == 2


def test_without_restarts_a_client_waits_for_a_whole_pass(make_strategy: MakeStrategy) -> None:
    strategy = _sgmf(make_strategy, *CYCLE, *GIVEN)
    strategy.took_part = {0: 3}
    assert [strategy.must_pause(0, server_round) for server_round in (3, 4, 5, 6)] == [
        *(True, True, True, False)
    ]


def test_an_aborted_attempt_is_no_participation(make_strategy: MakeStrategy) -> None:
    strategy = _sgmf(make_strategy, *PASSES, *GIVEN)
    grid = LocalGrid(app, 6)
    for _ in range(2):  # asked, and nothing came of it
        asked = ask(strategy, 1, grid)
        assert len(asked) == 2
    coordinator_of(strategy).aggregate_train(1, grid.send_and_receive(asked))
    assert sorted(strategy.took_part) == coordinator_of(strategy).sampler.draw(1)


def test_it_goes_on_from_its_state_with_the_same_noise(make_strategy: MakeStrategy) -> None:
    seeded = ("privacy.randomness=seeded", *GIVEN)
    one, two = (_sgmf(make_strategy, *PASSES, *seeded) for _ in range(2))
    _play(one, range(1, 3))
    two.model.load(one.model.vector)
    two.load_state_dict(deepcopy(one.state_dict()))  # as by a file
    assert two.took_part == one.took_part
    assert torch.equal(_play(one, range(3, 7)), _play(two, range(3, 7)))


def test_sums_of_unequal_cohorts_are_divided_by_one_number(make_strategy: MakeStrategy) -> None:
    """Or what one round adds another would not take back."""
    strategy = _sgmf(make_strategy, *PASSES, *GIVEN, "clients.total=7")
    sizes = {
        len(coordinator_of(strategy).sampler.draw(server_round)) for server_round in range(1, 5)
    }
    assert sizes == {1, 2}
    seen: list[float] = []
    units = strategy.units

    def watched(aggregate: Aggregate) -> float:
        seen.append(units(aggregate))
        return seen[-1]

    strategy.units = watched  # type: ignore[method-assign]
    _play(strategy, range(1, 5))
    assert set(seen) == {7 / 4}


def test_where_everybody_is_in_every_round_it_says_that_nothing_is_gained(
    make_strategy: MakeStrategy,
) -> None:
    everybody = _sgmf(make_strategy, "strategy=sgmf", *GIVEN)
    assert "cannot beat the best independent noise" in everybody.remarks()
    assert everybody.strategy_matrix.shape == (1, 1)
    said = _sgmf(make_strategy, *PASSES, *GIVEN).remarks()
    assert "trusted" in said
    assert "correlated over 3 rounds (optimal)" in said


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("secagg=pairwise",), "one party must know all of it"),
        (("privacy.against=server",), "one party must know all of it"),
        (("clients.sampling=poisson",), "set clients.sampling=passes"),
        (("clients.sampling=cycle",), "set clients.sampling=passes"),
        (("strategy.restarts=false",), "set clients.sampling=cycle"),
        (
            ("strategy.restarts=false", "clients.sampling=cycle"),
            "set strategy.factorisation=banded",
        ),
        ((*CYCLE, "strategy.band=4"), "set strategy.band to at most that"),
        (("strategy.server.optimizer=adam",), "set strategy.server.optimizer=sgd"),
        (("checkpoint_every=2",), "set checkpoint_every=1"),
        (("privacy.unit=example",), "set privacy.unit=client"),
        (("privacy.clip=adaptive",), "set privacy.clip to a number"),
    ],
)
def test_what_no_theorem_covers_is_refused(overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compose([*PASSES, "clients.total=6", *overrides])
