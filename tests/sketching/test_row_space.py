"""Principal directions of rows that come in parts are those of all rows together."""

import pytest
import torch

from fedsketch.sketching.row_space import PrincipalDirections


def _rows(count: int, columns: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    scales = torch.logspace(0, -2, columns, dtype=torch.float64)
    return scales * torch.randn(count, columns, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("count", [5, 12, 200])
@pytest.mark.parametrize("part", [1, 7, 200])
def test_parts_give_what_the_whole_gives(count: int, part: int) -> None:
    rows, found = _rows(count), PrincipalDirections(12)
    for piece in rows.split(part):
        found.feed(piece)
    directions, values = found.top(4)
    _, expected, transposed = torch.linalg.svd(rows, full_matrices=False)
    torch.testing.assert_close(values, expected[:4], rtol=1e-9, atol=0)
    # Up to sign, which is nobody's to choose.
    torch.testing.assert_close(
        (transposed[:4] @ directions).abs(), torch.eye(4).double(), rtol=0, atol=1e-7
    )


def test_directions_that_rounding_alone_would_give_are_left_out() -> None:
    plane = _rows(2)
    found = PrincipalDirections(12)
    found.feed((torch.randn(50, 2, generator=torch.manual_seed(0)).double() @ plane).float())
    directions, values = found.top(6)
    assert directions.shape == (12, 2)
    assert len(values) == 2


def test_of_nothing_and_of_zeros_there_are_no_directions() -> None:
    found = PrincipalDirections(12)
    assert found.top(3)[0].shape == (12, 0)
    found.feed(torch.zeros(5, 12))
    assert found.top(3)[0].shape == (12, 0)


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="Rows of 12 numbers"):
        PrincipalDirections(12).feed(torch.zeros(3, 11))
