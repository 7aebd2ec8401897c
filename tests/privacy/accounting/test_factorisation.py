"""Factorisations reach their listed errors, and their sensitivities are those of brute force."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from fedsketch.privacy.accounting.factorisation import (
    FactorisationKind,
    Matrix,
    banded,
    bandwidth,
    best_independent,
    column_norm,
    error,
    factorise,
    lower_factor,
    optimal,
    separated_norm,
    square_root,
    tree,
    workload,
)


def _loss(target: Matrix, strategy: Matrix) -> float:
    return error(target, strategy) * column_norm(strategy) ** 2


@pytest.mark.parametrize(
    ("rounds", "listed"),
    [(4, 6.874144), (8, 17.866177), (16, 45.665357), (32, 114.559703), (64, 282.201421)],
)
def test_the_optimum_has_the_listed_error(rounds: int, listed: float) -> None:
    target = workload(rounds)
    assert _loss(target, optimal(target)) == pytest.approx(listed, rel=1e-6, abs=0)


@pytest.mark.parametrize(
    ("kind", "listed"), [("square_root", 129.538113), ("identity", 528.0), ("optimal", 114.559703)]
)
def test_the_others_have_the_listed_errors_at_32_rounds(
    kind: FactorisationKind, listed: float
) -> None:
    assert _loss(workload(32), factorise(kind, 32)) == pytest.approx(listed, rel=1e-6)
    assert _loss(workload(32), workload(32)) == pytest.approx(1024.0)  # B = I


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_workload_is_what_sgd_does_to_its_gradients(momentum: float) -> None:
    gradients = np.random.default_rng(1).normal(size=(7, 3))
    velocity, moved, models = np.zeros(3), np.zeros(3), []
    for gradient in gradients:
        velocity = momentum * velocity + gradient
        moved = moved + velocity
        models.append(moved)
    np.testing.assert_allclose(workload(7, momentum) @ gradients, models, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_workload_of_several_passes_counts_what_a_pass_leaves_to_the_others(
    momentum: float,
) -> None:
    """Its error is that of all twelve models, where three passes have the same C and noise of their own."""
    target, whole = workload(4, momentum, 3), workload(12, momentum)
    for strategy in (np.eye(4), tree(4), factorise("optimal", 4, momentum)):
        expected = error(whole, np.kron(np.eye(3), strategy)) / 3
        assert error(target, strategy) == pytest.approx(expected, rel=1e-9)
    best = _loss(target, factorise("optimal", 4, momentum, passes=3))
    assert best < 0.99 * _loss(target, factorise("optimal", 4, momentum))
    assert best < _loss(target, tree(4))
    assert _loss(target, factorise("banded", 4, momentum, 4, 3)) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("kind", ["optimal", "banded", "square_root", "tree", "identity"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noise_of_a_round_needs_no_later_one(kind: FactorisationKind, momentum: float) -> None:
    """C is lower triangular and invertible, and so is C^-1: rounds may depend on what was released before."""
    strategy = factorise(kind, 12, momentum, 4)
    assert (np.triu(strategy, 1) == 0.0).all()
    assert (strategy.diagonal() > 0.0).all()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_nothing_is_better_than_the_optimum_and_all_bands_approach_it(momentum: float) -> None:
    target = workload(16, momentum)
    best = _loss(target, optimal(target))
    losses = [_loss(target, banded(target, band)) for band in (1, 2, 4, 8, 16)]
    assert all(fewer > more for fewer, more in pairwise(losses))
    assert losses[-1] == pytest.approx(best, rel=1e-6)
    for other in (square_root(target), tree(16), np.eye(16)):
        assert best < _loss(target, other)
    random = np.random.default_rng(2)
    for _ in range(200):
        near = optimal(target) + 0.05 * np.tril(random.normal(size=(16, 16)))
        assert _loss(target, near) > best * (1 - 1e-8)


@pytest.mark.parametrize(("rounds", "band"), [(9, 3), (16, 16), (20, 1), (7, 2)])
def test_a_banded_factorisation_has_its_band_and_columns_of_norm_1(rounds: int, band: int) -> None:
    strategy = banded(workload(rounds), band)
    assert bandwidth(strategy) == band
    np.testing.assert_allclose(np.linalg.norm(strategy, axis=0), 1.0, rtol=1e-9)


def test_a_band_is_as_good_as_its_best_neighbour() -> None:
    """Brute force for 3 rounds and 2 diagonals: two numbers, on a grid."""
    target = workload(3)
    grid = np.linspace(-0.99, 0.99, 199)
    found = np.inf
    for a in grid:
        for b in grid:
            if a * a + b * b < 1.0:
                x = np.array([[1, a, 0], [a, 1, b], [0, b, 1.0]])
                found = min(found, error(target, lower_factor(x)))
    assert _loss(target, banded(target, 2)) <= found <= 1.001 * _loss(target, banded(target, 2))


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 13])
def test_the_tree_is_honakers(rounds: int) -> None:
    """The noise of all nodes of the tree, best combined, from the tree's own matrix."""
    size = 1 << (rounds - 1).bit_length()
    nodes = [
        [float(start <= leaf < start + width) for leaf in range(rounds)]
        for width in (1 << level for level in range(size.bit_length()))
        for start in range(0, size, width)
    ]
    own = np.array([node for node in nodes if any(node)])
    target = workload(rounds)
    expected = np.square(target @ np.linalg.pinv(own)).sum()
    assert error(target, tree(rounds)) == pytest.approx(expected, rel=1e-9)
    assert column_norm(tree(rounds)) == pytest.approx(np.linalg.norm(own, axis=0).max(), rel=1e-9)


