"""Rows as factors: the same norms, sums and splits as the rows themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsketch.errors import UnsafeUpdateError
from fedsketch.privacy.mechanisms.rows import Factors, Rows


def _rows(n: int = 9) -> Rows:
    rng = np.random.default_rng(n)
    left, right = (rng.normal(size=(n, k)).astype(np.float32) for k in (3, 5))
    return Rows((Factors(left, right), Factors(rng.normal(size=(n, 2)).astype(np.float32))))


def test_factors_stand_for_their_outer_products() -> None:
    rows = _rows()
    weight, bias = rows.pieces
    assert weight.right is not None
    dense = rows.dense()
    assert (len(rows), rows.width) == dense.shape == (9, 17)
    outer = [np.outer(b, a).ravel() for b, a in zip(weight.left, weight.right, strict=True)]
    np.testing.assert_allclose(dense[:, :15], outer, rtol=1e-6)
    np.testing.assert_array_equal(dense[:, 15:], bias.left)
    np.testing.assert_allclose(rows.norms(), np.linalg.norm(dense, axis=1), rtol=1e-14)


@pytest.mark.parametrize("clip", [0.5, 3.0, 1e9])
def test_the_clipped_sum_of_factors_is_that_of_the_rows(clip: float) -> None:
    rows = _rows()
    plain = Rows.of(torch.from_numpy(rows.dense()))
    np.testing.assert_allclose(rows.clipped_sum(clip), plain.clipped_sum(clip), rtol=1e-12)
    norms = rows.norms()[:, None]
    expected = (rows.dense() * np.minimum(1.0, clip / norms)).sum(axis=0)
    np.testing.assert_allclose(rows.clipped_sum(clip), expected, rtol=1e-12, atol=1e-14)


def test_blocks_and_parts_hold_all_rows_in_order() -> None:
    rows = _rows()
    for parts in (list(rows.blocks(30)), list(rows.split([4, 0, 5]))):
        assert len(parts) > 1
        np.testing.assert_array_equal(np.concatenate([p.dense() for p in parts]), rows.dense())
    assert [len(part) for part in rows.blocks(30)] == [3, 3, 3]
    assert len(next(rows.split([0]))) == 0
    np.testing.assert_array_equal(next(rows.split([0])).clipped_sum(1.0), np.zeros(17))


def test_a_row_that_is_not_finite_says_nothing_and_spoils_no_other() -> None:
    rows = _rows()
    spoiled = rows.pieces[0].left.copy()
    spoiled[2, 1], spoiled[5, 0] = np.nan, np.inf
    broken = Rows((Factors(spoiled, rows.pieces[0].right), rows.pieces[1]))
    with pytest.raises(UnsafeUpdateError, match="nan or inf"):
        broken.clipped_sum(1.0)
    kept = broken.finite().dense()
    expected = rows.dense()
    expected[[2, 5]] = 0.0
    np.testing.assert_array_equal(kept, expected)
    assert rows.finite() is rows


def test_pieces_of_different_units_are_refused() -> None:
    with pytest.raises(UnsafeUpdateError, match="same units"):
        Rows((Factors(np.ones((3, 2))), Factors(np.ones((4, 2)))))
