"""The tensor SVD of FedCEO: what its smoothing solves, and the facts that follow."""

import itertools

import pytest
import torch
from torch import Tensor

from fedsketch.sketching.tensor_svd import smooth, t_product, tensor_nuclear_norm

SHAPES = [(1, 4, 3), (2, 5, 4), (3, 4, 4), (4, 3, 6), (5, 12, 3), (6, 3, 12), (7, 1, 5)]


def _stack(shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _all_slices(stack: Tensor) -> Tensor:
    return torch.fft.fft(stack, dim=0)


def _plain(stack: Tensor, threshold: float) -> Tensor:
    """The definition: all K slices, each by its own SVD."""
    slices = []
    for one in _all_slices(stack):
        left, values, right = torch.linalg.svd(one, full_matrices=False)
        kept = (values - threshold).clamp(min=0).to(left.dtype)
        slices.append(left @ torch.diag(kept) @ right)
    return torch.fft.ifft(torch.stack(slices), dim=0).real


def _objective(candidate: Tensor, stack: Tensor, threshold: float) -> Tensor:
    return tensor_nuclear_norm(candidate) + (candidate - stack).square().sum() / (2 * threshold)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threshold", [0.0, 0.3, 2.0, 100.0])
def test_half_of_the_slices_are_enough(shape: tuple[int, int, int], threshold: float) -> None:
    stack = _stack(shape)
    torch.testing.assert_close(
        smooth(stack, threshold).stack, _plain(stack, threshold), atol=1e-7, rtol=1e-6
    )


@pytest.mark.parametrize("shape", [(3, 4, 3), (4, 3, 3), (5, 2, 6)])
def test_smoothing_solves_the_problem_that_a_generic_solver_solves(
    shape: tuple[int, int, int],
) -> None:
    """|W|_* is the least (|U|^2 + |V|^2) / 2 with W = U * V (per slice), which makes the problem smooth: L-BFGS from a
    random start."""
    stack, threshold = _stack(shape), 1.5
    count, rows, columns = shape
    inner = min(rows, columns)
    halves = [_stack((count, rows, inner), 1), _stack((count, inner, columns), 2)]
    variables = [half.clone().requires_grad_() for half in halves]
    solver = torch.optim.LBFGS(variables, max_iter=2000, tolerance_grad=1e-10, tolerance_change=0)
    solver.param_groups[0]["line_search_fn"] = "strong_wolfe"

    def value() -> Tensor:
        left, right = variables
        product = t_product(left, right)
        fit = (product - stack).square().sum() / (2 * threshold)
        return fit + (left.square().sum() + right.square().sum()) / 2

    def closure() -> float:
        solver.zero_grad()
        loss = value()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    solver.step(closure)  # type: ignore[no-untyped-call]
    found = t_product(*variables).detach()
    expected = smooth(stack, threshold).stack
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert float(value().detach()) == pytest.approx(
        float(_objective(expected, stack, threshold)), rel=1e-6
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_near_is_better(shape: tuple[int, int, int]) -> None:
    stack, threshold = _stack(shape), 0.7
    best = smooth(stack, threshold).stack
    least = float(_objective(best, stack, threshold))
    for seed in range(20):
        moved = best + 1e-2 * _stack(shape, seed + 1)
        assert float(_objective(moved, stack, threshold)) > least


@pytest.mark.parametrize("shape", SHAPES)
def test_above_all_other_slices_every_output_is_the_shrunk_mean(
    shape: tuple[int, int, int],
) -> None:
    """FedCEO, Proposition 3.2: the mean's singular values less threshold / K."""
    stack = 0.1 * _stack(shape) + 3 * _stack((1, *shape[1:]), 1)
    slices = _all_slices(stack)
    others = torch.linalg.svdvals(slices[1:])
    threshold = 1.01 * float(others.max()) if len(others) else 0.5
    left, values, right = torch.linalg.svd(stack.mean(dim=0), full_matrices=False)
    kept = (values - threshold / len(stack)).clamp(min=0)
    expected = (left * kept) @ right
    for output in smooth(stack, threshold).stack:
        torch.testing.assert_close(output, expected, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_threshold_of_0_changes_nothing(shape: tuple[int, int, int]) -> None:
    stack = _stack(shape)
    torch.testing.assert_close(smooth(stack, 0.0).stack, stack, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_mean_of_the_outputs_depends_on_the_mean_alone(shape: tuple[int, int, int]) -> None:
    stack = _stack(shape)
    other = stack + (noise := _stack(shape, 1)) - noise.mean(dim=0)
    one, two = smooth(stack, 1.0).stack, smooth(other, 1.0).stack
    torch.testing.assert_close(one.mean(dim=0), two.mean(dim=0), atol=1e-7, rtol=1e-6)


def test_the_order_of_the_clients_matters_but_for_rotation_and_reversal() -> None:
    """The Fourier transform puts the clients on a circle."""
    stack = _stack((4, 5, 4))
    expected = smooth(stack, 1.5).stack

    def of(order: tuple[int, ...]) -> Tensor:
        """Smoothed in another order, and put back."""
        back = torch.argsort(torch.tensor(order))
        return smooth(stack[list(order)], 1.5).stack[back]

    same = [o for o in itertools.permutations(range(4)) if torch.allclose(of(o), expected)]
    assert len(same) == 8  # four rotations, each in both directions
    assert (1, 2, 3, 0) in same
    assert (3, 2, 1, 0) in same
    assert not torch.allclose(of((1, 0, 2, 3)), expected, atol=1e-3)


def test_any_order_will_do_where_only_the_mean_is_left() -> None:
    stack = 0.1 * _stack((4, 5, 4)) + 3 * _stack((1, 5, 4), 1)
    threshold = 2 * float(torch.linalg.svdvals(_all_slices(stack)[1:]).max())
    one, two = smooth(stack, threshold).stack, smooth(stack[[1, 0, 2, 3]], threshold).stack
    torch.testing.assert_close(one, two)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_spectrum_is_that_of_the_slices_before(shape: tuple[int, int, int]) -> None:
    stack = _stack(shape)
    expected = torch.linalg.svdvals(_all_slices(stack))[: len(stack) // 2 + 1]
    torch.testing.assert_close(smooth(stack, 1.0).spectrum, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_norm_is_the_mean_over_all_slices(shape: tuple[int, int, int]) -> None:
    stack = _stack(shape)
    expected = torch.linalg.svdvals(_all_slices(stack)).sum() / len(stack)
    torch.testing.assert_close(tensor_nuclear_norm(stack), expected)


def test_the_product_is_a_circular_convolution_over_the_clients() -> None:
    left, right = _stack((3, 2, 4)), _stack((3, 4, 5), 1)
    expected = torch.stack(
        [sum((left[i] @ right[(k - i) % 3] for i in range(3)), torch.zeros(2, 5)) for k in range(3)]
    )
    torch.testing.assert_close(t_product(left, right), expected)


@pytest.mark.parametrize("shape", [(10, 64, 784), (10, 200, 16), (4, 30, 30)])
def test_single_precision_is_enough(shape: tuple[int, int, int]) -> None:
    stack = _stack(shape)
    threshold = 0.6 * (shape[1] ** 0.5 + shape[2] ** 0.5) * shape[0] ** 0.5
    got = smooth(stack.float(), threshold).stack
    assert got.dtype == torch.float32
    expected = smooth(stack, threshold).stack
    assert float((got - expected).norm() / expected.norm()) < 1e-4


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        smooth(_stack((2, 2, 2)), -1.0)
