"""Orthonormal rows with the span of the given ones."""

import pytest
import torch

from fedsketch.sketching import cholesky_qr
from fedsketch.sketching.cholesky_qr import gram, orthonormalise


def rows(count: int = 5, d: int = 300) -> torch.Tensor:
    return torch.randn(count, d, generator=torch.Generator().manual_seed(0))


def test_rows_become_orthonormal_and_span_the_same() -> None:
    result = orthonormalise(rows())
    assert torch.allclose(result @ result.T, torch.eye(5), atol=1e-6)
    assert torch.allclose((rows() @ result.T) @ result, rows(), atol=1e-5)


def test_two_passes_mend_nearly_dependent_rows() -> None:
    close = rows()
    close[1] = close[0] + 1e-4 * close[1]
    result = orthonormalise(orthonormalise(close))
    assert torch.allclose(result @ result.T, torch.eye(5), atol=1e-6)


def test_blocks_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows().double() @ rows().double().T
    monkeypatch.setattr(cholesky_qr, "_BLOCK", 64)
    assert torch.allclose(gram(rows()), whole, atol=1e-10)
    assert torch.allclose(gram(rows()[:2], rows()), whole[:2], atol=1e-10)
    result = orthonormalise(rows())
    assert torch.allclose(result @ result.T, torch.eye(5), atol=1e-6)


def test_dependent_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="linearly independent"):
        orthonormalise(torch.cat([rows(), rows()[:1]]))


def test_no_rows_are_no_rows() -> None:
    assert orthonormalise(rows()[:0]).shape == (0, 300)
