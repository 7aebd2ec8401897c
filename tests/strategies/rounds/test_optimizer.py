"""The server's optimiser moves the model as torch's own would."""

from collections.abc import Callable

import pytest
import torch

from fedsketch.conf.settings import Optimizer, OptimizerConfig
from fedsketch.strategies.rounds.optimizer import ServerOptimizer

CASES: list[tuple[OptimizerConfig, Callable[[list[torch.Tensor]], torch.optim.Optimizer]]] = [
    (OptimizerConfig(Optimizer.SGD, 0.5, 0.0), lambda p: torch.optim.SGD(p, lr=0.5)),
    (OptimizerConfig(Optimizer.SGD, 0.5, 0.9), lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9)),
    (OptimizerConfig(Optimizer.ADAM, 0.1, 0.0), lambda p: torch.optim.Adam(p, lr=0.1)),
    (
        OptimizerConfig(Optimizer.AMSGRAD, 0.1, 0.0),
        lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    ),
]
NAMES = ["sgd", "momentum", "adam", "amsgrad"]


def _gradients(count: int) -> list[torch.Tensor]:
    # One large gradient among small ones: there amsgrad and adam part.
    generator = torch.Generator().manual_seed(1)
    sizes = [1.0, 50.0] + [0.1] * (count - 2)
    return [size * torch.randn(17, generator=generator) for size in sizes]


def _reference(make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.ones(17))
    optimizer = make([parameter])
    for gradient in _gradients(10):
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize(("settings", "make"), CASES, ids=NAMES)
def test_equals_torch_on_a_sequence_of_gradients(
    settings: OptimizerConfig, make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]
) -> None:
    vector = torch.ones(17)
    optimizer = ServerOptimizer(vector, settings)
    for gradient in _gradients(10):
        optimizer.step(gradient)
    assert torch.equal(vector, _reference(make))  # moved in place: the model's own memory


def test_the_four_optimisers_differ() -> None:
    ends = [_reference(make) for _, make in CASES]
    assert all(not torch.equal(a, b) for i, a in enumerate(ends) for b in ends[:i])


@pytest.mark.parametrize(("settings", "make"), CASES, ids=NAMES)
def test_goes_on_from_its_state_as_if_never_stopped(
    settings: OptimizerConfig, make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]
) -> None:
    vector = torch.ones(17)
    before = ServerOptimizer(vector, settings)
    for gradient in _gradients(10)[:4]:
        before.step(gradient)
    saved, state = vector.clone(), before.state_dict()
    after = ServerOptimizer(saved, settings)
    after.load_state_dict(state)
    for gradient in _gradients(10)[4:]:
        after.step(gradient)
    assert torch.equal(saved, _reference(make))


def test_an_update_is_not_changed_by_the_step() -> None:
    update = torch.full((3,), 2.0)
    ServerOptimizer(torch.zeros(3), CASES[1][0]).step(update)
    assert torch.equal(update, torch.full((3,), 2.0))
