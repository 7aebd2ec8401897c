"""Adaptive clipping (Andrew, Thakkar, McMahan, Ramaswamy 2021): the clip follows a quantile of the norms of the rows.

A row is the update of one privacy unit. With the clip C of the round and the weight kappa (`privacy.adaptive.weight`),
a device turns every row x into

    (clip(x, C), kappa C (b - 1/2)),    b = 1 if |x| <= C, else 0.

The last number is the row's count. (A row of zeros has the count 0.) The sum of the counts, with the noise of the
round, tells the server which fraction of the rows was not longer than C. The next round's clip is C exp(-rate
(fraction - quantile)), so the clip settles where `quantile` of the rows are not clipped.

Formal guarantees: no additional release. With its count a row has a norm of at most C sqrt(1 + kappa^2/4), because
clip(x, C) has a norm of at most C and the count a size of kappa C / 2. This is the bound of the round's mechanism, so
the sum is the usual release with one number more. If a unit is zeroed out, its row is 0, which is not further away. C
is a function of earlier releases, so it is public. What a round reveals does not depend on C, because the noise, and
with secure aggregation the resolution, are proportional to it (`Mechanism.with_bound`). So all rounds are the same
release.

A device takes C from the mechanism that its guard has checked. That mechanism bounds the longer row once more, so a
server that lies about kappa or C gains nothing.

The cost: sqrt(1 + kappa^2/4) times the noise at the same C. The fraction is known up to a standard deviation of z
sqrt(1 + kappa^2/4) / (kappa n), where z is the noise multiplier of the sum and n the number of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from fedsketch.conf import Config
from fedsketch.conf.schema import ADAPTIVE, AdaptiveClipConfig
from fedsketch.privacy.mechanisms.clipping import clip_rows
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.strategies.rounds.messages import Broadcast

if TYPE_CHECKING:
    from fedsketch.strategies.algorithm import Aggregate

_CLIP = "clip"
_DENSE = 1 << 24  # how many numbers are made at a time from rows that were given as factors
_BELOW = 1.0 - 2.0**-20  # so that rounding to float32 does not push a row above its bound


class FixedClip:
    """The server half if privacy.clip is a number or is not set: nothing is added to an upload."""

    extra = 0  # how many numbers an upload has besides those of the strategy

    def __init__(self, bound: float | None) -> None:
        self.bound = bound  # the largest norm of an uploaded row, in the first round

    def of_round(self, mechanism: Mechanism) -> Mechanism:
        """Return a strategy's mechanism with the bound of the next round."""
        return mechanism

    def read(self, aggregate: Aggregate, units: float) -> Aggregate:
        """Return a sum over this many rows without the numbers that belong to the clip."""
        return aggregate

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last round."""
        return {}

    def facts(self, noise_std: float, units: float) -> dict[str, str]:
        """Return what the run's plan says about the clip, for sums over this many rows with this noise in each
        number."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class AdaptiveClip(FixedClip):
    """The server half of adaptive clipping."""

    extra = 1

    def __init__(self, settings: AdaptiveClipConfig) -> None:
        super().__init__(settings.start * stretch_by_count(settings.weight))
        self._settings = settings
        self.clip = settings.start
        self._metrics: dict[str, float] = {}

    def of_round(self, mechanism: Mechanism) -> Mechanism:
        return mechanism.with_bound(self.clip * stretch_by_count(self._settings.weight))

    def read(self, aggregate: Aggregate, units: float) -> Aggregate:
        """Remove the counts, and move the clip. It stays within a factor of `most` of its start."""
        settings = self._settings
        count = float(aggregate.sum[-1]) / (settings.weight * self.clip)
        fraction = min(1.0, max(0.0, 0.5 + count / units))
        self._metrics = {_CLIP: self.clip, "clip_fraction": fraction}
        moved = self.clip * math.exp(-settings.rate * (fraction - settings.quantile))
        self.clip = min(settings.start * settings.most, max(settings.start / settings.most, moved))
        parts = tuple(replace(part, sum=part.sum[:-1]) for part in aggregate.parts)
        return replace(aggregate, sum=aggregate.sum[:-1], parts=parts)

    def metrics(self) -> dict[str, float]:
        return dict(self._metrics)

    def facts(self, noise_std: float, units: float) -> dict[str, str]:
        settings = self._settings
        cost = stretch_by_count(settings.weight)
        deviation = noise_std / (settings.weight * self.clip * units)
        return {
            "clip": f"adaptive, from {settings.start:g} to the {settings.quantile:g} quantile of norms",
            "cost of the clip": f"{100 * (cost - 1):.2g} % more noise",
            "fraction of norms below it": f"known up to a standard deviation of {deviation:.2g} a round",
        }

    def state_dict(self) -> dict[str, Any]:
        return {_CLIP: self.clip}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clip = float(state[_CLIP])


def clipping_of(config: Config) -> FixedClip:
    """Return the server half for a run of this configuration."""
    privacy = config.privacy
    if privacy.clip == ADAPTIVE:
        return AdaptiveClip(privacy.adaptive)
    return FixedClip(privacy.fixed_clip)


def with_counts(rows: torch.Tensor, broadcast: Broadcast) -> torch.Tensor:
    """Return the device half: return the rows for the round's mechanism. If the clip is adaptive, each is clipped and
    has its count."""
    privacy, bound = broadcast.config.privacy, broadcast.mechanism.bound
    if privacy.clip != ADAPTIVE or bound is None:
        return rows
    weight = privacy.adaptive.weight
    clip = bound / stretch_by_count(weight)
    clipped = clip_rows(rows, clip)
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    size = 0.5 * weight * clip * _BELOW
    counts = torch.where(norms <= clip, size, -size) * (norms > 0)
    return torch.cat([clipped, counts[:, None].to(rows.dtype)], dim=1)


def counted(block: Rows, broadcast: Broadcast) -> Iterator[Rows]:
    """Do the same for a block of rows. With counts, rows cannot stay factors, so they come in smaller dense blocks."""
    if broadcast.config.privacy.clip != ADAPTIVE:
        yield block
        return
    for part in block.blocks(_DENSE // block.width):
        yield Rows.of(with_counts(torch.from_numpy(part.dense()), broadcast))


def stretch_by_count(weight: float) -> float:
    """Return the largest norm of a row with its count, divided by the clip."""
    return math.sqrt(1.0 + weight**2 / 4.0)
