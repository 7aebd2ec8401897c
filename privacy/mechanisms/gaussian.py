"""Each device adds Gaussian noise to real numbers. For servers that may see single uploads; with noise 0 there is no
privacy.

Formal guarantee of one upload, against everyone who sees it, under zero-out adjacency: the L2 norm of each row is at
most the clip, and the sum of the rows carries N(0, (local_multiplier * clip)^2) in every number, drawn from the
operating system's randomness. Floating-point Gaussians are not a mathematically exact mechanism (see `randomness`).
Under secure aggregation the noise is exact (`skellam_ring`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsketch.errors import UnsafeUpdateError, UnsoundMechanismError
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Gaussian,
    Release,
    SecretDraw,
    Unit,
)
from fedsketch.privacy.mechanisms.encoding import real_sum
from fedsketch.privacy.mechanisms.mechanism import Mechanism, Upload
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.rows import Rows

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Mechanism):
    """`clip` bounds the L2 norm of a row (None: no bound). `local_multiplier` is the standard deviation of one
    device's noise divided by the clip. Variances are in units of clip^2."""

    kind: ClassVar[str] = "gaussian"
    can_protect_sum: ClassVar[bool] = True

    local_multiplier: float
    clip: float | None = None

    @property
    def bound(self) -> float | None:
        return self.clip

    def protect(self, rows: torch.Tensor, stream: Stream, round: int) -> Upload:
        return Upload(self._noised(rows, 1, stream).astype(np.float32))

    def protect_sum(
        self, rows: torch.Tensor | Sequence[Rows], counts: Sequence[int], stream: Stream, round: int
    ) -> Upload:
        """Noise the sum of all rows by one draw: a sum of independent Gaussians is a Gaussian, and their variances add
        up."""
        assert not isinstance(rows, Sequence)  # `Rows` are only for mechanisms that round sums
        return Upload(self._noised(rows, len(counts), stream))

    def _noised(self, rows: torch.Tensor, clients: int, stream: Stream) -> NDArray[np.float64]:
        """Return the sum of the clipped rows of this many devices, with the noise of all of them."""
        import torch

        from fedsketch.privacy.mechanisms.clipping import clip_rows

        if len(rows) > clients * self.rows:
            raise UnsafeUpdateError(f"the mechanism is for at most {self.rows} rows.")
        if self.clip is not None:
            rows = clip_rows(rows, self.clip)
        # A sum of finite float32 numbers cannot overflow in float64.
        total = rows.sum(dim=0, dtype=torch.float64)
        if not bool(torch.isfinite(total).all() or torch.isfinite(rows).all()):
            raise UnsafeUpdateError(
                "the update contains nan or inf: lower the learning rate or check the data."
            )
        return add_gaussian(
            total.cpu().numpy(), self.noise_std(clients * self.variance_per_device), stream
        )

    def with_bound(self, bound: float) -> GaussianNoise:
        return replace(self, clip=bound)

    def total(self, vectors: Sequence[NDArray[Any]], round: int) -> NDArray[np.float64]:
        return real_sum(vectors)

    def noise_alone(self, dim: int, variance: float, stream: Stream) -> NDArray[np.float64]:
        return add_gaussian(np.zeros(dim), self.noise_std(variance), stream)

    @property
    def variance_per_device(self) -> float:
        return self.local_multiplier**2

    def noise_std(self, variance: float) -> float:
        return 0.0 if self.clip is None else self.clip * math.sqrt(variance)

    def release_to(
        self, variance: float, protected: Unit, sampling: SecretDraw, adversary: Adversary
    ) -> Release:
        multiplier = self.noise_multiplier(variance, protected)
        # Round down to 12 digits. Cohorts of different sizes that should have equal noise then give the same release.
        rounded = float(f"{multiplier * (1 - 1e-11):.11e}")
        return Release(Gaussian(rounded), sampling, Adjacency.ZERO_OUT, protected, adversary)

    def noise_multiplier(self, variance: float, protected: Unit) -> float:
        return math.sqrt(variance) / self.weight(protected)

    def check(self) -> None:
        if self.rows < 1 or self.clip == 0:
            name = "clip" if self.clip == 0 else "rows"
            raise UnsoundMechanismError(f"The mechanism has an invalid {name!r}.")


def add_gaussian(vector: NDArray[np.floating], std: float, stream: Stream) -> NDArray[np.float64]:
    """Return vector + N(0, std^2) in every number, in float64, as a new array. Nothing is drawn if `std` is 0."""
    if not (std >= 0.0 and math.isfinite(std)):
        raise ValueError(f"a standard deviation must be finite and not negative, not {std}.")
    values = np.asarray(vector, dtype=np.float64)
    if std == 0.0:
        return values.copy()
    return values + std * stream.gaussian(values.size).reshape(values.shape)
