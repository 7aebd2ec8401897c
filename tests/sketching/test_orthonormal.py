"""A matrix as a sketch: a projection, whatever the layout of the matrix in memory."""

import pytest
import torch

from sketching.orthonormal import OrthonormalSketch
from sketching.probes import probes


def test_desketching_is_the_projection_on_the_span() -> None:
    basis = probes(1, 4, torch.empty(30, 0, dtype=torch.float64))
    sketch, x = OrthonormalSketch(basis), torch.randn(30, dtype=torch.float64)
    projected = sketch.adjoint(sketch.forward(x))
    assert torch.allclose(sketch.adjoint(sketch.forward(projected)), projected, atol=1e-12)
    assert torch.allclose(basis.T @ (x - projected), torch.zeros(4).double(), atol=1e-12)
    assert float((x - projected).norm()) > 0.1


def test_noise_on_the_sketch_keeps_its_energy() -> None:
    """Lemma 3.1 of DOME: sigma^2 k, not sigma^2 d; exactly, draw by draw."""
    sketch = OrthonormalSketch(probes(1, 4, torch.empty(30, 0)))
    noise = torch.randn(100, 4)
    assert torch.allclose(sketch.adjoint(noise).norm(dim=1), noise.norm(dim=1), rtol=1e-5)


def test_fingerprints_do_not_see_the_layout_in_memory() -> None:
    basis = probes(1, 4, torch.empty(30, 0))
    assert not basis.is_contiguous()
    contiguous = OrthonormalSketch(basis.contiguous())
    assert contiguous.fingerprint() == OrthonormalSketch(basis).fingerprint()


def test_a_vector_is_no_basis() -> None:
    with pytest.raises(ValueError, match="d x k matrix"):
        OrthonormalSketch(torch.zeros(5))
