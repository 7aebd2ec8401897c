"""The block sketch: runs of neighbours with signs, any size, no bias, and errors that differ from block to block."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsketch.sketching.blocks import BlockSketch, block_folds


@given(size=st.integers(1, 3000), share=st.floats(0.0, 1.0))
def test_blocks_cover_the_vector_and_stay_within_the_size(size: int, share: float) -> None:
    numbers = max(1, round(share * size))
    folds = block_folds(size, numbers)
    ends = [0, *(fold.stop for fold in folds)]
    assert [fold.start for fold in folds] == ends[:-1]
    assert ends[-1] == size
    sent = sum(fold.size for fold in folds)
    assert sent <= numbers
    # One number more in each block would not do with fewer: at least half of what is allowed is used.
    assert sent > numbers / 2


def test_every_number_goes_to_its_block_with_a_sign() -> None:
    matrix = BlockSketch(block_folds(10, 3), 5).forward(torch.eye(10))
    assert torch.equal(
        matrix.abs(), torch.tensor([[1.0, 0, 0]] * 4 + [[0, 1, 0]] * 4 + [[0, 0, 1]] * 2)
    )
    assert matrix.sum(dim=1).unique().tolist() == [-1.0, 1.0]


def test_desketching_is_unbiased_with_the_error_of_its_block() -> None:
    """The mean over 4000 seeds: 20 coordinates at 4.5 standard errors, 1.4e-4 false alarms."""
    x = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    folds = block_folds(20, 6)
    draws = torch.stack(
        [(s := BlockSketch(folds, seed)).adjoint(s.forward(x)) for seed in range(4000)]
    )
    errors = (draws.mean(dim=0) - x) / (draws.std(dim=0) / math.sqrt(len(draws)))
    assert float(errors.abs().max()) < 4.5
    blocks = x.view(5, 4)
    expected = (blocks.square().sum(dim=1, keepdim=True) - blocks.square()).flatten()
    # A variance of 4000 draws is off by 5 % at most, in 20 of them.
    torch.testing.assert_close(draws.var(dim=0), expected, rtol=0.2, atol=0.0)


def test_blocks_do_not_share_their_signs() -> None:
    """1000 blocks of 8 equal signs each way: of 256 patterns about 250 appear; if blocks shared signs it would be
    one."""
    signs = BlockSketch(block_folds(8000, 1000), 1).adjoint(torch.ones(1000)).view(1000, 8)
    assert len(signs.unique(dim=0)) > 200


def test_a_projection_keeps_what_it_has_made() -> None:
    sketch = BlockSketch(block_folds(30, 7), 2, isotropic=False)
    x = torch.randn(30, dtype=torch.float64)
    once = sketch.adjoint(sketch.forward(x))
    torch.testing.assert_close(sketch.adjoint(sketch.forward(once)), once)
    assert float(once.norm()) < float(x.norm())


@pytest.mark.parametrize("numbers", [0, 11])
def test_impossible_sizes_are_refused(numbers: int) -> None:
    with pytest.raises(ValueError, match="1 to 10"):
        block_folds(10, numbers)
