"""Federated evaluation: rows within their bound, sums without bias, means and groups, and what is refused before
anything is spent."""

import itertools
import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from fedsketch.conf import Config, compose
from fedsketch.errors import ConfigError, DataError
from fedsketch.privacy.mechanisms.encoding import squared_norms
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.evaluation import (
    FederatedEvaluation,
    bound_of,
    evaluation_rows,
    sampler_of,
)
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload
from tests.rounds import coordinator_of
from tests.small import small

DATA = "data.examples=120 data.shape=[6]"
EVALUATED = "rounds=10 evaluation=federated evaluation.epsilon=4"


@cache
def _config(*overrides: str) -> Config:
    return compose(small(DATA, EVALUATED, *overrides, clients=12))


def _evaluation(*overrides: str) -> FederatedEvaluation:
    config = _config(*overrides)
    workload = Workload(config)
    trained = make_strategy(config, workload, workload.model())
    return FederatedEvaluation(trained)


def _ring(numbers: int) -> SkellamRing:
    return choose_ring(dim=numbers, clients=10, clip=bound_of(numbers), noise=lambda l2, l1: l2**2)


# ---------------------------------------------------------------------- bounds and bias
@pytest.mark.parametrize("numbers", range(1, 7))
def test_no_rounding_of_a_row_in_its_cube_exceeds_the_bound(numbers: int) -> None:
    """What the proof of unbiasedness rests on: nothing is clipped, and no rounding is rejected; by brute force on the
    cube's corners, where norms are largest, and on points inside, with each number rounded down and up."""
    ring = _ring(numbers)
    assert 0.5 * ring.scale == pytest.approx(round(0.5 * ring.scale), rel=1e-12)
    corners = np.array(list(itertools.product((-0.5, 0.5), repeat=numbers)))
    inside = np.random.default_rng(0).uniform(-0.5, 0.5, (200, numbers))
    assert np.linalg.norm(corners, axis=1).max() <= ring.clip
    steps = np.concatenate([corners, inside]) * ring.scale
    steps = np.where(abs(steps - steps.round()) < 1e-6, steps.round(), steps)
    for up in itertools.product((False, True), repeat=numbers):
        rounded = np.where(up, np.ceil(steps), np.floor(steps)).astype(np.int64)
        assert (squared_norms(rounded) <= ring.l2_bound_squared).all()


def test_the_bound_costs_hardly_more_than_the_cube_needs() -> None:
    for numbers in range(1, 30):
        assert 1.0 <= bound_of(numbers) / (0.5 * math.sqrt(numbers)) < 1.002


