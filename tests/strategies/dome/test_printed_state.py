"""The printed DOME does what the text says, slips included."""

from collections.abc import Callable

import pytest
import torch

from fedsketch.conf import compose
from fedsketch.conf.strategy.dome import DomeConfig
from fedsketch.sketching.folding import Fold
from fedsketch.strategies.algorithm import Aggregate, Strategy
from fedsketch.strategies.dome.printed_state import PrintedSketch, PrintedStep
from fedsketch.strategies.dome.strategy import Dome

PAPER = ("strategy=dome", "strategy.variant=paper", "strategy.sketch=flat")


def _settings() -> DomeConfig:
    strategy = compose([*PAPER, "strategy.energy=0.9"]).strategy
    assert isinstance(strategy, DomeConfig)
    return strategy


def test_the_first_moment_that_is_fed_back_never_decays() -> None:
    """One gradient, then none: the corrected moment fades by 0.9 a step, the printed one by 0.9 / (1 - 0.9^t)."""
    step = PrintedStep(torch.zeros(1), _settings().server)
    step.step(torch.ones(1, dtype=torch.float64), torch.zeros(1))
    moments = []
    for _ in range(5):
        step.step(torch.zeros(1, dtype=torch.float64), torch.zeros(1))
        moments.append(float(step.corrected_moment))
    expected, last = [], 1.0
    for t in range(2, 7):
        last *= 0.9 / (1 - 0.9**t)
        expected.append(last)
    assert moments == pytest.approx(expected, rel=1e-5)
    assert moments[0] > 4  # it grows


def test_the_first_update_credits_arbitrary_directions() -> None:
    """QR of zeros and one vector: the vector is not the first direction, and the energy rule keeps all up to where it
    is."""
    sketch = PrintedSketch(_settings(), (Fold(0, 1, 30, 6),), torch.device("cpu"))
    vector = torch.randn(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sketch.feed(vector, 0.1, ())
    (basis,) = sketch.learned()
    assert basis is not None
    assert basis.shape == (30, 6)  # of one vector
    seen = float((basis.double().T @ vector).norm() / vector.norm())
    assert seen < 0.99


def test_it_removes_the_whole_moment_and_subtracts_one_variance_everywhere(
    make_strategy: Callable[..., Strategy],
) -> None:
    strategy = make_strategy(*PAPER, "strategy.sketch_dim=10", "strategy.broadcast=full")
    assert isinstance(strategy, Dome)
    strategy.update(1, Aggregate(torch.ones(10), 6, 0.6))
    state = strategy.state_dict()
    reference = strategy.state.reference()
    assert reference is not None
    torch.testing.assert_close(reference, state["optimizer.first"])
    tensors = strategy.broadcast(2).tensors
    assert {"model", "reference", "basis-0"} <= tensors.keys()
    strategy.load_state_dict({name: x.clone() for name, x in state.items()})
    strategy.update(2, Aggregate(torch.ones(10), 6, 0.6))
    assert strategy.state.version == 2
