"""Without noise the step is Adam's; with noise its second moment is right on average, and never below the floor."""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from fedsketch.conf import compose
from fedsketch.conf.settings import Optimizer
from fedsketch.conf.strategy.dome import DebiasedConfig, DomeConfig
from fedsketch.sketching.layerwise_sketch import probes
from fedsketch.strategies.dome.debiased_step import DebiasedStep


@cache
def _default() -> DebiasedConfig:
    strategy = compose(["strategy=dome"]).strategy
    assert isinstance(strategy, DomeConfig)
    return strategy.server


def _settings(optimizer: str = "adam", **changes: Any) -> DebiasedConfig:
    return replace(_default(), optimizer=Optimizer(optimizer), **changes)


def _gradients(count: int, d: int = 30, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-3, 2, d, dtype=torch.float64)
    return scale * torch.randn(count, d, generator=generator, dtype=torch.float64)


def _steps(
    settings: DebiasedConfig, gradients: torch.Tensor, variance: float = 0.0
) -> torch.Tensor:
    """Where the steps lead from zero."""
    vector = torch.zeros_like(gradients[0])
    step = DebiasedStep(vector, settings)
    for gradient in gradients:
        step.step(gradient, torch.full_like(vector, variance))
    return vector


def _torch_steps(gradients: torch.Tensor, **settings: Any) -> torch.Tensor:
    vector = torch.nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = torch.optim.Adam([vector], **settings)
    for gradient in gradients:
        vector.grad = gradient.clone()
        optimizer.step()
    return vector.detach()


@pytest.mark.parametrize("debias", [True, False])
def test_without_noise_it_is_torchs_adam(debias: bool) -> None:
    settings = _settings(lr=0.1, momentum=0.8, second_momentum=0.95, debias=debias)
    expected = _torch_steps(_gradients(20), lr=0.1, betas=(0.8, 0.95))
    torch.testing.assert_close(_steps(settings, _gradients(20)), expected)


def test_sgd_divides_the_velocity_by_the_weights_it_has_seen() -> None:
    """Torch's velocity is sum beta^(t-s) g_s; ours is that sum's mean, so its scale does not depend on t or beta:
    torch's step at the rate lr (1 - beta) / (1 - beta^t)."""
    gradients = _gradients(20)
    vector = torch.nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = torch.optim.SGD([vector], lr=1.0, momentum=0.9)
    for t, gradient in enumerate(gradients, start=1):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - 0.9) / (1 - 0.9**t)
        vector.grad = gradient.clone()
        optimizer.step()
    ours = _steps(_settings(optimizer="sgd", lr=0.1, momentum=0.9), gradients)
    torch.testing.assert_close(ours, vector.detach())


def test_amsgrad_takes_the_largest_corrected_second_moment() -> None:
    """Reddi et al. know no bias correction; torch takes the largest raw moment and corrects it by today's factor, which
    is never more."""
    gradients = _gradients(20)
    gradients[10:] *= 0.1  # or the largest would be the last
    vector, first, second, largest = (torch.zeros_like(gradients[0]) for _ in range(4))
    for t, gradient in enumerate(gradients, start=1):
        first = 0.8 * first + 0.2 * gradient
        second = 0.95 * second + 0.05 * gradient.square()
        largest = torch.maximum(largest, second / (1 - 0.95**t))
        vector = vector - 0.1 * first / (1 - 0.8**t) / (largest.sqrt() + 1e-8)
    settings = {"lr": 0.1, "momentum": 0.8, "second_momentum": 0.95}
    ours = _steps(_settings(optimizer="amsgrad", **settings), gradients)
    torch.testing.assert_close(ours, vector)
    assert not torch.allclose(ours, _steps(_settings(optimizer="adam", **settings), gradients))


def test_amsgrad_is_torchs_while_gradients_do_not_shrink() -> None:
    gradients = _gradients(1).abs() * 1.3 ** torch.arange(20.0, dtype=torch.float64)[:, None]
    settings = _settings(optimizer="amsgrad", lr=0.1, momentum=0.8, second_momentum=0.95)
    expected = _torch_steps(gradients, lr=0.1, betas=(0.8, 0.95), amsgrad=True)
    torch.testing.assert_close(_steps(settings, gradients), expected)


