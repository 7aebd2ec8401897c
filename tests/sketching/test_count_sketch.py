"""The count sketch: one signed bucket per coordinate, and no bias."""

import math

import pytest
import torch

from fedsketch.sketching.count_sketch import CountSketch


def test_every_coordinate_goes_to_one_bucket_with_a_sign() -> None:
    matrix = CountSketch(7, 300, 2).forward(torch.eye(300))
    assert torch.equal(matrix.abs().sum(dim=1), torch.ones(300))
    assert set(matrix.flatten().tolist()) == {-1.0, 0.0, 1.0}
    assert (matrix.abs().sum(dim=0) > 0).all()


def test_desketching_is_unbiased() -> None:
    """The mean over 4000 seeds: 20 coordinates at 4.5 standard errors, 1.4e-4 false alarms."""
    x = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = torch.stack(
        [(s := CountSketch(6, 20, seed)).adjoint(s.forward(x)) for seed in range(4000)]
    )
    errors = (draws.mean(dim=0) - x) / (draws.std(dim=0) / math.sqrt(len(draws)))
    assert float(errors.abs().max()) < 4.5
    # (|x|^2 - x_i^2) / k
    expected = (x.square().sum() - x.square()) / 6
    assert torch.allclose(draws.var(dim=0), expected, rtol=0.2)


def test_large_buckets_are_summed_in_double_precision() -> None:
    sketch = CountSketch(1, 1_000_000, 3)
    x = sketch.adjoint(torch.ones(1)) * 0.1
    assert float(sketch.forward(x)) == pytest.approx(1_000_000 * float(x.abs()[0]), rel=1e-7)


def test_no_buckets_are_refused() -> None:
    with pytest.raises(ValueError, match="buckets"):
        CountSketch(0, 10, 1)
