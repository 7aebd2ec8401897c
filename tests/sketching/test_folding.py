"""Which tensors become matrices, and how many numbers they are sent as."""

import pytest
import torch

from fedsketch.sketching.folding import Fold, folds_of_rank, folds_of_size

# A convolution, its bias, a small matrix, a large one.
SHAPES = [(16, 8, 5, 5), (16,), (10, 20), (30, 400)]


def layout(shapes: list[tuple[int, ...]]) -> list[tuple[tuple[int, ...], int, int]]:
    slots, end = [], 0
    for shape in shapes:
        size = torch.Size(shape).numel()
        slots.append((shape, end, end + size))
        end += size
    return slots


def test_convolutions_fold_to_rows_of_inputs_and_small_tensors_stay_whole() -> None:
    folds = folds_of_rank(layout(SHAPES), 12)
    assert folds == (
        Fold(0, 16, 200, 12),
        Fold(3200, 1, 16, 16),
        Fold(3216, 10, 20, 20),
        Fold(3416, 30, 400, 12),
    )
    assert [fold.whole for fold in folds] == [False, True, True, False]
    assert [fold.size for fold in folds] == [192, 16, 200, 360]
    assert [fold.stop for fold in folds] == [3200, 3216, 3416, 15_416]


def test_small_matrices_are_sketched_if_asked_and_narrow_ones_never() -> None:
    assert folds_of_rank(layout(SHAPES), 12, whole_up_to=0)[2] == Fold(3216, 10, 20, 12)
    assert folds_of_rank(layout([(1000, 12)]), 12)[0].whole
    assert folds_of_rank(layout([()]), 12)[0] == Fold(0, 1, 1, 1)


def test_a_fold_is_a_view_with_the_rows_of_the_tensor() -> None:
    vector = torch.arange(15_416.0)
    fold = folds_of_rank(layout(SHAPES), 12)[0]
    assert torch.equal(fold.matrix(vector), vector[:3200].view(16, 8, 5, 5).flatten(1))
    fold.matrix(vector)[0, 0] = -1.0
    assert float(vector[0]) == -1.0


@pytest.mark.parametrize("size", [262, 1000, 5000, 100_000])
def test_a_target_size_is_met_by_the_largest_rank(size: int) -> None:
    folds = folds_of_size(layout(SHAPES), size)
    assert sum(fold.size for fold in folds) <= size
    sketched = [fold.rank for fold in folds if not fold.whole]
    if sketched:
        more = folds_of_rank(layout(SHAPES), max(sketched) + 1)
        assert sum(fold.size for fold in more) > size
    else:
        assert size == 100_000


def test_impossible_sizes_and_broken_layouts_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 262 numbers"):
        folds_of_size(layout(SHAPES), 261)
    with pytest.raises(ValueError, match="at least 1"):
        folds_of_rank(layout(SHAPES), 0)
    with pytest.raises(ValueError, match="without gaps"):
        folds_of_rank([((3, 4), 1, 13)], 2)
    with pytest.raises(ValueError, match="without gaps"):
        folds_of_rank([((3, 4), 0, 13)], 2)
