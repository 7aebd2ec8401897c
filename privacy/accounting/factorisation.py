"""Matrix factorisation: noise that cancels over rounds, and what it costs.

Row t of X is the sum of round t, and the models are the rows of A X for a lower-triangular workload A (prefix sums;
with momentum, sums of sums). For an invertible lower-triangular C, C X + Z with independent Gaussian Z is one Gaussian
release, and X + C^-1 Z follows from it. So a server that adds row t of C^-1 Z to the sum of round t makes models with
the noise B Z, B = A C^-1, whatever else it does with its sums.

What holds, for sigma the standard deviation of Z's numbers and clip 1, under zero-out adjacency:

- **Adaptively.** Row t of C X + Z needs rows 1 to t of X only, so each sum may depend on all that was released before
  (Denisov et al. 2022, Theorem 2.1: given the earlier outputs, what the unit does not touch can be subtracted again).
- **Single participation.** A unit in row t alone moves C X by the outer product of column t of C and its vector, whose
  norm is at most that column's. One pass is a Gaussian release with the sensitivity `column_norm`.
- **Participations at least b rounds apart, C with b diagonals.** Column t lives in rows t to t + b - 1, so the columns
  of one unit's rounds have no row in common. Its vectors x_t move C X by a sum of outer products whose squared norms
  add up: the square of the sensitivity is the largest sum of squared column norms over sets of rounds at least b apart
  (`separated_norm`). In particular k rounds of one unit cost no more than k Gaussian releases of sensitivity
  `column_norm`: every window of b rounds is a pass.
- **Coordinates that are sampled** (Theorem 5.1 of Chen et al. 2024): the unit sends m o x for a secret mask m of its
  own. Coordinate i of C X moves by x_i times column t, if m_i = 1. In the direction of that column this is a sampled
  Gaussian of sensitivity |column| |x_i|, and in all others nothing; the masks of coordinates are independent. So the
  price is that of `coordinate_sampling` with both bounds times `column_norm`. A public rotation of the round in front
  of the mask changes nothing: rotate all rows of C X + Z by it, and Z stays what it is. For rounds b apart and b
  diagonals, each participation has rows and a mask of its own, so their prices add up.
- **Noise that several bring.** Let Z be the sum of Z_i of standard deviation sigma, each kept by its maker i, who adds
  row s of C^-1 Z_i to the sum of every round s that he comes to; a lying server may lose whom it likes, at any time, by
  what it has seen. If h makers whose Z_i the adversary does not know are in the sum of round t, a unit in row t alone
  costs one Gaussian release of sensitivity `column_norm` and standard deviation sigma sqrt(h), whatever happens in all
  other rounds. Proof: take x / h times column t of C off each of the h matrices Z_i. Then C^-1 Z_i changes in row t
  only, by -x / h, and with the unit's x added to that sum every output of every round is the same as without both. The
  h are known before row t of any Z_i is used, and the shift is in rows t and later; its squared norm is
  |column t|^2 |x|^2 / h in all.
- **Everybody in every round.** No C is better than independent noise then. With rows x_t of norm 1 and any Gram matrix
  Y of such rows, sens^2 >= tr(C^T C Y), so error * sens^2 >= |A C^-1|_F^2 |C Y^(1/2)|_F^2 >= |A Y^(1/2)|_*^2 (nuclear
  norm, Cauchy-Schwarz). With a_t the columns of A take the rows a_t / |a_t|: A Y^(1/2) is sum a_t a_t^T / |a_t| up to a
  rotation, which is positive and has the trace sum |a_t|. Independent noise with variances proportional to 1 / |a_t|
  reaches exactly (sum |a_t|)^2 (`best_independent`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Kind = Literal["optimal", "banded", "square_root", "tree", "identity"]

_GAP = 1e-9  # between the error of the fixed point and its lower bound, over the error
_GAIN = 1e-9  # of a step of the banded search, over the error, with which it ends
_STEPS = 500


# ---------------------------------------------------------------------- workloads
def workload(rounds: int, momentum: float = 0.0, passes: int = 1) -> Matrix:
    """The sum of the first t rows, or with momentum m what t steps of SGD make of them: the first column is 1 + m + ...
    + m^t.

    What a pass leaves in the model stays there in later ones. For `passes` passes with new noise in each, the matrix
    goes on below its square with the models of later passes; a row that only some passes come to is weighted by their
    share, so that the error is that of all models of the run over the number of passes.
    """
    column = np.cumsum(momentum ** np.arange(rounds * passes))
    weight = 1.0 - np.arange(passes).repeat(rounds) / passes
    return np.sqrt(weight)[:, None] * _toeplitz(column, rounds)


# ---------------------------------------------------------------------- what a factorisation is worth
def error(target: Matrix, strategy: Matrix) -> float:
    """|A C^-1|_F^2: the expected squared error of all rows of A X together, for each coordinate and sigma = 1."""
    return float(np.square(np.linalg.solve(strategy.T, target.T)).sum())


def column_norm(strategy: Matrix) -> float:
    """The sensitivity of C X to a unit that is in one row."""
    return float(np.sqrt(np.square(strategy).sum(axis=0).max()))


def bandwidth(strategy: Matrix) -> int:
    """How many diagonals hold all that is not zero, the main one included."""
    row, column = np.nonzero(strategy)
    return int((row - column).max()) + 1


def separated_norm(strategy: Matrix, separation: int) -> float:
    """The sensitivity of C X to a unit whose rows are at least `separation` apart; C may have no more diagonals than
    that."""
    if bandwidth(strategy) > separation:
        raise ValueError(
            f"a factorisation with {bandwidth(strategy)} diagonals needs rounds of a client that are as far apart, not {separation}."
        )
    best = [0.0]
    for t, square in enumerate(np.square(strategy).sum(axis=0)):
        best.append(max(best[-1], best[max(0, t + 1 - separation)] + float(square)))
    return float(np.sqrt(best[-1]))


def best_independent(target: Matrix) -> float:
    """error * sensitivity^2 of the best independent noise for units that are in every row, which no other factorisation
    beats."""
    return float(np.sqrt(np.square(target).sum(axis=0)).sum() ** 2)


# ---------------------------------------------------------------------- factorisations
@lru_cache(maxsize=16)
def factorise(
    kind: Kind, rounds: int, momentum: float = 0.0, band: int | None = None, passes: int = 1
) -> Matrix:
    """C for the workload of so many rounds, lower triangular and read-only. `band` is the number of diagonals of
    `banded`.

    Time for 64, 256, 1024 rounds on one core: `optimal` 0.1 s, 2 s, 1 min; `banded` 0.1 s, 2 s, 1 min; the others are
    instant.
    """
    make: dict[Kind, Callable[[Matrix], Matrix]] = {
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
    """The C of least error among those with columns of norm at most 1, to a factor of 1 + 1e-9.

    Denisov et al. 2022, Theorem 3.2: with V = A^T A the dual of min tr(V X^-1), diag X <= 1, has the fixed point v =
    diag((D V D)^(1/2)), D = diag(v)^(1/2), and X = D^-1 (D V D)^(1/2) D^-1. For every v the squared trace of the root
    over sum v is a lower bound of the error, and X over its largest diagonal entry gives an upper one: it ends when
    they meet. The step v <- diag(root)^2 / v is their v <- diag(root) taken twice as far, which halves the number of
    steps.
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
    """The C of least error among those with columns of norm 1 and `band` diagonals.

    C^T C = X has as many diagonals on each side, and tr(A^T A X^-1) is convex in X: L-BFGS over the entries beside X's
    main diagonal, which is 1, with steps halved until X is positive definite and the error has fallen. It starts from
    the banded square root.
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
        # tr(V X^-1), and its gradient -X^-1 V X^-1: an entry stands in X twice.
        gradient = -2.0 * (inverse.T @ inverse)[row, column]
        return float(np.sum(inverse * target)), gradient

    gram = start.T @ start
    return lower_factor(filled(_descend(objective, gram[row, column])))


def square_root(target: Matrix) -> Matrix:
    """B = C = A^(1/2) for the Toeplitz A of one pass (Fichtenberger et al. 2023): the power series whose square is
    A's."""
    wanted = target[: target.shape[1], 0]
    series = np.empty(len(wanted))
    for k in range(len(wanted)):
        if k == 0:
            series[0] = np.sqrt(wanted[0])
        else:
            series[k] = (wanted[k] - series[1:k] @ series[1:k][::-1]) / (2.0 * series[0])
    return _toeplitz(series, len(series))


