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


def test_two_passes_orthonormalise_nearly_dependent_rows() -> None:
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


@pytest.mark.parametrize("d", [40, 300, 30_000])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize(
    "weights", [[1.0, 0, 0, 0, 0], [0, 0, 1e-3, 0, 0], [1, -2, 3, -4, 5], [0, 0, 0, 0, 0]]
)
@pytest.mark.parametrize("place", [0, 3, 5])
def test_dependent_rows_are_refused(d: int, scale: float, weights: list[float], place: int) -> None:
    """Whether the factorisation itself notices is a matter of rounding: of these it does in about half."""
    given = scale * rows(d=d).double()
    made = torch.tensor([weights], dtype=torch.float64) @ given
    with pytest.raises(ValueError, match="linearly independent"):
        orthonormalise(torch.cat([given[:place], made, given[place:]]))


@pytest.mark.parametrize("d", [40, 300, 30_000])
def test_a_row_that_differs_by_a_hundred_thousandth_is_not_refused(d: int) -> None:
    """The energy of the difference is 1e-10 of the row's, and the tolerance is 1.3e-11 for 30,000 numbers."""
    given = rows(d=d).double()
    close = given[:1] + 1e-5 * torch.roll(given[:1], 1, dims=1)
    result = orthonormalise(orthonormalise(torch.cat([given, close])))
    assert torch.allclose(result @ result.T, torch.eye(6, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_refused(bad: float) -> None:
    given = rows()
    given[2, 7] = bad
    with pytest.raises(ValueError, match="linearly independent"):
        orthonormalise(given)


def test_no_rows_are_no_rows() -> None:
    assert orthonormalise(rows()[:0]).shape == (0, 300)
