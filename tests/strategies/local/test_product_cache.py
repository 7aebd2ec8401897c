"""Products are kept by what they were made of, and only so many bytes of them."""

import torch

from fedsketch.strategies.local.product_cache import ProductCache


def _inputs(seed: int) -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))


def test_a_product_is_made_once_for_a_key() -> None:
    kept, basis = ProductCache(), torch.eye(4)[:, :2]
    first = kept.product(_inputs(1), basis, "a")
    assert torch.equal(first, _inputs(1)[:, :2])
    assert kept.product(_inputs(1), basis, "a") is first
    assert kept.product(_inputs(2), basis, "b") is not first
    assert len(kept) == 2


def test_those_that_were_asked_for_last_stay() -> None:
    basis = torch.eye(4)[:, :2]
    kept = ProductCache(room=2 * 5 * 2 * 4)  # two products
    first = kept.product(_inputs(1), basis, 1)
    second = kept.product(_inputs(2), basis, 2)
    assert kept.product(_inputs(1), basis, 1) is first
    kept.product(_inputs(3), basis, 3)
    assert len(kept) == 2
    assert kept.product(_inputs(1), basis, 1) is first
    assert kept.product(_inputs(2), basis, 2) is not second


def test_one_that_is_too_large_is_not_kept() -> None:
    kept = ProductCache(room=10)
    made = kept.product(_inputs(1), torch.eye(4), 1)
    assert torch.equal(made, _inputs(1))
    assert len(kept) == 0
