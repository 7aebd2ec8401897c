"""Which numbers are sent, and which directions are worth looking at again."""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from fedsketch.conf import compose
from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.errors import ConfigError
from fedsketch.sketching.folding import Fold
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch
from fedsketch.strategies.dome.learned_sketch import LearnedSketch, folds_of, isotropic
from fedsketch.tasks.models.flat_model import FlatModel

CPU = torch.device("cpu")
LAYERS = (Fold(0, 10, 60, 10), Fold(600, 1, 10, 10))  # 600 weights, sketched; 10 biases, whole


@cache
def _default() -> DomeConfig:
    strategy = compose(["strategy=dome"]).strategy
    assert isinstance(strategy, DomeConfig)
    return strategy


def _settings(**changes: Any) -> DomeConfig:
    """With room for what the rules keep."""
    return replace(_default(), **{"learned_share": 0.75, **changes})


def _model() -> FlatModel:
    """600 + 10 and 900 + 30 numbers."""
    return FlatModel(torch.nn.Sequential(torch.nn.Linear(60, 10), torch.nn.Linear(30, 30)))


def _size(settings: DomeConfig, server_round: int) -> int:
    return sum(fold.size for fold in folds_of(settings, _model(), server_round))


# ---------------------------------------------------------------------- how much is sent
@pytest.mark.parametrize(("dim", "numbers"), [(7, 7), (1540, 1540), (0.1, 154)])
def test_a_flat_sketch_sends_what_it_is_told(dim: float, numbers: int) -> None:
    (fold,) = folds_of(_settings(sketch="flat", sketch_dim=dim), _model(), 1)
    assert fold == Fold(0, 1, 1540, numbers)


def test_more_numbers_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sketch_dim=1,541 is more than the 1,540 numbers"):
        folds_of(_settings(sketch="flat", sketch_dim=1541), _model(), 1)


@pytest.mark.parametrize(("dim", "rank"), [(80, 1), (119, 1), (120, 2), (0.2, 6), (0.5, 18)])
def test_a_layerwise_sketch_stays_within_its_size(dim: float, rank: int) -> None:
    """40 biases, and `rank` numbers for each of 40 rows."""
    settings = _settings(sketch_dim=dim)
    assert _size(settings, 1) == 40 * (rank + 1) <= (dim if dim >= 1 else dim * 1540)
    ranks = [fold.rank for fold in folds_of(settings, _model(), 1)]
    assert ranks == [rank, 10, rank, 30]


def test_a_layer_with_fewer_columns_than_the_rank_is_sent_whole() -> None:
    ranks = [fold.rank for fold in folds_of(_settings(sketch_dim=0.9), _model(), 1)]
    assert ranks == [44, 10, 30, 30]


@pytest.mark.parametrize("sketch", ["flat", "layerwise", "blocks"])
def test_warm_up_rounds_send_everything(sketch: str) -> None:
    settings = _settings(sketch=sketch, sketch_dim=200, warm_up=2)
    assert [_size(settings, r) for r in (1, 2)] == [1540, 1540]
    assert _size(settings, 3) <= 200
    assert all(fold.whole for fold in folds_of(settings, _model(), 2))


def test_tensors_too_small_to_gain_are_sent_whole() -> None:
    model = FlatModel(torch.nn.Linear(50, 10))  # 500 weights
    (weights, _) = folds_of(_settings(sketch_dim=510), model, 1)
    assert weights.whole
    with pytest.raises(ConfigError, match=r"at least 510 numbers: raise strategy\.sketch_dim"):
        folds_of(_settings(sketch_dim=509), model, 1)


# ---------------------------------------------------------------------- what is kept
def _fed(settings: DomeConfig, energies: list[float], deviation: float = 0.0) -> LearnedSketch:
    """A learner that has seen these energies along the first axes of the weights' columns."""
    learner = LearnedSketch(settings, LAYERS, CPU)
    vector = torch.zeros(610)
    for axis, energy in enumerate(energies):
        vector[axis * 60 + axis] = energy**0.5  # row and column `axis`
    learner.feed(vector, deviation, LAYERS)
    return learner


def _kept(learner: LearnedSketch) -> int:
    weights, biases = learner.learned()
    assert biases is None  # sent whole
    assert weights is not None
    assert weights.shape[0] == 60
    torch.testing.assert_close(weights.T @ weights, torch.eye(weights.shape[1]))
    return weights.shape[1]


@pytest.mark.parametrize(("energy", "count"), [(0.4, 1), (0.5, 1), (0.51, 2), (0.9, 3), (1.0, 4)])
def test_energy_keeps_the_fewest_that_hold_this_share(energy: float, count: int) -> None:
    settings = _settings(keep="energy", energy=energy)
    assert _kept(_fed(settings, [5.01, 2.5, 1.5, 0.99])) == count


@pytest.mark.parametrize("keep", ["all", "energy", "noise_floor"])
@pytest.mark.parametrize(("share", "count"), [(1.0, 9), (0.75, 7), (0.59, 5), (0.05, 0), (0.0, 0)])
def test_no_rule_keeps_more_than_the_learned_share(keep: str, share: float, count: int) -> None:
    settings = _settings(keep=keep, learned_share=share, energy=1.0)
    assert _kept(_fed(settings, [9.0, 8, 7, 6, 5, 4, 3, 2, 1])) == count


