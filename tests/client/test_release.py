"""The last step on a device, on its own: bounded per unit, then noised, and nothing in between."""

import numpy as np
import pytest
import torch

from fedsketch.client.release import SEED_VARIABLE, device_stream, release
from fedsketch.privacy.mechanisms.clipping import UnsafeUpdateError
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.strategies.shared.terms import GaussianTerms

SILENT = GaussianTerms(clip=0.5, noise_multiplier=0.0)


def _rows(count: int, size: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(count, size, generator=torch.Generator().manual_seed(1))


def test_each_unit_is_clipped_on_its_own() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.1], [-30.0, 0.0]])
    np.testing.assert_allclose(
        release(rows, SILENT, Stream(), 1), [0.3 + 0.0 - 0.5, 0.4 + 0.1], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e30])
def test_one_unit_moves_the_sum_by_at_most_the_clip(scale: float) -> None:
    rows = _rows(8, 50, scale)
    without = rows.clone()
    without[3] = 0.0
    difference = release(rows, SILENT, Stream(), 1) - release(without, SILENT, Stream(), 1)
    assert np.linalg.norm(difference) <= 0.5 * (1 + 1e-5)


def test_a_row_that_fits_is_not_scaled() -> None:
    rows = 0.01 * _rows(1, 50)
    np.testing.assert_array_equal(release(rows, SILENT, Stream(), 1), rows[0].numpy())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_one_bad_number_in_one_row_refuses_all(bad: float) -> None:
    rows = _rows(4, 5)
    rows[2, 3] = bad
    with pytest.raises(UnsafeUpdateError, match="nan or inf"):
        release(rows, SILENT, Stream(), 1)


def test_noise_is_added_after_the_clip() -> None:
    """The result of a huge update is far longer than the clip: noise is not clipped away."""
    terms = GaussianTerms(clip=0.5, noise_multiplier=10.0)
    vector = release(_rows(1, 400, 1e30), terms, Stream(), 1)
    assert np.linalg.norm(vector) == pytest.approx(5.0 * 20, rel=0.25)  # 5 sqrt(400), 7 sigma


def test_a_devices_stream_is_secret_unless_its_process_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    assert device_stream(1, 1).bytes(16) != device_stream(1, 1).bytes(16)
    monkeypatch.setenv(SEED_VARIABLE, "7")
    assert device_stream(1, 1).bytes(16) == device_stream(1, 1).bytes(16)
    streams = {device_stream(client, round).bytes(16) for client in (1, 2) for round in (1, 2)}
    assert len(streams) == 4
    monkeypatch.setenv(SEED_VARIABLE, "8")
    assert device_stream(1, 1).bytes(16) not in streams
