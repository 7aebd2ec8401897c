from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsketch.errors import UnsafeUpdateError
from fedsketch.privacy.mechanisms.clipping import clip, clip_rows

FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)


def _norm(vector: torch.Tensor) -> float:
    """As the norm of a row, which is what `clip` takes: another order of summation may give another last bit."""
    return float(torch.linalg.vector_norm(vector.reshape(1, -1), dim=1, dtype=torch.float64))


@settings(max_examples=300, deadline=None)
@given(values=st.lists(FLOATS, min_size=1, max_size=40), max_norm=st.floats(1e-6, 1e6))
@example(values=[1e30, -1e30], max_norm=1.0)
@example(values=[3e38] * 40, max_norm=1e-6)
@example(values=[0.0], max_norm=1.0)
def test_norm_never_exceeds_the_clip(values: list[float], max_norm: float) -> None:
    vector = torch.tensor(values, dtype=torch.float32)
    clipped = clip(vector, max_norm)
    assert _norm(clipped) <= max_norm
    if _norm(vector) <= max_norm:
        assert torch.equal(clipped, vector)
    else:
        assert _norm(clipped) >= max_norm * (1 - 1e-6)
        cosine = float(torch.dot(clipped.double() / max_norm, vector.double() / _norm(vector)))
        assert cosine == pytest.approx(1.0, abs=1e-5)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), max_norm=st.floats(1e-3, 1e3), scale=st.floats(1e-6, 1e30))
def test_rows_are_clipped_one_by_one(seed: int, max_norm: float, scale: float) -> None:
    matrix = torch.randn(7, 33, generator=torch.Generator().manual_seed(seed)) * scale
    matrix[3] = 0.0
    clipped = clip_rows(matrix, max_norm)
    for before, after in zip(matrix, clipped, strict=True):
        assert _norm(after) <= max_norm
        torch.testing.assert_close(after, clip(before, max_norm), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("other", [0.0, 1.0, 1e30, 3e38])
def test_a_row_does_not_show_in_the_others(other: float) -> None:
    matrix = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    alone = clip_rows(matrix, 0.5)
    matrix[2] = other
    assert torch.equal(clip_rows(matrix, 0.5)[[0, 1, 3, 4]], alone[[0, 1, 3, 4]])


@pytest.mark.parametrize("size", [10, 1_000_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_vectors_keep_the_bound(size: int, dtype: torch.dtype) -> None:
    vector = torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert _norm(clip(vector, 0.37)) <= 0.37
    assert clip(vector, 0.37).dtype == dtype


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_refused_with_a_sentence(bad: float) -> None:
    vector = torch.ones(100)
    vector[50] = bad
    with pytest.raises(UnsafeUpdateError, match="nothing was released"):
        clip(vector, 1.0)
    with pytest.raises(UnsafeUpdateError, match="nothing was released"):
        clip_rows(torch.stack([torch.ones(100), vector]), 1.0)


def test_float64_too_large_for_a_norm_is_refused() -> None:
    with pytest.raises(UnsafeUpdateError, match="too large"):
        clip(torch.tensor([1e200, 1e200], dtype=torch.float64), 1.0)


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan, math.inf, 1e-40])
def test_impossible_clips_are_refused(max_norm: float) -> None:
    with pytest.raises(ValueError, match="clip must be positive"):
        clip(torch.ones(3), max_norm)


def test_half_precision_is_refused() -> None:
    with pytest.raises(TypeError, match="convert"):
        clip(torch.ones(3, dtype=torch.float16), 1.0)


def test_shapes_are_kept_and_empty_is_fine() -> None:
    assert clip(torch.ones(2, 3, 4), 1.0).shape == (2, 3, 4)
    assert clip(torch.empty(0), 1.0).numel() == 0
    with pytest.raises(ValueError, match="matrix"):
        clip_rows(torch.ones(3), 1.0)
