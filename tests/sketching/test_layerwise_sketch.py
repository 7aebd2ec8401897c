"""The layer-wise sketch is blockdiag(I kron P_l), and its bases are completed by probes."""

import pytest
import torch

from fedsketch.sketching.folding import Fold
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch, probes

# 4 x 9 sketched to 3 a row, a vector of 5, 2 x 9 sketched to 3 a row, 3 x 8 to 2.
FOLDS = (Fold(0, 4, 9, 3), Fold(36, 1, 5, 5), Fold(41, 2, 9, 3), Fold(59, 3, 8, 2))


def sketch(seed: int = 7) -> LayerwiseSketch:
    return LayerwiseSketch(FOLDS, [None] * 4, seed)


def test_it_equals_the_dense_block_matrix() -> None:
    layers = sketch()
    blocks = [
        torch.eye(fold.size) if basis is None else torch.kron(torch.eye(fold.rows), basis)
        for fold, basis in zip(FOLDS, layers.bases, strict=True)
    ]
    dense = torch.zeros(83, 29)
    row, column = 0, 0
    for block in blocks:
        dense[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    x, y = torch.randn(6, 83), torch.randn(6, 29)
    assert layers.shape == (29, 83) == tuple(reversed(dense.shape))
    assert torch.allclose(layers.forward(x), x @ dense, atol=1e-6)
    assert torch.allclose(layers.adjoint(y), y @ dense.T, atol=1e-6)
    assert torch.allclose(layers.row_norms_squared().float(), dense.square().sum(dim=1), atol=1e-6)
    assert torch.allclose(dense.T @ dense, torch.eye(29), atol=1e-6)


def test_the_sketch_of_factors_is_that_of_their_outer_products() -> None:
    layers, generator = sketch(), torch.Generator().manual_seed(2)
    pieces: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    for fold, outer in zip(FOLDS, (True, False, False, True), strict=True):
        sizes = (fold.rows, fold.columns) if outer else (fold.rows * fold.columns, 0)
        left, right = (torch.randn(6, size, generator=generator) for size in sizes)
        pieces.append((left, right if outer else None))
    asked = []

    def product(inputs: torch.Tensor, index: int, basis: torch.Tensor) -> torch.Tensor:
        asked.append(index)
        return inputs @ basis

    expected = layers.forward(_dense(pieces))
    for made in (layers.of_factors(pieces), layers.of_factors(pieces, product)):
        assert torch.allclose(_dense(made), expected, atol=1e-5)
    assert asked == [0, 3]
    with pytest.raises(ValueError, match="4 folds"):
        layers.of_factors(pieces[:3])


def _dense(pieces: list[tuple[torch.Tensor, torch.Tensor | None]]) -> torch.Tensor:
    return torch.cat(
        [b if a is None else (b[:, :, None] * a[:, None, :]).flatten(1) for b, a in pieces], dim=1
    )


def test_whole_tensors_pass_unchanged() -> None:
    x = torch.randn(83)
    assert torch.equal(sketch().forward(x)[12:17], x[36:41])


def test_learned_columns_come_first_and_probes_complete_them() -> None:
    learned = probes(1, 2, torch.empty(9, 0))
    first = LayerwiseSketch(FOLDS, [learned, None, None, None], 7).bases[0]
    assert first is not None
    assert torch.equal(first[:, :2], learned)
    assert torch.allclose(first.T @ first, torch.eye(3), atol=1e-6)


def test_isotropic_probes_make_the_estimate_unbiased() -> None:
    """Over 1,000 seeds the mean of S S^T is I: entries within six standard errors (about 0.08 each; 81 x 81 entries of
    blocks, false alarms below 1e-4), where a projection's would be (r / i) I."""
    learned = probes(1, 1, torch.empty(9, 0))
    total = torch.zeros(83, 83)
    for seed in range(1000):
        made = LayerwiseSketch(FOLDS, [learned, None, None, None], seed, isotropic=True)
        dense = made.adjoint(torch.eye(29))
        total += dense.T @ dense
    assert torch.allclose(total / 1000, torch.eye(83), atol=0.5)
    assert float((total / 1000).diagonal().mean()) == pytest.approx(1.0, abs=0.04)
    first = made.bases[0]
    assert first is not None
    lengths = first.norm(dim=0)
    assert lengths.tolist() == pytest.approx([1.0, 2.0, 2.0], abs=1e-5)  # sqrt((9 - 1) / 2)


def test_isotropic_changes_nothing_where_everything_is_sensed() -> None:
    folds = (Fold(0, 4, 9, 9), Fold(36, 2, 5, 3))
    learned = [None, probes(1, 3, torch.empty(5, 0))]
    plain, scaled = (LayerwiseSketch(folds, learned, 7, isotropic=x) for x in (False, True))
    assert plain.fingerprint() == scaled.fingerprint()


def test_a_layer_may_be_learned_in_full() -> None:
    bases = sketch().bases
    again = LayerwiseSketch(FOLDS, bases, 8)
    assert again.fingerprint() == sketch().fingerprint()
    assert again.description_bytes == 4 * (27 + 27 + 16)


def test_layers_of_one_shape_get_different_probes() -> None:
    first, _, third, _ = sketch().bases
    assert first is not None
    assert third is not None
    assert float((first - third).abs().max()) > 0.01


def test_the_learned_part_and_a_seed_are_all_it_costs() -> None:
    assert sketch().description_bytes == 16
    learned = [probes(1, 2, torch.empty(9, 0)), None, None, None]
    assert LayerwiseSketch(FOLDS, learned, 7).description_bytes == 4 * 18 + 16


@pytest.mark.parametrize(("index", "shape"), [(0, (9, 4)), (0, (8, 2)), (1, (5, 1)), (3, (9, 1))])
def test_learned_directions_that_do_not_fit_are_refused(index: int, shape: tuple[int, int]) -> None:
    learned: list[torch.Tensor | None] = [None] * 4
    learned[index] = torch.eye(*shape)
    with pytest.raises(ValueError, match="keep fewer"):
        LayerwiseSketch(FOLDS, learned, 7)
