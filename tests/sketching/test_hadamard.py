"""The randomised Hadamard sketch: the transform, isometry at full size, no bias, little memory."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy.linalg import hadamard

from fedsketch.sketching.hadamard import HadamardSketch, walsh_hadamard


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("bits", [0, 1, 5, 6, 7, 11])
def test_the_transform_is_that_of_the_matrix(bits: int) -> None:
    x = random(3, 1 << bits)
    matrix = torch.from_numpy(hadamard(1 << bits)).double()
    assert torch.allclose(walsh_hadamard(x), x @ matrix, atol=1e-10)


def test_a_large_transform_is_its_own_inverse() -> None:
    x = random(2, 1 << 18).float()
    assert torch.allclose(walsh_hadamard(walsh_hadamard(x)) / (1 << 18), x, atol=1e-5)


def test_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        walsh_hadamard(torch.zeros(1, 12))


def test_with_all_coordinates_nothing_is_lost() -> None:
    sketch, x = HadamardSketch(128, 100, 3), random(4, 100)
    assert torch.allclose(sketch.adjoint(sketch.forward(x)), x, atol=1e-12)
    assert torch.allclose(sketch.forward(x).norm(dim=1), x.norm(dim=1))


def test_desketching_is_unbiased() -> None:
    """The mean over 4000 seeds: 20 coordinates at 4.5 standard errors, 1.4e-4 false alarms."""
    x = random(20)
    draws = torch.stack(
        [(s := HadamardSketch(6, 20, seed)).adjoint(s.forward(x)) for seed in range(4000)]
    )
    errors = (draws.mean(dim=0) - x) / (draws.std(dim=0) / math.sqrt(len(draws)))
    assert float(errors.abs().max()) < 4.5
    assert float(draws.std(dim=0).min()) < 3.0


@pytest.mark.parametrize("k", [0, 129])
def test_more_coordinates_than_there_are_are_refused(k: int) -> None:
    with pytest.raises(ValueError, match="1 to 128"):
        HadamardSketch(k, 100, 3)


MEMORY = """
import resource
import torch
from fedsketch.sketching.hadamard import HadamardSketch

x = torch.ones(1_000_000)
HadamardSketch(4, 1000, 1).forward(x[:1000])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sketch = HadamardSketch(10_000, 1_000_000, 1)
sketch.adjoint(sketch.forward(x))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_million_parameters_need_little_memory(other_process: Callable[[str, int], str]) -> None:
    """The vector has 4 MB; the limit is 64 MB. Kilobytes are printed."""
    assert int(other_process(MEMORY, 1)) < 64 * 1024
