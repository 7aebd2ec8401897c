"""What the known noise alone would give: the eigenvalue above which a direction is signal.

The PCA accumulates C = sum_t decay^(T-t) m_t m_t^T from desketched vectors g_t = S_t y_t (or their moving average m_t), and y_t
carries Gaussian noise xi_t of known standard deviation s_t on each of its k coordinates, k the columns of S_t. The noise part of C is
N N^T with N = S Xi A: Xi has independent N(0, 1) entries, k x (vectors), and A holds s_t, the averaging and sqrt(decay^(T-t)).
For a fixed S, Chevet's inequality and Gaussian concentration (the norm is ||A||-Lipschitz in Xi) give, at any size,

    P( ||N|| > ||A||_F + ||A|| (sqrt(k) + sqrt(2 ln(1/p))) ) <= p,

and the floor is the square of that: for equal weights s^2 (sqrt(T) + sqrt(k) + 3.7)^2 at p = 1e-3, the edge of the Marchenko-Pastur law plus a
margin. By Weyl's inequality sigma_(r+1)(signal + noise) <= sigma_1(noise) for a signal of rank r, so with probability 1 - p at most r directions lie
above the floor: none, if there is only noise. All vectors in one subspace is the worst case among sketches that do not look at the noise (fresh
probes spread it); for sketches that follow the PCA itself the tests simulate the closed loop. Per call; T rounds have T chances.

Without averaging ||A||_F^2 = sum_t n_t decay^(T-t) s_t^2 for n_t vectors a round (the rows of a layer), and ||A||^2 is the largest decay^(T-t) s_t^2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


def noise_floor(energy: float, peak: float, width: int, failure: float = 1e-3) -> float:
    """(||A||_F + ||A|| (sqrt(k) + sqrt(2 ln(1/failure))))^2 from energy = ||A||_F^2, peak = ||A||^2, width = k."""
    if not 0.0 < failure < 1.0:
        raise ValueError(f"The failure probability is between 0 and 1, not {failure}.")
    margin = math.sqrt(2.0 * math.log(1.0 / failure))
    return (math.sqrt(energy) + math.sqrt(peak) * (math.sqrt(width) + margin)) ** 2


@dataclass
class _Group:
    """The noise of all sketches of one size."""

    energy: float = 0.0  # ||A||_F^2
    peak: float = 0.0  # ||A||^2, before the gain of the moving average
    variance: float = 0.0  # of the moving average, per coordinate


class NoiseFloor:
    """Follows the noise that a `StreamingPCA` of the same `decay` has been fed, one `update` for each of its own.

    `momentum` is beta if the PCA is fed m_t = beta m_(t-1) + (1 - beta) g_t (the raw moment, not the bias-corrected one);
    0 if it is fed g_t. Sketches of different sizes (warm-up rounds sense all d) are added as norms, which bounds the norm of the sum.
    """

    def __init__(self, decay: float, momentum: float = 0.0) -> None:
        if not 0.0 < decay <= 1.0 or not 0.0 <= momentum < math.sqrt(decay):
            raise ValueError(
                f"The noise floor needs 0 < decay <= 1 and 0 <= momentum < sqrt(decay), not {decay} "
                f"and {momentum}: let the momentum forget faster than the sketch."
            )
        self._decay = decay
        self._momentum = momentum
        self._groups: dict[int, _Group] = {}

    def update(self, deviation: float, width: int, vectors: int = 1) -> None:
        """A round whose sketch of `width` numbers per vector had noise `deviation` (of what was desketched: the mean's) on each."""
        if deviation < 0.0 or width < 1 or vectors < 1:
            raise ValueError(f"No such noise: {deviation} on {vectors} x {width} numbers.")
        self._groups.setdefault(width, _Group())
        for k, group in self._groups.items():
            fresh = deviation**2 if k == width else 0.0
            beta = self._momentum
            group.variance = beta**2 * group.variance + (1.0 - beta) ** 2 * fresh
            group.energy = self._decay * group.energy + vectors * group.variance
            group.peak = max(self._decay * group.peak, fresh)

    def value(self, failure: float = 1e-3) -> float:
        """The floor for the eigenvalues now, exceeded by noise alone with at most this probability."""
        # The averaging is a Toeplitz matrix with entries (1 - beta) beta^j; weighted by decay^(-j/2) its norm
        # is at most the sum of them (Young's inequality).
        gain = (1.0 - self._momentum) / (1.0 - self._momentum / math.sqrt(self._decay))
        norm = sum(
            math.sqrt(
                noise_floor(group.energy, gain**2 * group.peak, k, failure / len(self._groups))
            )
            for k, group in self._groups.items()
        )
        return norm**2

    def state_dict(self) -> dict[str, list[float]]:
        return {str(k): [g.energy, g.peak, g.variance] for k, g in self._groups.items()}

    def load_state_dict(self, state: Mapping[str, list[float]]) -> None:
        self._groups = {int(k): _Group(*numbers) for k, numbers in state.items()}
