"""The Gaussian sketch: the matrix it stands for, its mean, and its memory."""

import math
from collections.abc import Callable

import pytest
import torch

from fedsketch.sketching import gaussian
from fedsketch.sketching.gaussian import GaussianSketch


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("b", "d"), [(1, 1), (30, 17), (700, 1000), (5, 40_000), (40, 16_385)])
def test_products_are_those_with_the_blocks_of_r(b: int, d: int) -> None:
    sketch = GaussianSketch(b, d, 5)
    matrix = sketch.block(slice(0, b)).double()
    x, y = random(2, d).double(), random(2, b).double()
    assert torch.allclose(sketch.forward(x), x @ matrix.T, atol=1e-6 * math.sqrt(d))
    assert torch.allclose(sketch.adjoint(y), y @ matrix, atol=1e-6 * math.sqrt(b))
    assert torch.allclose(sketch.row_norms_squared(), matrix.square().sum(dim=0), rtol=1e-5)


def test_entries_have_variance_one_over_b() -> None:
    """Five standard errors: a false alarm in 2e-6 of all seeds, twice."""
    entries = GaussianSketch(50, 20_000, 5).block(slice(0, 50)).double()
    assert abs(float(entries.mean())) < 5 * math.sqrt(0.02 / entries.numel())
    assert abs(50 * float(entries.square().mean()) - 1) < 5 * math.sqrt(2 / entries.numel())


def test_no_two_tiles_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian, "_TILE", 16)
    monkeypatch.setattr(gaussian, "_TILE_COLUMNS", 4)
    entries = GaussianSketch(12, 12, 5).block(slice(0, 12)).flatten()
    # Two of 144 table sums are equal with probability 1e-3 or so; the seed is fixed.
    assert len(set(entries.tolist())) == 144


def test_a_block_is_a_part_of_the_whole() -> None:
    sketch = GaussianSketch(50, 20_000, 5)
    whole = sketch.block(slice(0, 50))
    assert torch.equal(sketch.block(slice(11, 38)), whole[11:38])
    assert sketch.block(slice(7, 7)).shape == (0, 20_000)


def test_desketching_is_unbiased() -> None:
    """The mean of R^T R x over 4000 seeds: 16 coordinates at 4.5 standard errors, 1e-4 false alarms."""
    x = random(16).double()
    draws = torch.stack(
        [(s := GaussianSketch(4, 16, seed)).adjoint(s.forward(x)) for seed in range(4000)]
    )
    errors = (draws.mean(dim=0) - x) / (draws.std(dim=0) / math.sqrt(len(draws)))
    assert float(errors.abs().max()) < 4.5
    # The variance is that of the theory, (|x|^2 + x_i^2) / b: the test above can see a bias.
    expected = (x.square().sum() + x.square()) / 4
    assert torch.allclose(draws.var(dim=0), expected, rtol=0.2)


def test_threads_change_no_bit_of_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian, "_TILE", 1 << 12)
    monkeypatch.setattr(gaussian, "_TILE_COLUMNS", 1 << 8)
    x, y = random(3, 5000), random(3, 60)
    alone, together = (GaussianSketch(60, 5000, 1, threads=threads) for threads in (1, 4))
    assert torch.equal(alone.forward(x), together.forward(x))
    assert torch.equal(alone.adjoint(y), together.adjoint(y))


MEMORY = """
import resource
import torch
from fedsketch.sketching.gaussian import GaussianSketch

x = torch.ones(1_000_000)
GaussianSketch(4, 1000, 1).forward(x[:1000])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sketch = GaussianSketch(64, 1_000_000, 1)
sketch.adjoint(sketch.forward(x))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_million_parameters_need_little_memory(other_process: Callable[[str, int], str]) -> None:
    """R would be 256 MB here; the limit of 64 MB does not grow with b. Kilobytes are printed."""
    assert int(other_process(MEMORY, 2)) < 64 * 1024
