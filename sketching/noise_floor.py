"""What the known noise alone would give: the eigenvalue above which a direction is signal.

The PCA accumulates C = sum_t decay^(T-t) m_t m_t^T from desketched vectors g_t = S_t y_t, or their moving average m_t,
and y_t carries Gaussian noise of known standard deviation s_t on each of its k coordinates, k the columns of S_t. The
noise part of C is N N^T with N = S Xi A: Xi is k x T with independent N(0, 1) entries, and A (T x T) holds s_t, the
averaging, sqrt(decay^(T-t)).

For a fixed S only the squared singular values a_j of A matter. Gordon's comparison of u^T Xi z with |z| <g, u> + <h,
z>, over unit u and z = A v, gives at any size, not only in the limit,

    E ||Xi A|| <= sqrt(edge),   edge = min over 0 < x < 1 / max a of   k / x + sum_j a_j / (1 - a_j x),

which is the right edge of the weighted Marchenko-Pastur law: (sqrt(T) + sqrt(k))^2 for T equal weights 1. The norm is
sqrt(max a)-Lipschitz in Xi, so by Gaussian concentration

    P( ||N||^2 > floor ) <= p,   floor = ( sqrt(edge) + sqrt(2 ln(1/p) max a) )^2.

If n vectors come per round (the rows of a layer), every a_j counts n times. By Weyl's inequality sigma_(r+1)(signal +
noise) <= sigma_1(noise) for a signal of rank r: with probability 1 - p at most r directions lie above the floor; none,
if there is only noise. That is a theorem for a fixed S. Fresh probes spread the noise over more directions, which
lowers its top; for a sketch that follows the PCA back to its own noise there is no proof here, and the tests simulate
that closed loop. p is per look at the floor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FORGOTTEN = 1e-8  # of the weight of the last round: what is older changes the floor by less than its digits matter


def noise_floor(
    weights: NDArray[np.float64], width: int, vectors: int = 1, failure: float = 1e-3
) -> float:
    """The floor for the squared singular values of A (`weights`), k = `width`, and `vectors` of each weight."""
    if not 0.0 < failure < 1.0:
        raise ValueError(f"The failure probability is between 0 and 1, not {failure}.")
    peak = float(weights.max(initial=0.0))
    if peak <= 0.0:
        return 0.0
    margin = math.sqrt(2.0 * math.log(1.0 / failure))
    return peak * (math.sqrt(_edge(weights / peak, width, vectors)) + margin) ** 2


class NoiseFloor:
    """Follows the noise that a `StreamingPCA` of the same `decay` is fed: one `update` for each of its own.

    `momentum` is beta if the PCA is fed m_t = beta m_(t-1) + (1 - beta) g_t (the raw moment, from zero, not
    bias-corrected); 0 if it is fed g_t. `vectors` is how many it gets per round. With momentum a look costs O(T^3) for
    T remembered rounds.
    """

    def __init__(self, decay: float, momentum: float = 0.0, vectors: int = 1) -> None:
        if not (0.0 < decay <= 1.0 and 0.0 <= momentum < 1.0 and vectors >= 1):
            raise ValueError(
                "The noise floor needs 0 < decay <= 1, 0 <= momentum < 1 and vectors >= 1, not "
                f"{decay}, {momentum} and {vectors}."
            )
        self._decay = decay
        self._momentum = momentum
        self._vectors = vectors
        self._rounds: list[tuple[float, int]] = []  # deviation, width; the last is the newest

    def update(self, deviation: float, width: int) -> None:
        """A round whose desketched vectors came from `width` numbers each, with noise `deviation` on every one (the
        mean's noise, if the mean was desketched)."""
        if not (0.0 <= deviation < math.inf and width >= 1):
            raise ValueError(f"No such noise: {deviation} on a sketch of {width} numbers.")
        self._rounds.append((deviation, width))
        if self._decay ** (len(self._rounds) - 1) < _FORGOTTEN:
            del self._rounds[0]

    def value(self, failure: float = 1e-3) -> float:
        """The floor for the eigenvalues now, exceeded by noise alone with at most this probability.

        Rounds with sketches of different sizes (warm-up rounds sense everything) are bounded apart and added.
        """
        widths = {width for _, width in self._rounds}
        floors = [
            noise_floor(self._weights(width), width, self._vectors, failure / len(widths))
            for width in widths
        ]
        if self._momentum > 0.0:
            # One vector holds noise of both kinds of rounds: norms add.
            return sum(math.sqrt(floor) for floor in floors) ** 2
        return sum(floors)

    def state_dict(self) -> list[tuple[float, int]]:
        return list(self._rounds)

    def load_state_dict(self, state: Sequence[tuple[float, int]]) -> None:
        self._rounds = [(float(deviation), int(width)) for deviation, width in state]

    def _weights(self, width: int) -> NDArray[np.float64]:
        """The squared singular values of A, for the rounds with sketches of this width."""
        ages = np.arange(len(self._rounds))[::-1].astype(np.float64)
        mine = np.array([k == width for _, k in self._rounds])
        deviations = np.array([deviation for deviation, _ in self._rounds])[mine]
        if self._momentum == 0.0:
            return deviations**2 * self._decay ** ages[mine]
        # Row s, column t: how much of the noise of round s is in the vector of round t >= s.
        delay = ages[mine, None] - ages[None, :]
        beta = self._momentum
        averaging = np.where(delay >= 0, (1.0 - beta) * beta ** np.maximum(delay, 0.0), 0.0)
        matrix = deviations[:, None] * averaging * self._decay ** (ages[None, :] / 2.0)
        return np.linalg.eigvalsh(matrix @ matrix.T).clip(min=0.0)


def _edge(weights: NDArray[np.float64], width: int, vectors: int) -> float:
    """min over 0 < x < 1 of k / x + n sum a / (1 - a x), for weights whose largest is 1: convex, by golden section.

    Every x gives a valid bound, so the search only has to come near.
    """

    def bound(x: float) -> float:
        return width / x + vectors * float((weights / (1.0 - weights * x)).sum())

    low, high = 0.0, 1.0
    golden = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(60):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if bound(left) < bound(right):
            high = right
        else:
            low = left
    return bound((low + high) / 2.0)