class _Odd(nn.Module):
    """Says of every example what it holds."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs


@pytest.mark.parametrize("unit", ["client", "example"])
def test_rows_stay_in_the_cube_whatever_the_model_says(unit: str) -> None:
    config = _config(f"privacy={unit}")
    odd = [0.0, 1.0, -1.0, 1e30, -3e38, 3e38, float("inf"), float("-inf"), float("nan")]
    outputs = torch.tensor(list(itertools.product(odd, repeat=3)))
    targets = torch.arange(len(outputs)) % 3
    rows = evaluation_rows(config, FlatModel(_Odd()), Examples(outputs, targets), 3)
    assert rows.shape == ((1, 2) if unit == "client" else (len(outputs), 3))
    assert (rows.abs() <= 0.5).all()
    if unit == "example":
        assert (rows[:, -1] == 0.5).all()


def test_a_row_is_the_means_of_the_held_out_examples() -> None:
    config = _config("evaluation.loss_bound=2")
    outputs = torch.tensor([[9.0, 0, 0], [0, 9.0, 0], [0, 0, 0.0], [-9.0, 0, 0]])
    rows = evaluation_rows(
        config, FlatModel(_Odd()), Examples(outputs, torch.tensor([0, 1, 0, 0])), 3
    )
    small = math.log(1 + 2 * math.exp(-9))
    losses = [small, small, math.log(3), 2.0]  # the last one is above the bound
    expected = [3 / 4 - 0.5, sum(losses) / 4 / 2 - 0.5]
    torch.testing.assert_close(rows[0], torch.tensor(expected).double(), atol=1e-6, rtol=0)


def test_a_device_with_nothing_held_out_says_nothing() -> None:
    for unit, numbers in (("client", 2), ("example", 3)):
        nobody = Examples(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
        rows = evaluation_rows(_config(f"privacy={unit}"), FlatModel(_Odd()), nobody, 3)
        assert rows.shape == (1, numbers)
        assert not rows.any()


def test_one_example_changes_no_row_but_its_own() -> None:
    """Also where a model lets examples of a batch see each other."""

    class Mixing(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs - inputs.mean(dim=0)

    config, model = _config("privacy=example"), FlatModel(Mixing())
    inputs, targets = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), torch.arange(5)
    before = evaluation_rows(config, model, Examples(inputs, targets % 3), 3)
    inputs = inputs.clone()
    inputs[2] = 100.0
    after = evaluation_rows(config, model, Examples(inputs, targets % 3), 3)
    others = [0, 1, 3, 4]
    assert torch.equal(before[others], after[others])


# ---------------------------------------------------------------------- from uploads to means
def _played(
    evaluation: FederatedEvaluation, rows: Sequence[torch.Tensor], stream: Stream, round: int = 1
) -> None:
    """One evaluation in which these clients' rows are what the mechanism gets."""
    cohort, groups = len(rows), evaluation.evaluation.groups
    mechanism = evaluation.mechanism(round, cohort)
    uploads = [mechanism.protect(one, stream, round).vector for one in rows]
    size = cohort // groups
    parts = [(g * size, (g + 1) * size) for g in range(groups)]
    sums = [
        coordinator_of(evaluation).aggregate(
            round, mechanism, cohort, [(uploads[c], [c]) for c in range(start, stop)]
        )
        for start, stop in parts
    ]
    whole = coordinator_of(evaluation).aggregate(
        round, mechanism, cohort, [(upload, [c]) for c, upload in enumerate(uploads)]
    )
    evaluation.update(round, type(whole)(**{**vars(whole), "parts": tuple(sums)}))


def _row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64) - 0.5


@pytest.mark.parametrize(
    "overrides",
    [("secagg.bits=16",), ("secagg=none", "privacy.against=model")],
    ids=" ".join,
)
def test_the_mean_over_clients_is_unbiased(overrides: tuple[str, ...]) -> None:
    """A sound evaluation fails each of the four comparisons once in ten million runs: 5.3 standard deviations, and the
    seed is fixed."""
    evaluation = _evaluation("evaluation.loss_bound=2", *overrides)
    rng, trials = np.random.default_rng(5), 200
    values = rng.uniform(0, 1, (12, 2))
    values[:4] = rng.integers(0, 2, (4, 2))  # the corners too, where rounding would be rejected
    rows, told = [_row(*pair) for pair in values], []
    with Stream(derived_key(3, "unbiased")) as stream:
        for _ in range(trials):
            _played(evaluation, rows, stream)
            told.append([evaluation.means[name].mean for name in ("accuracy", "loss")])
    means = values.mean(axis=0) * [1, 2]
    noise = np.array([evaluation.means[name].noise for name in ("accuracy", "loss")])
    off = (np.mean(told, axis=0) - means) / (noise / math.sqrt(trials))
    assert abs(off).max() < 5.3
    # And the noise is what is said: the relative deviation of a variance of 200 is 0.1.
    assert np.var(told, axis=0) / noise**2 == pytest.approx([1, 1], abs=0.53)


