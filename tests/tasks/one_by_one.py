"""What gradients per example must agree with: one backward pass for each of them."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fedsketch.conf.plugins import settings_class
from fedsketch.tasks.gradients.per_example import PerExample
from fedsketch.tasks.models import networks
from fedsketch.tasks.models.flat_model import FlatModel

SMALL_TRANSFORMER = {"patch": 3, "width": 12, "depth": 2, "heads": 2, "expansion": 2, "bias": True}
BUILT_IN = {
    "logistic": ((1, 8, 8), {}),
    "mlp": ((1, 8, 8), {"width": 32}),
    "cnn": ((1, 8, 8), {"width": 16}),
    "lenet5": ((1, 12, 12), {}),
    "resnet": ((3, 8, 8), {"width": 16, "depth": 8}),
    "transformer": ((3, 8, 8), SMALL_TRANSFORMER),
}
CLASSES = 5
# A norm is a root of thousands of squares in float32: 1e-5 is a hundred roundings.
RELATIVE = 1e-5


def built_in(name: str) -> tuple[FlatModel, Tensor, Tensor]:
    shape, options = BUILT_IN[name]
    chosen = settings_class("model", name)(name=name, **options)
    return FlatModel(networks.build(chosen, shape, CLASSES, 0)), *batch(7, shape)


def batch(size: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(9)
    inputs = torch.randn(size, *shape, generator=generator)
    return inputs, torch.randint(CLASSES, (size,), generator=generator)


def loop(model: FlatModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """One backward pass per example."""
    parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
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
    assert_close(found.gradients(inputs, targets), expected)
    weights = torch.linspace(0.1, 1.0, len(targets))
    assert_close(found.weighted_sum(inputs, targets, weights), weights @ expected)


def assert_close(found: Tensor, expected: Tensor) -> None:
    # Entries may cancel to zero: rounding goes by the largest of them.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def clip_to(bound: float) -> Callable[[Tensor], Tensor]:
    return lambda norms: (bound / norms).clamp(max=1.0)
