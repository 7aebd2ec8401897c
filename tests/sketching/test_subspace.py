"""Projections onto a few directions of every part of a vector."""

import pytest
import torch

from fedsketch.sketching.subspace import Block, SubspaceSketch, blocks_of, principal_directions

BLOCKS = blocks_of([(0, 40), (40, 46), (46, 146)], 8)


def _sketch(rank: int = 30, *, rounded: bool = False) -> SubspaceSketch:
    rows = torch.randn(rank, 146, generator=torch.Generator().manual_seed(1))
    bases: list[torch.Tensor | None] = []
    for block in BLOCKS:
        part = rows[:, block.start : block.stop]
        found = principal_directions(part, block.size, 2)[0]
        bases.append(None if block.whole else found.half() if rounded else found.float())
    return SubspaceSketch.restored(BLOCKS, bases) if rounded else SubspaceSketch(BLOCKS, bases)


def _matrix(sketch: SubspaceSketch) -> torch.Tensor:
    return sketch.adjoint(torch.eye(sketch.shape[0], dtype=torch.float64)).T


def test_parts_keep_as_many_numbers_as_they_have_directions() -> None:
    assert (Block(0, 40, 8), Block(40, 46, 6), Block(46, 146, 8)) == BLOCKS
    assert _sketch().shape == (22, 146)


@pytest.mark.parametrize("rank", [3, 30])
@pytest.mark.parametrize("rounded", [False, True])
def test_columns_are_orthonormal(rank: int, rounded: bool) -> None:
    """Also where the vectors have a smaller rank than asked for, and after float16. Float32 entries: rounding of 1e-7
    each."""
    matrix = _matrix(_sketch(rank, rounded=rounded))
    torch.testing.assert_close(
        matrix.T @ matrix, torch.eye(22, dtype=torch.float64), atol=2e-6, rtol=0
    )


def test_adjoint_is_the_adjoint_and_what_it_makes_stays_in_the_subspace() -> None:
    sketch, generator = _sketch(), torch.Generator().manual_seed(3)
    x = torch.randn(146, dtype=torch.float64, generator=generator)
    y = torch.randn(22, dtype=torch.float64, generator=generator)
    assert float(sketch.forward(x) @ y) == pytest.approx(float(x @ sketch.adjoint(y)), abs=1e-9)
    torch.testing.assert_close(sketch.forward(sketch.adjoint(y)), y, atol=1e-5, rtol=0)


def test_a_part_with_few_numbers_is_kept_as_it_is() -> None:
    x = torch.randn(146)
    assert torch.equal(_sketch().forward(x)[8:14], x[40:46])


def test_rounding_on_the_way_turns_the_subspace_little() -> None:
    exact, restored = _matrix(_sketch()), _matrix(_sketch(rounded=True))
    # Float16 keeps 11 bits.
    torch.testing.assert_close(exact, restored, atol=2e-3, rtol=0)


def test_directions_are_the_strongest_ones_in_order() -> None:
    generator = torch.Generator().manual_seed(4)
    axes = torch.linalg.qr(torch.randn(50, 3, dtype=torch.float64, generator=generator))[0].T
    weights = torch.randn(20, 3, dtype=torch.float64, generator=generator)
    rows = weights @ torch.diag(torch.tensor([1.0, 100.0, 10.0]).double()) @ axes
    directions, found = principal_directions(rows, 3, 0)
    assert found == 3
    overlap = (directions @ axes.T).abs()
    assert overlap.argmax(dim=1).tolist() == [1, 2, 0]


def test_what_vectors_do_not_span_is_filled_up_alike_from_the_seed() -> None:
    rows = torch.randn(2, 30, generator=torch.Generator().manual_seed(5))
    rows = torch.cat([rows, rows])
    directions, found = principal_directions(rows, 6, 7)
    assert found == 2
    assert torch.equal(directions, principal_directions(rows, 6, 7)[0])
    # The two that they do span are among the first: nothing of the rows is lost.
    kept = directions[:2].T @ (directions[:2] @ rows.double().T)
    torch.testing.assert_close(kept, rows.double().T, atol=1e-9, rtol=0)
    assert principal_directions(torch.zeros(4, 30), 6, 7)[1] == 0


def test_directions_that_are_not_finite_or_depend_on_each_other_are_refused() -> None:
    bases = [basis if basis is None else basis.clone() for basis in _sketch().bases]
    assert bases[0] is not None
    bases[0][1] = bases[0][0]
    with pytest.raises(ValueError, match="not linearly independent"):
        SubspaceSketch.restored(BLOCKS, bases)
    bases[0][1] = float("nan")
    with pytest.raises(ValueError, match="not linearly independent"):
        SubspaceSketch.restored(BLOCKS, bases)


def test_directions_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        SubspaceSketch(BLOCKS, [torch.zeros(8, 39), None, torch.zeros(8, 100)])


def test_row_norms_say_what_the_adjoint_does_to_noise() -> None:
    sketch = _sketch()
    torch.testing.assert_close(
        sketch.row_norms_squared(), _matrix(sketch).square().sum(dim=1), atol=1e-9, rtol=0
    )