def _second_moments(debias: bool, sigma: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The second moment that the eighth step divided by, for 20,000 draws of the noise (rows): sigma on each of 4
    numbers of a sketch of 12; and the noise-free one."""
    draws, d, k = 20_000, 12, 4
    generator = torch.Generator().manual_seed(3)
    basis = probes(5, k, torch.empty(d, 0, dtype=torch.float64))
    variance = sigma**2 * basis.square().sum(dim=1).expand(draws, d)
    signal = 2 + torch.rand(8, d, generator=generator, dtype=torch.float64)
    settings = _settings(lr=1, momentum=0.5, second_momentum=0.9, debias=debias, floor=1e-9)
    noisy, clean = (torch.zeros(rows, d, dtype=torch.float64) for rows in (draws, 1))
    step, clean_step = DebiasedStep(noisy, settings), DebiasedStep(clean, settings)
    for gradient in signal:
        noise = sigma * torch.randn(draws, k, generator=generator, dtype=torch.float64) @ basis.T
        noisy.zero_()
        clean.zero_()
        step.step(gradient + noise, variance)
        clean_step.step(gradient.unsqueeze(0), torch.zeros_like(clean))
    # vector = -m / sqrt(v): what it divided by follows from where it went.
    return (step.corrected_moment / noisy) ** 2, (clean_step.corrected_moment / clean) ** 2


def test_the_second_moment_is_right_on_average() -> None:
    """Lemma 3.2. Twelve coordinates, each within 5.5 standard errors: false alarms 12 * 3.8e-8 < 1e-6; the seed is
    fixed."""
    draws, expected = _second_moments(True, 0.4)
    error = draws.std(dim=0) / len(draws) ** 0.5
    assert float(((draws.mean(dim=0) - expected[0]) / error).abs().max()) < 5.5
    assert float((error / expected[0]).max()) < 0.01  # it can tell


def test_without_debiasing_the_noise_stays_in_the_second_moment() -> None:
    """By its variance, which is what the test above would miss if it were blind."""
    draws, expected = _second_moments(False, 0.4)
    basis = probes(5, 4, torch.empty(12, 0, dtype=torch.float64))
    excess = 0.4**2 * basis.square().sum(dim=1)
    error = draws.std(dim=0) / len(draws) ** 0.5
    assert float(((draws.mean(dim=0) - expected[0] - excess) / error).abs().max()) < 5.5
    assert float((excess / error).max()) > 10


@pytest.mark.parametrize("optimizer", ["adam", "amsgrad"])
def test_the_second_moment_is_never_below_the_floor(optimizer: str) -> None:
    """0.1^2 - 2 would be negative: 0.5 * 2 stands in."""
    settings = _settings(optimizer=optimizer, lr=1, floor=0.5)
    moved = _steps(settings, torch.full((5, 3), 0.1, dtype=torch.float64), variance=2.0)
    torch.testing.assert_close(moved, torch.full_like(moved, -5 * 0.1))


def test_above_the_floor_only_the_noise_is_taken_out() -> None:
    settings = _settings(lr=1, floor=0.5)
    moved = _steps(settings, torch.full((5, 3), 3.0, dtype=torch.float64), variance=2.0)
    torch.testing.assert_close(moved, torch.full_like(moved, -5 * 3.0 / 7.0**0.5))


def test_no_noise_and_no_gradient_do_not_move_anything() -> None:
    assert torch.equal(_steps(_settings(), torch.zeros(3, 5)), torch.zeros(5))


def test_the_corrected_moment_of_equal_gradients_is_the_gradient() -> None:
    step = DebiasedStep(torch.zeros(3), _settings(momentum=0.9))
    assert torch.equal(step.corrected_moment, torch.zeros(3))
    for t in range(1, 6):
        step.step(torch.full((3,), 2.0), torch.zeros(3))
        torch.testing.assert_close(step.corrected_moment.float(), torch.full((3,), 2.0))
        torch.testing.assert_close(step.first_moment, torch.full((3,), 2.0 * (1 - 0.9**t)))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "amsgrad"])
def test_a_saved_step_goes_on_identically(optimizer: str) -> None:
    gradients, settings = _gradients(10).float(), _settings(optimizer=optimizer)
    gradients[5:] *= 0.1  # so that AMSGrad needs its memory
    variance = torch.full((30,), 0.01)
    unbroken = torch.zeros(30)
    first = DebiasedStep(unbroken, settings)
    for gradient in gradients[:5]:
        first.step(gradient, variance)
    resumed, state = unbroken.clone(), copy.deepcopy(first.state_dict())
    second = DebiasedStep(resumed, settings)
    second.load_state_dict(state)
    for gradient in gradients[5:]:
        first.step(gradient, variance)
        second.step(gradient, variance)
        assert torch.equal(unbroken, resumed)
    assert first.state_dict().keys() == second.state_dict().keys()
    fresh = DebiasedStep(unbroken.clone(), settings)
    assert not torch.equal(fresh.corrected_moment, second.corrected_moment)
