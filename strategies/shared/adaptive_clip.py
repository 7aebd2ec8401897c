"""Adaptive clipping (Andrew, Thakkar, McMahan, Ramaswamy 2021): the clip follows a quantile of the rows' norms, which
is paid for.

A device makes of every row x, with the clip C of the round and the weight kappa,

    (clip(x, C), kappa C (b - 1/2)),    b = 1 if |x| <= C, else 0,

one more number than before. (A row of zeros says nothing: its count is 0.) The sum of the last numbers tells the
server, under the noise of the round, the fraction of the rows that fitted; the next round's clip is C exp(-rate
(fraction - quantile)), so that it comes to rest where `quantile` of the rows fit.

Formal guarantees: nothing new is released. The longer row has a norm of at most C sqrt(1 + kappa^2/4) (clip(x, C) has
one of at most C, and the last number is kappa C / 2 in size), and that is the bound of the round's mechanism: the sum
is the release that it always is, of one number more. A unit that is zeroed out has the row 0, which lies no further
away. C is a function of earlier releases, so it is public. What is seen does not depend on it: noise, and under masks
the resolution, follow it (`Mechanism.with_bound`), so every round is the same release.

A device takes C from the mechanism that its guard has judged, and that mechanism bounds the longer row once more,
whatever was made of it: a server that lies about kappa or C gains nothing. The cost is sqrt(1 + kappa^2/4) times the
noise at the same C; the fraction is read with a standard deviation of z sqrt(1 + kappa^2/4) / (kappa n), where z is the
noise multiplier of the sum and n the number of its rows.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from fedsketch.conf import Config
from fedsketch.conf.schema import ADAPTIVE, AdaptiveClipConfig
from fedsketch.privacy.mechanisms.clipping import clip_rows
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.strategies.shared.messages import Aggregate, Broadcast

_CLIP = "clip"
_DENSE = 1 << 24  # numbers at a time of rows that were factors
_BELOW = 1.0 - 2.0**-20  # so that rounding to float32 takes no row over its bound


class FixedClip:
    """The server's half where privacy.clip is a number, or there is none: nothing is added to an upload."""

    extra = 0  # numbers that travel besides what a strategy sends

    def __init__(self, bound: float | None) -> None:
        self.bound = bound  # of a row as it leaves, in the first round

    def of_round(self, mechanism: Mechanism) -> Mechanism:
        """A strategy's mechanism as the next round needs it."""
        return mechanism

    def read(self, aggregate: Aggregate, units: float) -> Aggregate:
        """What is left of a sum over so many rows when the clip has taken its part."""
        return aggregate

    def metrics(self) -> dict[str, float]:
        """What the last round told."""
        return {}

    def facts(self, noise_std: float, units: float) -> dict[str, str]:
        """What a plan tells of it, for sums over so many rows with this noise in each number."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class AdaptiveClip(FixedClip):
    """The server's half of adaptive clipping."""

    extra = 1

    def __init__(self, settings: AdaptiveClipConfig) -> None:
        super().__init__(settings.start * stretch(settings.weight))
        self._settings = settings
        self.clip = settings.start
        self._told: dict[str, float] = {}

    def of_round(self, mechanism: Mechanism) -> Mechanism:
        return mechanism.with_bound(self.clip * stretch(self._settings.weight))

    def read(self, aggregate: Aggregate, units: float) -> Aggregate:
        """Takes the counts off, and moves the clip: only by a factor of `most` away from where it started."""
        settings = self._settings
        count = float(aggregate.sum[-1]) / (settings.weight * self.clip)
        fraction = min(1.0, max(0.0, 0.5 + count / units))
        self._told = {_CLIP: self.clip, "clip_fraction": fraction}
        moved = self.clip * math.exp(-settings.rate * (fraction - settings.quantile))
        self.clip = min(settings.start * settings.most, max(settings.start / settings.most, moved))
        parts = tuple(replace(part, sum=part.sum[:-1]) for part in aggregate.parts)
        return replace(aggregate, sum=aggregate.sum[:-1], parts=parts)

    def metrics(self) -> dict[str, float]:
        return dict(self._told)

    def facts(self, noise_std: float, units: float) -> dict[str, str]:
        settings = self._settings
        cost = stretch(settings.weight)
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
    """The server's half for a run of this configuration."""
    privacy = config.privacy
    if privacy.clip == ADAPTIVE:
        return AdaptiveClip(privacy.adaptive)
    return FixedClip(privacy.fixed_clip)


def with_counts(rows: torch.Tensor, broadcast: Broadcast) -> torch.Tensor:
    """The device's half: rows as the round's mechanism takes them, each clipped and with its count where the clip is
    adaptive."""
    privacy, bound = broadcast.config.privacy, broadcast.mechanism.bound
    if privacy.clip != ADAPTIVE or bound is None:
        return rows
    weight = privacy.adaptive.weight
    clip = bound / stretch(weight)
    clipped = clip_rows(rows, clip)
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    size = 0.5 * weight * clip * _BELOW
    counts = torch.where(norms <= clip, size, -size) * (norms > 0)
    return torch.cat([clipped, counts[:, None].to(rows.dtype)], dim=1)


def counted(block: Rows, broadcast: Broadcast) -> Iterator[Rows]:
    """The same for a block of rows, in smaller ones where counts make them dense."""
    if broadcast.config.privacy.clip != ADAPTIVE:
        yield block
        return
    for part in block.blocks(_DENSE // block.width):
        yield Rows.of(with_counts(torch.from_numpy(part.dense()), broadcast))


def stretch(weight: float) -> float:
    """The norm of a row with its count, over the clip."""
    return math.sqrt(1.0 + weight**2 / 4.0)
