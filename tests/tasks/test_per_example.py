"""Per-example gradients: equal to one backward pass per example, for every model and for layers that only look simple."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedsketch.conf.plugins import settings_class
from fedsketch.tasks import models
from fedsketch.tasks.errors import ModelError
from fedsketch.tasks.factors import plan
from fedsketch.tasks.flat import FlatModel
from fedsketch.tasks.per_example import PerExample

BUILT_IN = {
    "logistic": ((1, 8, 8), {}),
    "mlp": ((1, 8, 8), {"width": 32}),
    "cnn": ((1, 8, 8), {"width": 16}),
    "lenet5": ((1, 12, 12), {}),
    "resnet": ((3, 8, 8), {"width": 16, "depth": 8}),
}
CLASSES = 5
# A norm is a root of thousands of squares in float32: 1e-5 is a hundred roundings.
RELATIVE = 1e-5


def built_in(name: str) -> tuple[FlatModel, Tensor, Tensor]:
    shape, options = BUILT_IN[name]
    chosen = settings_class("model", name)(name=name, **options)
    return FlatModel(models.build(chosen, shape, CLASSES, 0)), *batch(7, shape)


def batch(size: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(9)
    inputs = torch.randn(size, *shape, generator=generator)
    return inputs, torch.randint(CLASSES, (size,), generator=generator)


def loop(model: FlatModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """One backward pass per example."""
    parameters = list(model.module.parameters())
    rows = []
    for i in range(len(targets)):
        loss = functional.cross_entropy(model.module(inputs[i : i + 1]), targets[i : i + 1])
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([gradient.flatten() for gradient in found]))
    return torch.stack(rows)


def assert_right(model: FlatModel, inputs: Tensor, targets: Tensor) -> None:
    """Norms, rows and sums against the loop."""
    found, expected = PerExample(model), loop(model, inputs, targets)
    norms = torch.linalg.vector_norm(expected.double(), dim=1).float()
    torch.testing.assert_close(found.norms(inputs, targets), norms, rtol=RELATIVE, atol=1e-7)
    # Entries may cancel to zero: rounding goes by the largest of them.
    close = {"rtol": 1e-4, "atol": 1e-5 * float(expected.abs().max())}
    torch.testing.assert_close(found.gradients(inputs, targets), expected, **close)
    weights = torch.linspace(0.1, 1.0, len(targets))
    total = found.weighted_sum(inputs, targets, weights)
    torch.testing.assert_close(total, weights @ expected, **close)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_model_agrees_with_one_backward_pass_per_example(name: str) -> None:
    assert_right(*built_in(name))
