"""The layer-wise sketch is blockdiag(I kron P_l), and its bases are completed by probes."""

import pytest
import torch

from sketching.folding import Fold
from sketching.layerwise import LayerwiseSketch, completed_bases
from sketching.probes import probes

# 4 x 9 sketched to 3 a row, a vector of 5, 2 x 9 sketched to 3 a row, 3 x 8 to 2.
FOLDS = (Fold(0, 4, 9, 3), Fold(36, 1, 5, 5), Fold(41, 2, 9, 3), Fold(59, 3, 8, 2))


def sketch(seed: int = 7) -> LayerwiseSketch:
    return LayerwiseSketch(FOLDS, completed_bases(FOLDS, [None] * 4, seed))


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


def test_whole_tensors_pass_unchanged() -> None:
    x = torch.randn(83)
    assert torch.equal(sketch().forward(x)[12:17], x[36:41])


def test_learned_columns_come_first_and_probes_complete_them() -> None:
    learned = probes(1, 2, torch.empty(9, 0))
    bases = completed_bases(FOLDS, [learned, None, None, None], 7)
    first = bases[0]
    assert first is not None
    assert torch.equal(first[:, :2], learned)
    assert torch.allclose(first.T @ first, torch.eye(3), atol=1e-6)
    full = probes(1, 3, torch.empty(9, 0))
    assert torch.equal(_at(completed_bases(FOLDS, [full, None, None, None], 7), 0), full)


def _at(bases: list[torch.Tensor | None], index: int) -> torch.Tensor:
    basis = bases[index]
    assert basis is not None
    return basis


def test_layers_of_one_shape_get_different_probes() -> None:
    bases = completed_bases(FOLDS, [None] * 4, 7)
    assert float((_at(bases, 0) - _at(bases, 2)).abs().max()) > 0.01


def test_a_seed_is_all_that_random_bases_cost() -> None:
    layers = LayerwiseSketch(FOLDS, completed_bases(FOLDS, [None] * 4, 7), seeded=True)
    assert layers.description_bytes == 16
    assert sketch().description_bytes == 4 * (27 + 27 + 16)


def test_bases_of_the_wrong_shape_are_refused() -> None:
    bases = completed_bases(FOLDS, [None] * 4, 7)
    with pytest.raises(ValueError, match=r"needs a basis of shape \(9, 3\)"):
        LayerwiseSketch(FOLDS, [bases[3], *bases[1:]])
    with pytest.raises(ValueError, match="needs a basis of shape None"):
        LayerwiseSketch(FOLDS, [bases[0], bases[0], *bases[2:]])
    with pytest.raises(ValueError, match="keep fewer"):
        completed_bases(FOLDS, [torch.eye(9)[:, :4], None, None, None], 7)
