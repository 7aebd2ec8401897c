"""Public data give the directions: a projection with longer columns for later directions, of the inputs of every
layer."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from fedsketch.conf import compose
from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch
from fedsketch.strategies.dome.learned_sketch import folds_of
from fedsketch.strategies.dome.public_directions import public_directions
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload
from tests.small import LARGER, small

RANK = 4
# Two layers of more than 512 weights: 60 x 60 and 10 x 60.
MODEL = "model=mlp model.width=60"


@cache
def _config() -> Any:
    numbers = 60 * RANK + 60 + 10 * RANK + 10
    dome = f"strategy=dome strategy.directions=public strategy.sketch_dim={numbers}"
    return compose(small(MODEL, dome, *LARGER))


def _settings(**changes: Any) -> DomeConfig:
    return replace(_config().strategy, **changes)


def _model() -> FlatModel:
    return Workload(_config()).model()


def _public(count: int = 50, rank: int = 60) -> Examples:
    generator = torch.Generator().manual_seed(3)
    span = torch.randn(rank, 60, generator=generator) * torch.logspace(0, -1, rank)[:, None]
    inputs = torch.randn(count, rank, generator=generator) @ span
    targets = torch.randint(10, (count,), generator=generator)
    return Examples(inputs.view(count, 1, 2, 30), targets)


def _sketch(settings: DomeConfig, model: FlatModel, public: Examples) -> LayerwiseSketch:
    folds = folds_of(settings, model, 1)
    found = public_directions(settings, folds, model, public)
    return LayerwiseSketch(folds, [found.get(str(i)) for i in range(len(folds))], 0)


@pytest.mark.parametrize("scaling", [0.0, 0.5, 1.0])
def test_columns_are_orthogonal_and_as_long_as_the_singular_values_say(scaling: float) -> None:
    public = _public()
    first, *_ = _sketch(_settings(scaling=scaling), _model(), public).bases
    assert first is not None
    values = torch.linalg.svdvals(public.inputs.flatten(1))[:RANK]
    expected = torch.diag((values / values[0]) ** (-2 * scaling))
    torch.testing.assert_close(first.T @ first, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scaling", [0.0, 0.5])
def test_a_gradient_inside_the_span_comes_back_up_to_the_scaling(scaling: float) -> None:
    """All examples lie in four dimensions, and public ones among them: the first layer's gradients do, too."""
    settings, model, data = _settings(scaling=scaling), _model(), _public(50, RANK)
    sketch = _sketch(settings, model, data)
    _, gradient = model.loss_and_gradient(data.inputs[:7], data.targets[:7])
    back = sketch.adjoint(sketch.forward(gradient))
    fold, basis = sketch.folds[0], sketch.bases[0]
    assert basis is not None
    # P P^T = V D^2 V^T, so dividing by D^2 in the coordinates of V leaves the gradient itself.
    lengths = basis.square().sum(dim=0)
    coordinates = fold.matrix(back) @ (basis / lengths) / lengths
    torch.testing.assert_close(coordinates @ basis.T, fold.matrix(gradient), rtol=1e-3, atol=1e-5)
    if scaling == 0:
        torch.testing.assert_close(fold.matrix(back), fold.matrix(gradient), rtol=1e-3, atol=1e-5)


def test_biases_are_sent_whole() -> None:
    sketch = _sketch(_settings(), _model(), _public())
    vector = torch.randn(sketch.shape[1], generator=torch.Generator().manual_seed(1))
    back = sketch.adjoint(sketch.forward(vector))
    for fold, basis in zip(sketch.folds, sketch.bases, strict=True):
        if basis is None:
            assert torch.equal(fold.matrix(back), fold.matrix(vector))
    assert [basis is None for basis in sketch.bases] == [False, True, False, True]


def test_what_later_layers_see_changes_with_the_model_and_what_the_first_sees_does_not() -> None:
    settings, model, public = _settings(), _model(), _public()
    folds = folds_of(settings, model, 1)
    before = public_directions(settings, folds, model, public)
    model.vector.mul_(-1)
    after = public_directions(settings, folds, model, public)
    assert torch.equal(before["0"], after["0"])
    assert not torch.allclose(before["2"].abs(), after["2"].abs(), atol=0.1)


def test_where_public_data_span_fewer_directions_the_others_are_zeros() -> None:
    first, *_ = _sketch(_settings(), _model(), _public(50, RANK - 1)).bases
    assert first is not None
    assert first.shape == (60, RANK)
    assert first.square().sum(dim=0).gt(0).tolist() == [True] * (RANK - 1) + [False]
