"""The noise floor: the eigenvalue that noise alone would rarely exceed. A direction with a larger eigenvalue is
signal.

The PCA accumulates C = sum_t decay^(T-t) m_t m_t^T. Here m_t is the desketched vector g_t = S_t y_t, or the moving
average of these vectors. y_t has Gaussian noise of known standard deviation s_t on each of its k coordinates; S_t has
k columns. The noise part of C is N N^T with N = S Xi A. Xi is k x T with independent N(0, 1) entries, and A (T x T)
contains s_t, the averaging and sqrt(decay^(T-t)).

For a fixed S only the squared singular values a_j of A matter. Gordon's comparison of u^T Xi z with
|z| <g, u> + <h, z>, over unit vectors u and z = A v, gives for every size, not only in the limit,

    E ||Xi A|| <= sqrt(edge),   edge = min over 0 < x < 1 / max a of   k / x + sum_j a_j / (1 - a_j x).

This is the right edge of the weighted Marchenko-Pastur distribution; for T equal weights 1 it is
(sqrt(T) + sqrt(k))^2. The norm is sqrt(max a)-Lipschitz in Xi, so by Gaussian concentration

    P( ||N||^2 > floor ) <= p,   floor = ( sqrt(edge) + sqrt(2 ln(1/p) max a) )^2.

If there are n vectors per round (the rows of a layer), every a_j counts n times. By Weyl's inequality
sigma_(r+1)(signal + noise) <= sigma_1(noise) for a signal of rank r. So with probability 1 - p at most r directions
are above the floor, and none if there is only noise. This is a theorem for a fixed S. New probes in every round spread
the noise over more directions, which lowers its largest eigenvalue. If the sketch is chosen by the PCA itself, it
depends on its own past noise; there is no proof for this case, and the tests simulate that closed loop. The
probability p is for one evaluation of the floor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Rounds with less than this share of the last round's weight are dropped: they hardly change the floor.
_FORGOTTEN = 1e-8


def noise_floor(
    weights: NDArray[np.float64], width: int, vectors: int = 1, failure: float = 1e-3
) -> float:
    """Return the floor for the squared singular values of A (`weights`), k = `width` and n = `vectors` vectors per
    round. Noise alone exceeds it with probability `failure` (p) at most."""
    if not 0.0 < failure < 1.0:
        raise ValueError(f"The failure probability must be between 0 and 1, not {failure}.")
    peak = float(weights.max(initial=0.0))
    if peak <= 0.0:
        return 0.0
    margin = math.sqrt(2.0 * math.log(1.0 / failure))
    return peak * (math.sqrt(_edge(weights / peak, width, vectors)) + margin) ** 2


class NoiseFloor:
    """Tracks the noise in the vectors that a `StreamingPCA` with the same `decay` receives. Call `update` once for
    each update of the PCA.

    `momentum` is beta if the PCA receives m_t = beta m_(t-1) + (1 - beta) g_t (the raw moment, starting from zero,
    without bias correction), and 0 if it receives g_t. `vectors` is the number of vectors per round. With momentum,
    computing the floor takes O(T^3) for T remembered rounds.
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
        """Add a round. Its vectors were desketched from `width` numbers each, with noise of standard deviation
        `deviation` on every number (that of the mean, if the mean was desketched)."""
        if not (0.0 <= deviation < math.inf and width >= 1):
            raise ValueError(f"No such noise: {deviation} on a sketch of {width} numbers.")
        self._rounds.append((deviation, width))
        if self._decay ** (len(self._rounds) - 1) < _FORGOTTEN:
            del self._rounds[0]

    def value(self, failure: float = 1e-3) -> float:
        """Return the current floor for the eigenvalues. Noise alone exceeds it with probability `failure` at most.

        Rounds with sketches of different sizes (warm-up rounds are not compressed) are bounded separately, and the
        bounds are added.
        """
        widths = {width for _, width in self._rounds}
        floors = [
            noise_floor(self._weights(width), width, self._vectors, failure / len(widths))
            for width in widths
        ]
        if self._momentum > 0.0:
            # One vector contains noise of rounds with different sizes, so norms add up, not their squares.
            return sum(math.sqrt(floor) for floor in floors) ** 2
        return sum(floors)

    def state_dict(self) -> list[tuple[float, int]]:
        """Return what `load_state_dict` takes: deviation and width of every remembered round."""
        return list(self._rounds)

    def load_state_dict(self, state: Sequence[tuple[float, int]]) -> None:
        """Continue where `state_dict` was called."""
        self._rounds = [(float(deviation), int(width)) for deviation, width in state]

    def _weights(self, width: int) -> NDArray[np.float64]:
        """Return the squared singular values of A, for the rounds with sketches of this width."""
        ages = np.arange(len(self._rounds))[::-1].astype(np.float64)
        mine = np.array([k == width for _, k in self._rounds])
        deviations = np.array([deviation for deviation, _ in self._rounds])[mine]
        if self._momentum == 0.0:
            return deviations**2 * self._decay ** ages[mine]
        # Entry (s, t): how much of the noise of round s is in the vector of round t >= s.
        delay = ages[mine, None] - ages[None, :]
        beta = self._momentum
        averaging = np.where(delay >= 0, (1.0 - beta) * beta ** np.maximum(delay, 0.0), 0.0)
        matrix = deviations[:, None] * averaging * self._decay ** (ages[None, :] / 2.0)
        return np.linalg.eigvalsh(matrix @ matrix.T).clip(min=0.0)


def _edge(weights: NDArray[np.float64], width: int, vectors: int) -> float:
    """Return min over 0 < x < 1 of k / x + n sum a / (1 - a x), for weights with maximum 1. The function is convex; it
    is minimised by golden-section search.

    Every x gives a valid bound, so the search need not be exact.
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


def keep_count(eigenvalues: Tensor, count: int) -> int:
    """Return at most `count` directions."""
    return min(count, len(eigenvalues))


def keep_energy(eigenvalues: Tensor, fraction: float) -> int:
    """Return DOME's energy rule: the smallest number of directions with this fraction of the sum of the eigenvalues.

    Eigenvalues of sum g g^T are already energies (squared norms). The paper's text squares them once more.
    """
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"The fraction of the energy must be between 0 and 1, not {fraction}.")
    sums = torch.cumsum(eigenvalues.double(), dim=0)
    if len(sums) == 0 or float(sums[-1]) <= 0.0:
        return 0
    reached = int((sums < fraction * sums[-1]).sum())
    return min(reached + 1, len(sums)) if fraction > 0.0 else 0


def keep_above(eigenvalues: Tensor, floor: float) -> int:
    """Return the directions above the noise floor (`sketching.noise_floor`), which noise alone does not explain."""
    return int((eigenvalues > floor).sum())
