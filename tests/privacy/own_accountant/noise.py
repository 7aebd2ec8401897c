"""The laws of noise: the loss between two mixtures of shifted copies of one noise, on a line.

A mixture is a list of (weight, centre). Everything that an adversary can see of a sampled cohort with worst data is
such a pair: which members were drawn decides the centre.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ive, ndtr

from tests.privacy.own_accountant.losses import Floats, Loss, rounded_down

Mixture = Sequence[tuple[float, float]]
_REACH = 9.0  # standard deviations: beyond lies 2.3e-19
_FAR_OUT = 1e-15  # of any law here that lies outside of what is looked at
_LARGE = 1e6  # a variance; above 1e9 scipy gives up


def gaussian_loss(p: Mixture, q: Mixture, step: float) -> Loss:
    """The loss of P against Q for Gaussian noise of deviation 1.

    The line is cut into cells, and an output is known by its cell: that shows less, so the loss of a cell bounds from
    below. Within a cell the loss moves by less than its width times (largest - smallest centre): its derivative is the
    difference of two means of centres, those that x suggests under P and under Q.
    """
    centres = [centre for _, centre in (*p, *q)]
    span = max(max(centres) - min(centres), 1e-3)
    width = step / span
    edges = np.arange(min(centres) - _REACH, max(centres) + _REACH + width, width)
    cells_p, cells_q = _gaussian_cells(p, edges), _gaussian_cells(q, edges)
    losses = np.log(cells_p) - np.log(cells_q)
    return rounded_down(losses, cells_p, step, slack=width * span, missing=_FAR_OUT)


def _gaussian_cells(mixture: Mixture, edges: Floats) -> Floats:
    total = np.zeros(len(edges) - 1)
    for weight, centre in mixture:
        # From the nearer end of the line, where nothing cancels.
        middle = int(np.searchsorted(edges, centre))
        left, right = edges[: middle + 1] - centre, edges[middle:] - centre
        total += weight * np.concatenate([np.diff(ndtr(left)), -np.diff(ndtr(-right))])
    return total


def skellam_loss(p: Mixture, q: Mixture, variance: float, step: float) -> Loss:
    """The loss of P against Q for integer noise with P(x) = e^-variance I_x(variance); centres are integers."""
    centres = [int(centre) for _, centre in (*p, *q)]
    # As far out as the largest loss that counts; a Poisson tail is longer than a Gaussian one where the variance is
    # small.
    reach = int(_REACH * np.sqrt(variance) + 40.0)
    x = np.arange(min(centres) - reach, max(centres) + reach + 1)
    law = skellam_masses(int(x[-1] - x[0]), variance)  # it is symmetric
    masses_p, masses_q = (
        sum(weight * law[np.abs(x - int(centre))] for weight, centre in mixture)
        for mixture in (p, q)
    )
    seen = (masses_p > 1e-250) & (masses_q > 1e-250)
    losses = np.log(masses_p[seen]) - np.log(masses_q[seen])
    return rounded_down(losses, masses_p[seen], step, slack=1e-9, missing=_FAR_OUT)


def skellam_masses(last: int, variance: float) -> Floats:
    """e^-v I_x(v) for x = 0, ..., `last` and the variance v.

    Large ones by Debye's expansion for large orders (DLMF 10.41.3), with s = sqrt(x^2 + v^2): e^(s - v - x asinh(x/v))
    / sqrt(2 pi s) times 1 + (3 - 5 (x/s)^2) / (24 s). What comes next is at most 0.1 / s^2, below 1e-12 of the whole.
    """
    x = np.arange(last + 1, dtype=np.float64)
    if variance <= _LARGE:
        return np.asarray(ive(x, variance))
    s = np.hypot(x, variance)
    exponents = x**2 / (s + variance) - x * np.arcsinh(x / variance)  # s - v without cancellation
    return np.exp(exponents) / np.sqrt(2 * np.pi * s) * (1 + (3 - 5 * (x / s) ** 2) / (24 * s))