def _gram(strategy: Matrix, rows: tuple[int, ...]) -> Matrix:
    part = strategy[:, list(rows)]
    return part.T @ part


@pytest.mark.parametrize(("band", "separation"), [(1, 1), (2, 2), (3, 3), (2, 4), (8, 8)])
def test_the_sensitivity_to_separated_rounds_is_that_of_brute_force(
    band: int, separation: int
) -> None:
    """All sets of rounds that are far enough apart, with all vectors equal (the worst for a positive C) and with random
    ones."""
    strategy = banded(workload(8), band) * np.linspace(0.5, 1.5, 8)  # columns of different norms
    random, most, seen = np.random.default_rng(3), 0.0, 0.0
    for count in range(1, 9):
        for rows in combinations(range(8), count):
            if any(b - a < separation for a, b in pairwise(rows)):
                continue
            most = max(most, float(np.sqrt(_gram(strategy, rows).sum())))
            vectors = random.normal(size=(count, 3))
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            seen = max(seen, float(np.linalg.norm(strategy[:, list(rows)] @ vectors)))
    assert separated_norm(strategy, separation) == pytest.approx(most, rel=1e-12)
    assert seen <= most * (1 + 1e-12)


def test_rounds_a_band_apart_cost_no_more_than_so_many_passes() -> None:
    strategy = banded(workload(23), 5)
    passes = -(-23 // 5)
    assert separated_norm(strategy, 5) ** 2 == pytest.approx(passes * column_norm(strategy) ** 2)


def test_closer_rounds_than_the_band_are_refused() -> None:
    with pytest.raises(ValueError, match="needs rounds of a client that are as far apart"):
        separated_norm(banded(workload(9), 4), 3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_no_factorisation_beats_independent_noise_where_everybody_is_in_every_round(
    momentum: float,
) -> None:
    """The rows of the proof are unit vectors, so what they move C X by is a lower bound of its sensitivity."""
    target = workload(6, momentum)
    norms = np.linalg.norm(target, axis=0)
    worst = target.T / norms[:, None]  # row t is a_t / |a_t|
    best = best_independent(target)
    independent = np.diag(np.sqrt(norms))  # variances proportional to 1 / |a_t|
    assert error(target, independent) * np.square(independent).sum() == pytest.approx(best)
    random = np.random.default_rng(4)
    candidates = [factorise(kind, 6, momentum) for kind in ("optimal", "square_root", "tree")]
    candidates += [
        independent + scale * np.tril(random.normal(size=(6, 6)))
        for scale in (0.01, 0.1, 1.0)
        for _ in range(200)
    ]
    for strategy in candidates:
        moved = float(np.square(strategy @ worst).sum())
        assert error(target, strategy) * moved >= best * (1 - 1e-9)


@pytest.mark.parametrize("kind", ["optimal", "square_root", "tree", "banded"])
def test_makers_of_noise_who_vanish_in_other_rounds_take_no_privacy_along(
    kind: FactorisationKind,
) -> None:
    """Brute force over patterns of who is in which sum: the distance that a unit in row t makes, under the covariance
    of what is seen."""
    strategy, random = factorise(kind, 5, 0.5, 3), np.random.default_rng(5)
    inverse, makers = np.linalg.inv(strategy), 4
    worst = 0.0
    for share in (1.0, *[0.7] * 300):
        there = random.random((makers, 5)) < share
        there[:, there.sum(axis=0) == 0] = True  # a sum without any noise is another matter
        seen = [present[:, None] * inverse for present in there]
        covariance = sum(part @ part.T for part in seen)
        for t in range(5):
            distance = float(np.linalg.inv(covariance)[t, t])
            bound = float(np.square(strategy[:, t]).sum() / there[:, t].sum())
            assert distance <= bound * (1 + 1e-9)
            worst = max(worst, distance / bound)
    assert worst == pytest.approx(1.0)  # reached where nobody vanishes