def test_groups_have_means_of_their_own() -> None:
    evaluation = _evaluation("evaluation.groups=3", "evaluation.epsilon=2000", "secagg.colluders=0")
    values = [0.1 * (client // 4) + 0.2 for client in range(12)]
    with Stream(derived_key(4, "groups")) as stream:
        _played(evaluation, [_row(value, 1.0) for value in values], stream)
    accuracy = evaluation.means["accuracy"]
    assert len(accuracy.groups) == 3
    for (mean, noise), expected in zip(accuracy.groups, (0.2, 0.3, 0.4), strict=True):
        assert noise == pytest.approx(accuracy.noise * math.sqrt(3))
        assert abs(mean - expected) < 6 * noise
        assert noise < 0.03
    assert accuracy.mean == pytest.approx(sum(mean for mean, _ in accuracy.groups) / 3, abs=1e-5)


def test_the_mean_over_examples_divides_by_their_noisy_number() -> None:
    """Clients with many examples count more; the quotient is off by less than its stated noise in the mean of many
    evaluations."""
    evaluation = _evaluation(
        "privacy=example", "data.examples=4800", "evaluation.held_out=0.5", "evaluation.epsilon=2"
    )
    rng, rows, scores = np.random.default_rng(6), [], []
    for client in range(12):
        values = rng.uniform(0, 1, (20 + 10 * client, 2))
        scores.append(values)
        rows.append(torch.tensor(np.c_[values - 0.5, np.full(len(values), 0.5)]))
    told, trials = [], 100
    with Stream(derived_key(5, "examples")) as stream:
        for _ in range(trials):
            _played(evaluation, rows, stream)
            told.append(evaluation.means["accuracy"].mean)
    noise = evaluation.means["accuracy"].noise
    expected = np.concatenate(scores)[:, 0].mean()
    assert abs(np.mean(told) - expected) < 5.3 * noise / math.sqrt(trials)
    assert np.var(told) / noise**2 == pytest.approx(1, abs=5.3 * math.sqrt(2 / trials))


def test_noise_that_has_eaten_the_count_leaves_no_mean() -> None:
    evaluation = _evaluation("privacy=example", "evaluation.epsilon=0.01")
    nothing = torch.zeros(1, 3, dtype=torch.float64)
    counts = []
    with Stream(derived_key(6, "nothing")) as stream:
        for _ in range(20):
            _played(evaluation, [nothing] * 12, stream)
            counts.append(bool(evaluation.means))
    assert not all(counts)  # a count of pure noise is above one deviation once in six times


# ---------------------------------------------------------------------- its own run
def test_noise_is_planned_for_the_evaluations_alone() -> None:
    evaluation = _evaluation("evaluation.every=3")
    assert evaluation.config.rounds == 4
    assert evaluation.config.privacy.epsilon == 4
    # Training's budget is not theirs.
    twice = _evaluation("evaluation.every=3", "privacy.epsilon=1")
    assert twice.noise.noise_multiplier == pytest.approx(evaluation.noise.noise_multiplier)
    assert _evaluation().noise.noise_multiplier < evaluation.noise.noise_multiplier


def test_evaluations_are_drawn_apart_from_training() -> None:
    evaluation = _evaluation("clients.per_round=6")
    draws = [sampler_of(evaluation.config, 1).draw(r) for r in range(1, 30)]
    trained = [coordinator_of(evaluation.trained).sampler.draw(r) for r in range(1, 30)]
    assert draws != trained
    assert all(len(draw) == 6 for draw in draws)


def test_passes_and_poisson_draws_are_for_training_or_for_one_sum() -> None:
    half = "clients.per_round=6"
    assert _evaluation(half, "clients.sampling=passes").config.clients.sampling == "fixed"
    assert _evaluation(half, "clients.sampling=poisson").config.clients.sampling == "fixed"
    alone = _evaluation(half, "clients.sampling=poisson", "evaluation.groups=1")
    assert alone.config.clients.sampling == "poisson"
    assert alone.noise.draw_is_secret


def test_groups_that_secure_aggregation_cannot_finish_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"lower evaluation\.groups") as caught:
        _evaluation("evaluation.groups=4", "secagg.colluders=0.3")
    assert str(caught.value).endswith(".")
    with pytest.raises(ConfigError, match=r"evaluation\.groups"):
        _evaluation("evaluation.groups=12")
    _evaluation("evaluation.groups=4", "secagg.colluders=0")


def test_clients_without_two_examples_are_refused() -> None:
    with pytest.raises(DataError, match="evaluation=server"):
        _evaluation("data.examples=12")
