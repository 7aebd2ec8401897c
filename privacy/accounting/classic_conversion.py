"""Epsilon by the classic conversion from Renyi differential privacy (Mironov 2017, Proposition 3):

    eps = min over alpha of eps(alpha) + ln(1/delta) / (alpha - 1).

It is valid, but looser than what the accountant reports (`renyi.epsilon`, or exact and numerical methods). It is meant
for comparison with papers that use it (`privacy.accounting=paper`).
"""

from __future__ import annotations

import math

import numpy as np

from fedsketch.privacy.accounting.costs import cost
from fedsketch.privacy.accounting.releases import Release
from fedsketch.privacy.accounting.renyi import ORDERS


def classic_epsilon(release: Release, rounds: int, delta: float) -> float:
    """Return epsilon of `rounds` such releases at `delta`."""
    curve = rounds * release.times * cost(release).curve
    return float(np.min(curve - math.log(delta) / (ORDERS - 1.0)))
