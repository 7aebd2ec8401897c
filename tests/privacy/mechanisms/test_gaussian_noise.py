"""The last step on a device, on its own: bounded per unit, then noised, and nothing in between."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from fedsketch.errors import UnsafeUpdateError
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.gaussian import GaussianNoise
from fedsketch.privacy.mechanisms.randomness import Stream

SILENT = GaussianNoise(unit=Unit.EXAMPLE, rows=8, local_multiplier=0.0, clip=0.5)


def _release(rows: torch.Tensor, mechanism: GaussianNoise = SILENT) -> npt.NDArray[np.generic]:
    with Stream() as stream:
        return mechanism.protect(rows, stream, 1).vector


def _rows(count: int, size: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(count, size, generator=torch.Generator().manual_seed(1))


def test_each_unit_is_clipped_on_its_own() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.1], [-30.0, 0.0]])
    np.testing.assert_allclose(_release(rows), [0.3 + 0.0 - 0.5, 0.4 + 0.1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e30])
def test_one_unit_moves_the_sum_by_at_most_the_clip(scale: float) -> None:
    rows = _rows(8, 50, scale)
    without = rows.clone()
    without[3] = 0.0
    difference = _release(rows) - _release(without)
    assert np.linalg.norm(difference) <= 0.5 * (1 + 1e-5)


def test_a_row_that_fits_is_not_scaled() -> None:
    rows = 0.01 * _rows(1, 50)
    np.testing.assert_array_equal(_release(rows), rows[0].numpy())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_number_in_one_row_refuses_all(bad: float) -> None:
    rows = _rows(4, 5)
    rows[2, 3] = bad
    with pytest.raises(UnsafeUpdateError, match="nan or inf"):
        _release(rows)


def test_noise_is_added_after_the_clip() -> None:
    """The result of a huge update is far longer than the clip: noise is not clipped away."""
    noisy = GaussianNoise(local_multiplier=10.0, clip=0.5)
    vector = _release(_rows(1, 400, 1e30), noisy)
    assert np.linalg.norm(vector) == pytest.approx(5.0 * 20, rel=0.25)  # 5 sqrt(400), 7 sigma


def test_more_rows_than_the_mechanism_is_for_are_refused() -> None:
    """A client's bound is that of all its rows together."""
    with pytest.raises(UnsafeUpdateError, match="at most 8 rows"):
        _release(_rows(9, 5))


def test_noise_drawn_at_once_for_many_has_the_law_of_their_sum() -> None:
    """Fails by chance once in a million times."""
    noisy = GaussianNoise(local_multiplier=0.7, clip=2.0)
    rows = 0.01 * _rows(3, 20_000)
    with Stream() as stream:
        sent = noisy.protect_sum(rows, [1] * 3, stream, 1).vector
    noise = sent - rows.double().sum(dim=0).numpy()
    energy = float(np.square(noise).sum()) / (3 * 1.4**2)
    assert stats.chi2.isf(1 - 5e-7, 20_000) < energy < stats.chi2.isf(5e-7, 20_000)
    with pytest.raises(UnsafeUpdateError, match="at most 1 rows"):
        noisy.protect_sum(rows, [1] * 2, stream, 1)