@pytest.mark.parametrize(("keep", "count"), [("all", 4), ("noise_floor", 2)])
@pytest.mark.parametrize(("feedback", "scale"), [(0.9, 1), (0.0, 6)])
def test_noise_floor_keeps_only_what_noise_does_not_explain(
    keep: str, count: int, feedback: float, scale: float
) -> None:
    """Ten rows with ten numbers of noise 1: the floor is (sqrt(10) + sqrt(10) + sqrt(2 ln 1000))^2 = 101; and with
    isotropic probes, ten of sixty and so sqrt(6) long, six times that."""
    settings = _settings(keep=keep, feed="gradient", error_feedback=feedback)
    energies = [scale * energy for energy in (140.0, 120, 80, 60)]
    assert _kept(_fed(settings, energies, deviation=1.0)) == count


def test_before_anything_was_seen_nothing_is_known() -> None:
    assert _kept(LearnedSketch(_settings(keep="all"), LAYERS, CPU)) == 0


def _loop(
    settings: DomeConfig,
    layout: tuple[Fold, ...],
    seed: int,
    planted: torch.Tensor | None = None,
) -> tuple[int, float]:
    """25 rounds of a sketch that follows what it learns, noise 1 on each number, on top of a fixed gradient: the most
    directions ever kept, and the share of the gradient that the last sketch sees."""
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.zeros(610) if planted is None else planted
    learner = LearnedSketch(settings, layout, CPU)
    moment, most = torch.zeros(610), 0
    for t in range(1, 26):
        folds, known = layout, learner.learned()
        most = max(most, sum(basis.shape[1] for basis in known if basis is not None))
        if t <= settings.warm_up:
            folds = tuple(replace(fold, rank=fold.columns) for fold in layout)
            known = [None] * len(layout)
        projection = LayerwiseSketch(folds, known, 1000 * seed + t)
        sketch = LayerwiseSketch(folds, known, 1000 * seed + t, isotropic=isotropic(settings))
        seen, sent = projection.forward(gradient), sketch.forward(gradient)
        desketched = sketch.adjoint(sent + torch.randn(sent.shape, generator=generator))
        moment = 0.9 * moment + 0.1 * desketched
        learner.feed(moment if settings.feed == "momentum" else desketched, 1.0, folds)
    return most, float(seen.norm() / gradient.norm()) ** 2 if planted is not None else 0.0


FLAT = (Fold(0, 1, 610, 30),)


@pytest.mark.parametrize("feedback", [0.0, 0.9])
@pytest.mark.parametrize("feed", ["gradient", "momentum"])
@pytest.mark.parametrize("warm_up", [0, 5])
@pytest.mark.parametrize("layout", [LAYERS, FLAT], ids=["layerwise", "flat"])
def test_of_pure_noise_nothing_is_kept(
    layout: tuple[Fold, ...], warm_up: int, feed: str, feedback: float
) -> None:
    """With isotropic probes and, for error feedback, orthonormal ones. At most 1e-3 a look by the floor's bound, far
    less in practice (tests/sketching/test_noise_floor.py); the seeds are fixed."""
    settings = _settings(feed=feed, warm_up=warm_up, error_feedback=feedback)
    assert [_loop(settings, layout, seed)[0] for seed in range(2)] == [0, 0]


@pytest.mark.parametrize("feed", ["gradient", "momentum"])
@pytest.mark.parametrize("layout", [LAYERS, FLAT], ids=["layerwise", "flat"])
def test_a_strong_direction_is_found_and_then_seen(layout: tuple[Fold, ...], feed: str) -> None:
    """After three rounds that sense everything. A random sketch would see a sixth of it, or a twentieth."""
    inputs = torch.nn.functional.normalize(torch.randn(60, generator=torch.manual_seed(1)), dim=0)
    planted = torch.cat([40.0 * torch.outer(torch.ones(10), inputs).flatten(), torch.zeros(10)])
    most, seen = _loop(_settings(feed=feed, warm_up=3), layout, 1, planted)
    assert most >= 1
    assert seen > 0.95


def test_a_saved_learner_goes_on_identically() -> None:
    generator = torch.Generator().manual_seed(2)
    vectors = 5 * torch.randn(6, 610, generator=generator)
    vectors[:, :600] += 40 * torch.randn(600, generator=generator)
    first, second = (LearnedSketch(_settings(), LAYERS, CPU) for _ in range(2))
    for vector in vectors[:3]:
        first.feed(vector, 0.5, LAYERS)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for vector in vectors[3:]:
        bases = first.learned()[0], second.learned()[0]
        assert bases[0] is not None
        assert bases[1] is not None
        assert bases[0].shape[1] > 0
        assert torch.equal(*bases)  # type: ignore[arg-type]
        first.feed(vector, 0.5, LAYERS)
        second.feed(vector, 0.5, LAYERS)
