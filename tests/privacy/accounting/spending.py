"""What an accountant states after one kind of release."""

from __future__ import annotations

from collections.abc import Callable

from fedsketch.privacy.accounting.accountant import Accountant, Spent
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Gaussian,
    NoSampling,
    Release,
    SecretDraw,
    Unit,
)

MakeRelease = Callable[..., Release]
DELTA = 1e-5


def spent_by(release: Release, count: int = 1, *, tight: bool = True) -> Spent:
    accountant = Accountant(DELTA)
    accountant.record(release, count)
    return accountant.epsilon(tight=tight)


def gaussian_release(z: float, sampling: SecretDraw | None = None) -> Release:
    return Release(
        Gaussian(z), sampling or NoSampling(), Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.MODEL
    )
