"""Matrix factorisation: noise that is correlated over rounds so that it partly cancels in the models, and what it
costs.

Row t of X is the sum of round t. The models are the rows of A X for a lower-triangular workload A (prefix sums; with
momentum, sums of sums). For an invertible lower-triangular C, C X + Z with independent Gaussian Z is one Gaussian
release, and X + C^-1 Z can be computed from it. So a server that adds row t of C^-1 Z to the sum of round t makes
models with the noise B Z, B = A C^-1, whatever else it does with its sums.

The following statements hold under zero-out adjacency, for clip 1. sigma is the standard deviation of the numbers in
Z.

- **Adaptivity.** Row t of C X + Z needs only rows 1 to t of X, so each sum may depend on everything released before
  (Denisov et al. 2022, Theorem 2.1: given the earlier outputs, everything that does not depend on the unit can be
  subtracted).
- **Single participation.** A unit that is only in row t moves C X by the outer product of column t of C and its
  vector. The norm of this product is at most that of the column. So one pass is a Gaussian release with sensitivity
  `column_norm`.
- **Participations at least b rounds apart, C with b diagonals.** Column t is nonzero only in rows t to t + b - 1, so
  the columns of one unit's rounds have no row in common. The unit's vectors x_t move C X by a sum of outer products,
  and their squared norms add up. So the square of the sensitivity is the largest sum of squared column norms over sets
  of rounds at least b apart (`separated_norm`). In particular, k rounds of one unit cost no more than k Gaussian
  releases with sensitivity `column_norm`: every window of b rounds is a pass.
- **Sampled coordinates** (Theorem 5.1 of Chen et al. 2024). The unit sends m o x, the coordinate-wise product with its
  own secret mask m. Coordinate i of C X moves by x_i times column t if m_i = 1. In the direction of that column this
  is a sampled Gaussian with sensitivity |column| |x_i|; in all other directions nothing changes. The masks of
  different coordinates are independent. So the cost is that of `coordinate_sampling` with both bounds multiplied by
  `column_norm`. A public rotation before the mask, different in each round, changes nothing: rotate all rows of C X +
  Z by it, and the distribution of Z stays the same. If rounds are b apart and C has b diagonals, each participation
  has its own rows and its own mask, so the costs add up.
- **Noise from several parties.** Let Z be the sum of matrices Z_i of standard deviation sigma. Party i keeps Z_i, and
  adds row s of C^-1 Z_i to the sum of every round s in which it takes part. A dishonest server may drop any party at
  any time, depending on what it has seen. Suppose that h parties whose Z_i the adversary does not know are in the sum
  of round t. Then a unit that is only in row t costs one Gaussian release with sensitivity `column_norm` and standard
  deviation sigma sqrt(h), whatever happens in all other rounds. Proof: subtract x / h times column t of C from each of
  the h matrices Z_i. This changes C^-1 Z_i in row t only, by -x / h. With the unit's x added to that sum, every output
  of every round is the same as without both changes. The h parties are known before row t of any Z_i is used, and the
  shift is in rows t and later. The squared norm of the shift is |column t|^2 |x|^2 / h in total.
- **Every unit in every round.** Then no C is better than independent noise. For rows x_t of norm 1 and any Gram matrix
  Y of such rows, sens^2 >= tr(C^T C Y). So error * sens^2 >= |A C^-1|_F^2 |C Y^(1/2)|_F^2 >= |A Y^(1/2)|_*^2 (nuclear
  norm, Cauchy-Schwarz). Let a_t be the columns of A, and take the rows a_t / |a_t|. Then A Y^(1/2) is, up to a
  rotation, sum a_t a_t^T / |a_t|, which is positive and has the trace sum |a_t|. Independent noise with variances
  proportional to 1 / |a_t| reaches exactly (sum |a_t|)^2 (`best_independent`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
FactorisationKind = Literal["optimal", "banded", "square_root", "tree", "identity"]

_GAP = 1e-9  # relative gap between the error of `optimal` and its lower bound at which it stops
_GAIN = 1e-9  # predicted relative improvement of a step at which the search of `banded` stops
_STEPS = 500


# ---------------------------------------------------------------------- workloads
def workload(rounds: int, momentum: float = 0.0, passes: int = 1) -> Matrix:
    """Return the matrix A whose rows are prefix sums or, with momentum m, the models after t steps of SGD: the first
    column is then 1 + m + ... + m^t.

    The noise of a pass stays in the models of later passes. For `passes` passes, each with new noise, the matrix
    therefore has more rows below its square part: the models of later passes. A row that exists only for some of the
    passes is weighted by their fraction. So the error is that of all models of the run, divided by the number of
    passes.
    """
    column = np.cumsum(momentum ** np.arange(rounds * passes))
    weight = 1.0 - np.arange(passes).repeat(rounds) / passes
    return np.sqrt(weight)[:, None] * _toeplitz(column, rounds)


# ---------------------------------------------------------------------- the quality of a factorisation
def error(target: Matrix, strategy: Matrix) -> float:
    """Return |A C^-1|_F^2: the expected squared error of all rows of A X together, per coordinate and for sigma = 1."""
    return float(np.square(np.linalg.solve(strategy.T, target.T)).sum())


def column_norm(strategy: Matrix) -> float:
    """Return the sensitivity of C X to a unit that is in one row: the largest L2 norm of a column of C."""
    return float(np.sqrt(np.square(strategy).sum(axis=0).max()))


def bandwidth(strategy: Matrix) -> int:
    """Return the number of diagonals from the main one to the last one that is not zero."""
    row, column = np.nonzero(strategy)
    return int((row - column).max()) + 1


def separated_norm(strategy: Matrix, separation: int) -> float:
    """Return the sensitivity of C X to a unit that is in several rows, at least `separation` apart. C must not have
    more diagonals than that."""
    if bandwidth(strategy) > separation:
        raise ValueError(
            f"a factorisation with {bandwidth(strategy)} diagonals needs rounds of a client that are as far apart, "
            f"not {separation}."
        )
    best = [0.0]
    for t, square in enumerate(np.square(strategy).sum(axis=0)):
        best.append(max(best[-1], best[max(0, t + 1 - separation)] + float(square)))
    return float(np.sqrt(best[-1]))


def best_independent(target: Matrix) -> float:
    """Return error * sensitivity^2 of the best independent noise if units are in every row. No factorisation has
    less."""
    return float(np.sqrt(np.square(target).sum(axis=0)).sum() ** 2)


# ---------------------------------------------------------------------- factorisations
@lru_cache(maxsize=16)
def factorise(
    kind: FactorisationKind,
    rounds: int,
    momentum: float = 0.0,
    band: int | None = None,
    passes: int = 1,
) -> Matrix:
    """Return C for the workload of this many rounds, lower triangular and read-only. `band` is the number of diagonals
    of `banded`.

    Time for 64, 256, 1024 rounds on one core: `optimal` 0.1 s, 2 s, 1 min; `banded` 0.1 s, 2 s, 1 min; the others take
    no noticeable time.
    """
    make: dict[FactorisationKind, Callable[[Matrix], Matrix]] = {
        "optimal": optimal,
        "banded": lambda target: banded(target, min(band or rounds, rounds)),
        "square_root": square_root,
        "tree": lambda target: tree(rounds),
        "identity": lambda target: np.eye(rounds),
    }
    strategy = make[kind](workload(rounds, momentum, passes))
    strategy.setflags(write=False)
    return strategy


def optimal(target: Matrix) -> Matrix:
    """Return the C with the smallest error among those with columns of norm at most 1, up to a factor of 1 + 1e-9.

    Denisov et al. 2022, Theorem 3.2: let V = A^T A. The dual of min tr(V X^-1), diag X <= 1, has the fixed point v =
    diag((D V D)^(1/2)), D = diag(v)^(1/2), and X = D^-1 (D V D)^(1/2) D^-1. For every v the squared trace of the root,
    divided by sum v, is a lower bound of the error. X divided by its largest diagonal entry gives an upper bound. The
    loop ends when both agree. The step v <- diag(root)^2 / v goes twice as far as their step v <- diag(root) (on a
    logarithmic scale), which halves the number of steps.
    """
    gram = target.T @ target
    v = np.ones(len(gram))
    for _ in range(_STEPS):
        d = np.sqrt(v)
        values, vectors = np.linalg.eigh(d[:, None] * gram * d)
        roots = np.sqrt(np.maximum(values, 0.0))
        diagonal = np.square(vectors) @ roots
        if (diagonal / v).max() * v.sum() <= (1.0 + _GAP) * roots.sum():
            break
        v = diagonal**2 / v
    x = (vectors * roots) @ vectors.T / np.outer(d, d)
    return lower_factor(x / x.diagonal().max())


def banded(target: Matrix, band: int) -> Matrix:
    """Return the C with the smallest error among those with columns of norm 1 and `band` diagonals.

    X = C^T C has `band` diagonals on each side, counting the main one, and tr(A^T A X^-1) is convex in X. The main
    diagonal of X is 1. L-BFGS optimises the other entries; steps are halved until X is positive definite and the error
    has fallen. It starts from the banded square root.
    """
    n = target.shape[1]
    row, column = np.nonzero(np.tri(n, n, -1) - np.tri(n, n, -band))
    start = np.tril(np.triu(square_root(target), 1 - band))
    start /= np.sqrt(np.square(start).sum(axis=0))

    def filled(entries: NDArray[np.float64]) -> Matrix:
        x = np.eye(n)
        x[row, column] = x[column, row] = entries
        return x

    def objective(entries: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        x = filled(entries)
        try:
            np.linalg.cholesky(x)
        except np.linalg.LinAlgError:
            return np.inf, entries
        inverse = target @ np.linalg.inv(x)
        # The gradient of tr(V X^-1) is -X^-1 V X^-1. The factor 2 is there because every entry occurs in X twice.
        gradient = -2.0 * (inverse.T @ inverse)[row, column]
        return float(np.sum(inverse * target)), gradient

    gram = start.T @ start
    return lower_factor(filled(_descend(objective, gram[row, column])))


def square_root(target: Matrix) -> Matrix:
    """Return B = C = A^(1/2) for the Toeplitz A of one pass (Fichtenberger et al. 2023): the power series of C is the
    square root of that of A."""
    wanted = target[: target.shape[1], 0]
    series = np.empty(len(wanted))
    for k in range(len(wanted)):
        if k == 0:
            series[0] = np.sqrt(wanted[0])
        else:
            series[k] = (wanted[k] - series[1:k] @ series[1:k][::-1]) / (2.0 * series[0])
    return _toeplitz(series, len(series))


def tree(rounds: int) -> Matrix:
    """Return the matrix of tree aggregation: the sums over all nodes of a binary tree of rounds are noised, and all of
    them are used for the estimate (Honaker 2015).

    The matrix N of the tree has more rows than columns. The noise N^+ Z has the covariance (N^T N)^-1. So has C^-1 Z
    for the square C with C^T C = N^T N. This noise has the same distribution, and C has the same column norms as N.
    """
    leaves = np.arange(rounds)
    gram = np.zeros((rounds, rounds))
    for level in range((rounds - 1).bit_length() + 1):
        gram += (leaves[:, None] >> level) == (leaves[None, :] >> level)
    return lower_factor(gram)


def lower_factor(x: Matrix) -> Matrix:
    """Return the lower-triangular C with C^T C = X: a Cholesky factorisation from the last row up. C has as many
    diagonals as X on and below its main one."""
    factor = np.linalg.cholesky(x[::-1, ::-1])
    return np.array(factor.T[::-1, ::-1], dtype=np.float64)


def _toeplitz(column: NDArray[np.float64], width: int) -> Matrix:
    lag = np.arange(len(column))[:, None] - np.arange(width)[None, :]
    return np.where(lag >= 0, column[np.abs(lag)], 0.0)


def _descend(
    objective: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]],
    point: NDArray[np.float64],
    memory: int = 10,
) -> NDArray[np.float64]:
    """Return L-BFGS with step halving, for a convex function that is infinite outside of its domain."""
    value, gradient = objective(point)
    past: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    for _ in range(_STEPS):
        direction = _quasi_newton(gradient, past)
        slope = float(gradient @ direction)
        if slope <= _GAIN * value:
            break
        step = 1.0
        after, turned = objective(point - step * direction)
        while after > value - 1e-4 * step * slope and step > 1e-9:
            step /= 2.0
            after, turned = objective(point - step * direction)
        if after >= value:
            break
        past = [*past[1 - memory :], (-step * direction, turned - gradient)]
        point, value, gradient = point - step * direction, after, turned
    return point


def _quasi_newton(
    gradient: NDArray[np.float64], past: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
) -> NDArray[np.float64]:
    """Return the L-BFGS two-loop recursion: the inverse Hessian, estimated from past steps, times the gradient."""
    if not past:
        return gradient * (0.1 / max(float(np.linalg.norm(gradient)), 0.1))
    direction, coefficients = gradient.copy(), []
    for move, change in reversed(past):
        coefficient = float(move @ direction) / float(move @ change)
        coefficients.append(coefficient)
        direction -= coefficient * change
    move, change = past[-1]
    direction *= float(move @ change) / float(change @ change)
    for (move, change), coefficient in zip(past, reversed(coefficients), strict=True):
        direction += move * (coefficient - float(change @ direction) / float(move @ change))
    return direction
