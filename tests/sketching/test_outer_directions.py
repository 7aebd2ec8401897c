"""Directions of outer products, from their factors: those of the products themselves, and the same bits everywhere."""

import hashlib
import os
import subprocess
import sys
from fractions import Fraction

import pytest
import torch

from fedsketch.sketching.outer_directions import OuterDirections
from fedsketch.sketching.subspace import principal_directions

HASH = """
import hashlib, torch
from fedsketch.sketching.outer_directions import OuterDirections
tensors = torch.load(%r)
made = OuterDirections.of(tensors, (20, 30), 200, 3).rows()
print(hashlib.sha256(made.numpy().tobytes()).hexdigest())
"""


def _factors(decay: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """30 products of 10 and 20 numbers, the last one 10^-decay times as long as the first."""
    generator = torch.Generator().manual_seed(4)
    lengths = torch.logspace(0, -decay, 30)[:, None]
    left = (torch.rand(30, 10, generator=generator) - 0.5) * lengths
    return left, torch.rand(30, 20, generator=generator) - 0.3


def _described(decay: float = 0.0) -> OuterDirections:
    return OuterDirections.principal(*_factors(decay), 20, 3)


@pytest.mark.parametrize("decay", [0.0, 3.0])
def test_they_span_what_the_largest_singular_vectors_span(decay: float) -> None:
    """Inputs are rounded to one part in 2047 of the largest, so vectors turn by about as much, more where singular
    values are close: the sum of squared cosines is within a hundredth of its largest value."""
    left, right = _factors(decay)
    rows = (left[:, :, None] * right[:, None, :]).flatten(1)
    wanted, found = principal_directions(rows, 20, 1)
    made = _described(decay)
    assert made.found == found == 20
    cosines = torch.linalg.svdvals(wanted @ torch.linalg.qr(made.rows().double().T)[0])
    assert float(cosines.square().sum()) > 19.8


def test_they_are_nearly_orthonormal() -> None:
    rows = _described(3.0).rows().double()
    torch.testing.assert_close(rows @ rows.T, torch.eye(20).double(), atol=2e-3, rtol=0)


def test_missing_directions_are_random_and_the_same_everywhere() -> None:
    left, right = _factors()
    made = OuterDirections.principal(left[:6], right[:6], 20, 3)
    assert made.found == 6
    rows = made.rows()
    again = OuterDirections.of(made.tensors(), (20, 6), 200, 3).rows()
    other = OuterDirections.of(made.tensors(), (20, 6), 200, 4).rows()
    assert torch.equal(rows, again)
    assert torch.equal(rows[:6], other[:6])
    assert not torch.equal(rows[6:], other[6:])
    assert int(torch.linalg.matrix_rank(rows.double())) == 20


def test_products_are_exact() -> None:
    """Compared with whole numbers of any length, where terms cancel to a hundred-thousandth."""
    made = _described(5.0)
    weights = made.mix[:, :, None] * made.left.double()
    rows = made.rows().double().view(20, 10, 20)
    for k, o, i in [(0, 0, 0), (19, 9, 19), (19, 3, 7), (10, 5, 5)]:
        exact = sum(
            Fraction(float(weights[k, j, o])) * Fraction(float(made.right[j, i])) for j in range(30)
        )
        assert float(rows[k, o, i]) == pytest.approx(float(exact), rel=1e-3, abs=1e-4)


def test_another_machine_makes_the_same_bits(tmp_path: object) -> None:
    """Other vector instructions and another number of threads, with large coefficients that cancel."""
    made, path = _described(5.0), f"{tmp_path}/factors"
    torch.save(made.tensors(), path)
    wanted = hashlib.sha256(made.rows().numpy().tobytes()).hexdigest()
    other = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "2"}
    told = subprocess.run(
        [sys.executable, "-c", HASH % path],
        env={**os.environ, **other},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.strip() == wanted


def test_any_order_of_the_examples_makes_the_same_bits() -> None:
    """So whatever order a library adds them up in."""
    made = _described(5.0)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    turned = OuterDirections(made.left[order], made.right[order], made.mix[:, order], 3)
    assert torch.equal(made.rows(), turned.rows())


@pytest.mark.parametrize(("mixed", "columns"), [((20, 29), 200), ((19, 30), 200), ((20, 30), 201)])
def test_factors_that_do_not_fit_are_refused(mixed: tuple[int, int], columns: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        OuterDirections.of(_described().tensors(), mixed, columns, 3)
