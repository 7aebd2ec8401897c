"""What holds for every sketch: linear, adjoint to its inverse direction, rows like single vectors, row norms as of the
matrix."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsketch.sketching import sketch as sketch_module
from fedsketch.sketching.blocks import BlockSketch, block_folds
from fedsketch.sketching.count_sketch import CountSketch
from fedsketch.sketching.folding import folds_of_rank
from fedsketch.sketching.gaussian import GaussianSketch
from fedsketch.sketching.hadamard import HadamardSketch
from fedsketch.sketching.identity import IdentitySketch
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch, probes
from fedsketch.sketching.sketch import Sketch


def layerwise(k: int, d: int, seed: int) -> LayerwiseSketch:
    # Two matrices and a vector; k plays the part of the rank.
    layout = [((3, d), 0, 3 * d), ((5,), 3 * d, 3 * d + 5), ((2, d), 3 * d + 5, 5 * d + 5)]
    folds = folds_of_rank(layout, k, whole_up_to=2)
    first = None if folds[0].whole else probes(seed, 1, torch.empty(d, 0))
    return LayerwiseSketch(folds, [first, None, None], seed)


KINDS: dict[str, Callable[[int, int, int], Sketch]] = {
    "identity": lambda k, d, seed: IdentitySketch(d),
    "gaussian": GaussianSketch,
    "hadamard": HadamardSketch,
    "count": CountSketch,
    "layerwise": layerwise,
    "blocks": lambda k, d, seed: BlockSketch(block_folds(d, k), seed),
    "blocks, projection": lambda k, d, seed: BlockSketch(block_folds(d, k), seed, isotropic=False),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dense(sketch: Sketch) -> torch.Tensor:
    """S, d x k, float64."""
    return sketch.forward(torch.eye(sketch.shape[1], dtype=torch.float64))


@kinds
@settings(max_examples=20, deadline=None)
@given(d=st.integers(2, 90), share=st.floats(0.0, 1.0), n=st.integers(1, 4))
def test_forward_and_adjoint_are_adjoint(kind: str, d: int, share: float, n: int) -> None:
    sketch = KINDS[kind](max(1, round(share * d)), d, d + n)
    k, size = sketch.shape
    x, y = random(n, size, seed=1), random(n, k, seed=2)
    left = (sketch.forward(x).double() * y).sum(dim=1)
    right = (x * sketch.adjoint(y).double()).sum(dim=1)
    scale = sketch.forward(x).norm(dim=1) * y.norm(dim=1) + x.norm(dim=1) * sketch.adjoint(y).norm()
    assert ((left - right).abs() <= 1e-5 * scale).all()


@kinds
def test_the_sketch_of_a_sum_is_the_sum_of_the_sketches(kind: str) -> None:
    sketch = KINDS[kind](7, 40, 3)
    x, z = random(2, sketch.shape[1]).double()
    together = sketch.forward(2.0 * x - z)
    assert torch.allclose(together, 2.0 * sketch.forward(x) - sketch.forward(z), atol=1e-10)
    assert float(together.norm()) > 0.1


@kinds
def test_rows_are_sketched_as_one_by_one(kind: str) -> None:
    sketch = KINDS[kind](7, 40, 3)
    x, y = random(5, sketch.shape[1]), random(5, sketch.shape[0])
    assert torch.allclose(sketch.forward(x), torch.stack([sketch.forward(r) for r in x]), atol=1e-5)
    assert torch.allclose(sketch.adjoint(y), torch.stack([sketch.adjoint(r) for r in y]), atol=1e-5)
    assert sketch.forward(x[:0]).shape == (0, sketch.shape[0])


@kinds
def test_the_adjoint_is_the_transpose_of_the_dense_matrix(kind: str) -> None:
    sketch = KINDS[kind](7, 40, 3)
    columns = sketch.adjoint(torch.eye(sketch.shape[0], dtype=torch.float64))
    assert torch.allclose(columns, dense(sketch).T, atol=1e-7)


@kinds
def test_row_norms_are_those_of_the_dense_matrix(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch_module, "_COLUMN_BLOCK", 500)
    sketch = KINDS[kind](7, 40, 3)
    expected = dense(sketch).square().sum(dim=1)
    assert torch.allclose(sketch.row_norms_squared(), expected, atol=1e-6)
    assert torch.allclose(Sketch.row_norms_squared(sketch), expected, atol=1e-6)


@kinds
def test_a_result_is_new_memory_of_the_type_of_the_input(kind: str) -> None:
    sketch = KINDS[kind](7, 40, 3)
    for dtype in (torch.float32, torch.float64):
        x = random(sketch.shape[1]).to(dtype)
        before = x.clone()
        y = sketch.forward(x)
        y += 1.0
        assert y.dtype == dtype
        assert sketch.adjoint(y).dtype == dtype
        assert torch.equal(x, before)


@kinds
def test_a_vector_of_another_model_is_refused(kind: str) -> None:
    sketch = KINDS[kind](7, 40, 3)
    with pytest.raises(ValueError, match="numbers, or rows"):
        sketch.forward(torch.zeros(sketch.shape[1] + 1))
    with pytest.raises(ValueError, match="numbers, or rows"):
        sketch.adjoint(torch.zeros(2, sketch.shape[0] + 1))
    with pytest.raises(ValueError, match="floats"):
        sketch.forward(torch.zeros(sketch.shape[1], dtype=torch.int64))


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"identity"}))
def test_fingerprints_tell_sketches_apart(kind: str) -> None:
    make = KINDS[kind]
    assert make(7, 40, 3).fingerprint() == make(7, 40, 3).fingerprint()
    assert make(7, 40, 3).fingerprint() != make(7, 40, 4).fingerprint()
    assert make(7, 40, 3).fingerprint() != make(8, 40, 3).fingerprint()


def test_descriptions_cost_what_must_be_sent() -> None:
    costs = {kind: make(7, 40, 3).description_bytes for kind, make in KINDS.items()}
    assert costs == {
        "identity": 0,
        "gaussian": 16,
        "hadamard": 16,
        "count": 16,
        "layerwise": 4 * 40 + 16,
        "blocks": 16,
        "blocks, projection": 16,
    }


@pytest.mark.parametrize("make", [GaussianSketch, HadamardSketch, CountSketch])
@pytest.mark.parametrize("seed", [-1, 1 << 128])
def test_seeds_out_of_range_are_refused(make: Callable[[int, int, int], Sketch], seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        make(4, 10, seed)
