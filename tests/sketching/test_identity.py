"""The identity changes nothing."""

import torch

from fedsketch.sketching.identity import IdentitySketch


def test_nothing_changes() -> None:
    x = torch.randn(2, 5)
    assert torch.equal(IdentitySketch(5).forward(x), x)
    assert torch.equal(IdentitySketch(5).adjoint(x[0]), x[0])
