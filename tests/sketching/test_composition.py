"""One sketch after another is the product of their matrices."""

import pytest
import torch

from sketching.composition import ComposedSketch
from sketching.count_sketch import CountSketch
from sketching.gaussian import GaussianSketch
from sketching.identity import IdentitySketch


def test_it_is_the_product_of_the_matrices() -> None:
    inner, outer = CountSketch(12, 50, 1), GaussianSketch(5, 12, 2)
    both = ComposedSketch(inner, outer)
    product = inner.forward(torch.eye(50)) @ outer.forward(torch.eye(12))
    assert both.shape == (5, 50)
    assert torch.allclose(both.forward(torch.eye(50)), product, atol=1e-6)
    assert torch.allclose(both.adjoint(torch.eye(5)), product.T, atol=1e-6)


def test_with_the_identity_it_is_the_other_sketch() -> None:
    inner = CountSketch(12, 50, 1)
    x = torch.randn(3, 50)
    composed = ComposedSketch(inner, IdentitySketch(12))
    assert torch.equal(composed.forward(x), inner.forward(x))
    assert torch.equal(composed.row_norms_squared(), inner.row_norms_squared())


def test_sketches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="make the outer one for d = 12"):
        ComposedSketch(CountSketch(12, 50, 1), GaussianSketch(5, 11, 2))
