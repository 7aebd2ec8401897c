"""Gaussian noise of each device on real numbers, for servers that are trusted with single uploads; or, without noise,
for nobody's privacy.

Formal guarantee of one upload, against whoever sees it, under zero-out adjacency: each row is L2-bounded by the clip,
and the sum carries N(0, (noise_multiplier * clip)^2) per number from the operating system's randomness. Floating-point
Gaussians are not a mathematically exact mechanism (`randomness`); under secure aggregation the noise is exact
(`skellam_ring`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Gaussian,
    Release,
    Sampling,
    Unit,
)
from fedsketch.privacy.mechanisms.mechanism import Mechanism, UnsoundMechanismError, Upload
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.privacy.mechanisms.sums import real_sum
from fedsketch.privacy.mechanisms.unsafe import UnsafeUpdateError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Mechanism):
    """L2 clip per row (None: no bound), and this device's own noise: its standard deviation over the clip. Variances
    are over clip^2."""

    kind: ClassVar[str] = "gaussian"
    at_once: ClassVar[bool] = True

    local_multiplier: float
    clip: float | None = None

    @property
    def bound(self) -> float | None:
        return self.clip

    def release(self, rows: torch.Tensor, stream: Stream, round: int) -> Upload:
        return Upload(self._blurred(rows, 1, stream).astype(np.float32))

    def release_sum(
        self, rows: torch.Tensor | Sequence[Rows], counts: Sequence[int], stream: Stream, round: int
    ) -> Upload:
        """Independent Gaussians add up to one of the sum of their variances."""
        assert not isinstance(rows, Sequence)  # factors are for sums that are rounded
        return Upload(self._blurred(rows, len(counts), stream))

    def _blurred(self, rows: torch.Tensor, clients: int, stream: Stream) -> NDArray[np.float64]:
        """The bounded rows of so many devices, and their noise."""
        import torch

        from fedsketch.privacy.mechanisms.clipping import clip_rows

        if len(rows) > clients * self.rows:
            raise UnsafeUpdateError(f"the mechanism is for at most {self.rows} rows.")
        if self.clip is not None:
            rows = clip_rows(rows, self.clip)
        # No sum of finite float32 is too large for float64.
        total = rows.sum(dim=0, dtype=torch.float64)
        if not bool(torch.isfinite(total).all() or torch.isfinite(rows).all()):
            raise UnsafeUpdateError(
                "the update holds nan or inf: lower the learning rate or check the data."
            )
        return add_gaussian(total.cpu().numpy(), self.noise_std(clients * self.share), stream)

    def with_bound(self, bound: float) -> GaussianNoise:
        return replace(self, clip=bound)

    def total(self, vectors: Sequence[NDArray[Any]], round: int) -> NDArray[np.float64]:
        return real_sum(vectors)

    def noise_alone(self, dim: int, variance: float, stream: Stream) -> NDArray[np.float64]:
        return add_gaussian(np.zeros(dim), self.noise_std(variance), stream)

    @property
    def share(self) -> float:
        return self.local_multiplier**2

    def noise_std(self, variance: float) -> float:
        return 0.0 if self.clip is None else self.clip * math.sqrt(variance)

    def seen(
        self, variance: float, protected: Unit, sampling: Sampling, adversary: Adversary
    ) -> Release:
        multiplier = self.noise_multiplier(variance, protected)
        # Down to 12 digits, so that cohorts of different sizes whose noise is meant to be equal are one kind of
        # release.
        rounded = float(f"{multiplier * (1 - 1e-11):.11e}")
        return Release(Gaussian(rounded), sampling, Adjacency.ZERO_OUT, protected, adversary)

    def noise_multiplier(self, variance: float, protected: Unit) -> float:
        return math.sqrt(variance) / self.weight(protected)

    def check(self) -> None:
        if self.rows < 1 or self.clip == 0:
            name = "clip" if self.clip == 0 else "rows"
            raise UnsoundMechanismError(f"The mechanism has no sound {name!r}.")


def add_gaussian(vector: NDArray[np.floating], std: float, stream: Stream) -> NDArray[np.float64]:
    """vector + N(0, std^2) per number, in float64, as a new array. `std` 0 draws nothing."""
    if not (std >= 0.0 and math.isfinite(std)):
        raise ValueError(f"a standard deviation is finite and not negative; {std} is not.")
    values = np.asarray(vector, dtype=np.float64)
    if std == 0.0:
        return values.copy()
    return values + std * stream.gaussian(values.size).reshape(values.shape)