def tree(rounds: int) -> Matrix:
    """Sums over the nodes of a binary tree of rounds, each noised, with all of them used for the estimate (Honaker
    2015).

    The tree's own matrix N has more rows than columns. Noise N^+ Z has the covariance (N^T N)^-1, and so has C^-1 Z of
    the square C with C^T C = N^T N: the same noise in law, with the same column norms.
    """
    leaves = np.arange(rounds)
    gram = np.zeros((rounds, rounds))
    for level in range((rounds - 1).bit_length() + 1):
        gram += (leaves[:, None] >> level) == (leaves[None, :] >> level)
    return lower_factor(gram)


def lower_factor(x: Matrix) -> Matrix:
    """The lower-triangular C with C^T C = X: Cholesky from the last row up. It has as many diagonals as one side of
    X."""
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
    """L-BFGS with halved steps, for a convex function that is infinite outside of its domain."""
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
    """The inverse Hessian that past moves and changes of the gradient tell, times the gradient (two loops)."""
    if not past:
        return gradient * (0.1 / max(float(np.linalg.norm(gradient)), 0.1))
    direction, shares = gradient.copy(), []
    for move, change in reversed(past):
        share = float(move @ direction) / float(move @ change)
        shares.append(share)
        direction -= share * change
    move, change = past[-1]
    direction *= float(move @ change) / float(change @ change)
    for (move, change), share in zip(past, reversed(shares), strict=True):
        direction += move * (share - float(change @ direction) / float(move @ change))
    return direction
