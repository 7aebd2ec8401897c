"""How much of the gradient a sketch of DOME sees, as it is estimated, and which directions are kept."""

import pytest
import torch

from fedsketch.sketching.folding import Fold
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch, probes
from fedsketch.strategies.algorithm import Aggregate
from fedsketch.strategies.dome import strategy as dome
from tests.rounds import coordinator_of
from tests.small import LARGER
from tests.strategies.dome.asked import DOME, MakeStrategy, make_dome

# ---------------------------------------------------------------------- how much of the gradient is seen
FOLDS = (Fold(0, 2, 6, 3), Fold(12, 1, 4, 4))


def test_captured_energy_on_a_constructed_example() -> None:
    """Of the matrix: 9 learned; two probes of the five dimensions left see 2, so that there are 5. The vector's 4 is
    seen whole."""
    mean = torch.tensor([3.0, 1, 0, 0, 0, 1, 2, 0, 0, 0])
    assert dome.captured_energy(FOLDS, [1, 0], mean, 0.0, False) == pytest.approx(
        (11 + 4) / (14 + 4)
    )


def test_captured_energy_takes_the_known_noise_out() -> None:
    """Each number has a square that is 0.5^2 too large."""
    mean = torch.tensor([9.25, 1.25, 0.25, 0.25, 0.25, 1.25, 4.25, 0.25, 0.25, 0.25]).sqrt()
    assert dome.captured_energy(FOLDS, [1, 0], mean, 0.5, False) == pytest.approx(
        (11 + 4) / (14 + 4)
    )


def test_captured_energy_is_everything_where_everything_is_sent_and_unknown_under_noise() -> None:
    whole = (Fold(0, 1, 4, 4),)
    assert dome.captured_energy(whole, [0], torch.ones(4), 0.0, True) == 1.0
    assert dome.captured_energy(whole, [0], torch.ones(4), 2.0, True) is None
    assert dome.captured_energy(FOLDS, [0, 0], torch.zeros(10), 0.0, True) is None


def test_captured_energy_is_unknown_without_probes() -> None:
    """Three learned directions of six and nothing that looks at the others."""
    assert dome.captured_energy(FOLDS[:1], [3], torch.ones(6), 0.0, True) is None


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("deviation", [0.0, 0.2])
def test_captured_energy_estimates_what_the_sketch_really_sees(
    deviation: float, isotropic: bool
) -> None:
    """Over 400 draws of probes and noise: the estimate's mean within five standard errors (false alarms 6e-7), plus
    0.01 for the bias of a ratio, of the mean true share."""
    generator = torch.Generator().manual_seed(6)
    folds, gradient = (Fold(0, 5, 40, 10),), torch.randn(200, generator=generator)
    known = probes(1, 4, torch.empty(40, 0))
    rows = gradient.view(5, 40)
    rows += 2 * rows @ known @ known.T  # more of it lies in the learned directions
    off = []
    for seed in range(400):
        seen = LayerwiseSketch(folds, [known], seed).forward(gradient)  # a projection
        sketch = LayerwiseSketch(folds, [known], seed, isotropic=isotropic)
        noisy = sketch.forward(gradient) + deviation * torch.randn(50, generator=generator)
        estimate = dome.captured_energy(folds, [4], noisy, deviation, isotropic)
        assert estimate is not None
        off.append(estimate - float(seen.square().sum() / gradient.square().sum()))
    errors = torch.tensor(off)
    assert abs(float(errors.mean())) < 5 * float(errors.std()) / 20 + 0.01
    assert float(errors.std()) < 0.15


def _with_noise(strategy: dome.Dome, gradient: torch.Tensor, rounds: int, seed: int) -> list[float]:
    """Rounds in which everybody's gradient is this one and the mean has noise 1 on each number: the ranks in use."""
    generator = torch.Generator().manual_seed(seed)
    ranks = []
    for round in range(1, rounds + 1):
        coordinator_of(strategy).arrived = 6
        sent = strategy.state.sketch(round).forward(gradient)
        noisy = sent + torch.randn(sent.shape, generator=generator)
        strategy.update(round, Aggregate(6 * noisy, 6, 6.0))
        ranks.append(strategy.metrics()["sketch_rank"] or 0.0)
    return ranks


@pytest.mark.parametrize("choice", ["layerwise", "flat"])
def test_of_pure_noise_no_direction_is_kept(make_strategy: MakeStrategy, choice: str) -> None:
    """At most 1e-3 a look by the floor's bound, far less in practice; the seed is fixed."""
    strategy = make_dome(
        make_strategy,
        *(*DOME, *LARGER, f"strategy.sketch={choice}", "strategy.sketch_dim=110"),
    )
    assert max(_with_noise(strategy, torch.zeros(610), 25, seed=1)) == 0


@pytest.mark.parametrize("choice", ["layerwise", "flat"])
def test_a_strong_direction_is_kept_and_almost_all_energy_seen(
    make_strategy: MakeStrategy, choice: str
) -> None:
    strategy = make_dome(
        make_strategy,
        *(*DOME, *LARGER, f"strategy.sketch={choice}", "strategy.sketch_dim=110"),
        "strategy.warm_up=3",
    )
    inputs = torch.randn(60, generator=torch.Generator().manual_seed(2))
    gradient = torch.cat([torch.outer(torch.ones(10), 10 * inputs).flatten(), torch.zeros(10)])
    ranks = _with_noise(strategy, gradient, 20, seed=3)
    assert ranks[:3] == [0, 0, 0]
    assert min(ranks[5:]) >= 1
    energy = strategy.metrics()["sketch_energy"]
    assert energy is not None
    assert energy > 0.95
