"""Learned part and probe part side by side are one orthonormal sketch."""

import pytest
import torch

from sketching.concatenation import ConcatenatedSketch
from sketching.identity import IdentitySketch
from sketching.orthonormal import OrthonormalSketch
from sketching.probes import probes


def test_learned_and_probes_are_one_orthonormal_matrix() -> None:
    learned = probes(1, 4, torch.empty(60, 0))
    fresh = probes(2, 6, learned)
    both = ConcatenatedSketch(OrthonormalSketch(learned), OrthonormalSketch(fresh, seeded=True))
    dense = torch.cat([learned, fresh], dim=1)
    x, y = torch.randn(3, 60), torch.randn(3, 10)
    assert torch.allclose(dense.T @ dense, torch.eye(10), atol=1e-6)
    assert torch.allclose(both.forward(x), x @ dense, atol=1e-6)
    assert torch.allclose(both.adjoint(y), y @ dense.T, atol=1e-6)
    assert both.description_bytes == 4 * 60 * 4 + 16


def test_an_empty_learned_part_is_allowed() -> None:
    fresh = OrthonormalSketch(probes(2, 6, torch.empty(60, 0)))
    both = ConcatenatedSketch(OrthonormalSketch(torch.empty(60, 0)), fresh)
    x = torch.randn(60)
    assert torch.equal(both.forward(x), fresh.forward(x))


def test_parts_for_different_models_are_refused() -> None:
    with pytest.raises(ValueError, match="same d"):
        ConcatenatedSketch(IdentitySketch(5), IdentitySketch(6))
