"""Probes: orthonormal, orthogonal to what is known, the same from the same seed, and everywhere alike."""

import math

import pytest
import torch

from fedsketch.sketching.layerwise_sketch import probes


def test_probes_are_orthonormal_and_orthogonal_to_the_learned_directions() -> None:
    known = probes(1, 20, torch.empty(5000, 0))
    fresh = probes(2, 44, known)
    assert fresh.shape == (5000, 44)
    assert torch.allclose(fresh.T @ fresh, torch.eye(44), atol=1e-6)
    assert float((known.T @ fresh).abs().max()) < 1e-6


@pytest.mark.parametrize(("d", "rank"), [(1, 0), (40, 0), (40, 39), (1000, 500)])
def test_probes_can_fill_the_whole_space(d: int, rank: int) -> None:
    known = probes(1, rank, torch.empty(d, 0))
    both = torch.cat([known, probes(2, d - rank, known)], dim=1)
    assert torch.allclose(both @ both.T, torch.eye(d), atol=2e-6)


def test_the_seed_decides() -> None:
    empty = torch.empty(100, 0)
    assert torch.equal(probes(3, 5, empty), probes(3, 5, empty))
    assert not torch.allclose(probes(3, 5, empty), probes(4, 5, empty))


def test_directions_are_uniform_in_the_complement() -> None:
    """The mean of q q^T over 3000 seeds is I/5 outside U, at 4.5 standard errors of each of 36 entries: 2.5e-4 false
    alarms."""
    known = torch.eye(6, dtype=torch.float64)[:, :1]
    draws = torch.stack([probes(seed, 1, known)[:, 0] for seed in range(3000)])
    products = torch.einsum("ni,nj->nij", draws, draws)
    expected = torch.diag(torch.tensor([0.0, 0.2, 0.2, 0.2, 0.2, 0.2], dtype=torch.float64))
    allowed = 4.5 * products.std(dim=0) / math.sqrt(len(draws)) + 1e-9
    assert ((products.mean(dim=0) - expected).abs() <= allowed).all()


def test_more_probes_than_room_are_refused() -> None:
    with pytest.raises(ValueError, match="room for 0 to 6 probes"):
        probes(1, 7, torch.eye(10)[:, :4])
