"""How many directions to keep."""

import pytest
import torch

from fedsketch.sketching.noise_floor import keep_above, keep_count, keep_energy

VALUES = torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
NONE = torch.empty(0, dtype=torch.float64)


def test_by_count() -> None:
    assert [keep_count(VALUES, count) for count in (0, 2, 9)] == [0, 2, 4]


@pytest.mark.parametrize(
    ("share", "kept"), [(0.0, 0), (0.3, 1), (0.4, 1), (0.41, 2), (0.7, 2), (0.95, 4), (1.0, 4)]
)
def test_by_energy_the_fewest_that_hold_the_share(share: float, kept: int) -> None:
    assert keep_energy(VALUES, share) == kept


def test_by_energy_of_nothing() -> None:
    assert keep_energy(NONE, 0.9) == 0
    assert keep_energy(torch.zeros(3), 0.9) == 0
    with pytest.raises(ValueError, match="between 0 and 1"):
        keep_energy(VALUES, 90.0)


def test_above_the_floor_strictly() -> None:
    assert [keep_above(VALUES, floor) for floor in (0.0, 1.0, 3.5, 4.0)] == [4, 3, 1, 0]
    assert keep_above(NONE, 0.0) == 0
