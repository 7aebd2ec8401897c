"""Noise inside of local training: Poisson batches, clipped rows, a noised sum in every step. What leaves is
post-processing.

A device makes T steps. In each of them every example is drawn with probability q, independently and by the operating
system's randomness; the drawn examples' rows are clipped to C and added up; the sum gets N(0, (sigma C)^2) per number;
and the model moves along the sum over the expected batch B, with momentum if asked for. The sum of all moves is the
upload: nothing else of the data is in it, so it carries no further noise. An empty batch still gets its noise and its
step. A row that is not finite counts as zero.

q and B are public and the same on every device, whatever number of examples it holds. If each device took a batch of
the same size, its rate would tell how many examples it has, through what its ledger refuses. So every example of every
device has the same guarantee.

Formal guarantee of one round, per example, under zero-out adjacency, against whoever sees the upload and all models,
the server included, and whoever works with it: T releases of a Gaussian of multiplier sigma, Poisson-sampled with rate
q. The draw counts against the server, because the device makes it and tells nobody. Other devices' noise is not
counted, so masks, dropouts and colluders change nothing. Per client (all examples at once) the draw hides nothing, and
the multiplier is sigma over the largest number of rows. The Gaussians are floating-point numbers, which is not a
mathematically exact mechanism (`randomness`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    DrawnBy,
    Gaussian,
    NoSampling,
    Poisson,
    Release,
    Sampling,
    Unit,
)
from fedsketch.privacy.mechanisms.gaussian import add_gaussian
from fedsketch.privacy.mechanisms.mechanism import (
    Mechanism,
    RingShape,
    UnsoundMechanismError,
    Upload,
)
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.sums import into_ring, real_sum, ring_sum
from fedsketch.privacy.mechanisms.trainee import LocalHalf, Trainee
from fedsketch.privacy.mechanisms.unsafe import UnsafeUpdateError

_RINGS = range(16, 65)
_MOST = 2**31  # steps, rows, clients and numbers: beyond any use, and floats stay exact
_TAIL = 7.0  # standard deviations: a number of an upload lies beyond with probability 3e-12


@dataclass(frozen=True, kw_only=True)
class NoisyTraining(Mechanism):
    """Clip C of a row, sigma (`local_multiplier`), rate q and steps T; the expected batch, learning rate and momentum
    of a step.

    An upload has `dim` numbers: integers of `bits` bits of which `clients` are added up, or real numbers where `bits`
    is 0.
    """

    kind: ClassVar[str] = "noisy_training"
    takes_rows: ClassVar[bool] = False

    clip: float
    local_multiplier: float
    rate: float
    steps: int
    batch: float
    lr: float
    momentum: float = 0.0
    dim: int
    bits: int = 0
    clients: int = 1

    # ------------------------------------------------------------------ on the device
    @property
    def bound(self) -> float:
        return self.clip

    @property
    def local_steps(self) -> int:
        return self.steps

    def run(self, half: LocalHalf, stream: Stream, round: int) -> Upload:
        import torch

        trainee = half.trainee()
        if trainee.examples > self.rows:
            raise UnsafeUpdateError(f"the mechanism is for at most {self.rows} examples.")
        velocity, total = np.zeros(trainee.width), np.zeros(trainee.width)
        for _ in range(self.steps):
            noised = self.noised_sum(trainee, stream)
            velocity = self.momentum * velocity + noised / self.batch
            total += self.lr * velocity
            trainee.step(torch.from_numpy(self.lr * velocity))
        return self._encoded(trainee.upload(torch.from_numpy(total)).cpu().numpy())

    def noised_sum(self, trainee: Trainee, stream: Stream) -> NDArray[np.float64]:
        """One step's release: a Poisson batch, its rows clipped and added up, and the noise."""
        import torch

        from fedsketch.privacy.mechanisms.clipping import clip_rows, finite_rows

        drawn = np.flatnonzero(stream.uniform(trainee.examples) < self.rate)
        total, rows = torch.zeros(trainee.width, dtype=torch.float64), 0
        for block in trainee.rows(torch.from_numpy(drawn)) if len(drawn) else ():
            rows += len(block)
            total += clip_rows(finite_rows(block), self.clip).sum(dim=0, dtype=torch.float64).cpu()
        if rows != len(drawn):
            raise UnsafeUpdateError("the local step made another number of rows than were drawn.")
        return add_gaussian(total.numpy(), self.local_multiplier * self.clip, stream)

    def release_nothing(self, stream: Stream) -> Upload:
        """As if every row had been zero: the law of the noise in an upload, so that silence looks like a device without
        signal."""
        if self.ring is None:
            raise self._unmaskable()
        return self._encoded(add_gaussian(np.zeros(self.dim), self._upload_std, stream))

    def _encoded(self, vector: NDArray[Any]) -> Upload:
        if vector.shape != (self.dim,):
            raise UnsafeUpdateError(
                f"the mechanism is for {self.dim} numbers; the local step made {vector.shape}."
            )
        if not self.bits:
            return Upload(vector.astype(np.float32))
        cut = np.clip(vector, -self.limit, self.limit)
        return Upload(into_ring(np.rint(cut * self.scale).astype(np.int64), self.bits))

    # ------------------------------------------------------------------ on the server
    def total(self, vectors: Sequence[NDArray[Any]], round: int) -> NDArray[np.float64]:
        return ring_sum(vectors, self.bits) / self.scale if self.bits else real_sum(vectors)

    @property
    def share(self) -> float:
        return self._upload_std**2

    def noise_std(self, variance: float) -> float:
        return math.sqrt(variance)

    @property
    def _upload_std(self) -> float:
        """The noise of all steps that is in a number of an upload; in the models between the steps it is as well."""
        per_step = self.lr * self.local_multiplier * self.clip / self.batch / (1.0 - self.momentum)
        # Momentum m carries the noise of a step into those after it: (1 - m^j) / (1 - m) of it into the upload, with j
        # steps to go.
        m, last = self.momentum, self.momentum**self.steps
        squares = self.steps - 2 * m * (1 - last) / (1 - m) + m**2 * (1 - last**2) / (1 - m**2)
        return per_step * math.sqrt(max(squares, 0.0))

    @property
    def ring(self) -> RingShape | None:
        return RingShape(self.dim, self.bits) if self.bits else None

    @property
    def limit(self) -> float:
        """Where a number of an upload is cut, so that a sum never wraps around: beyond the largest batch to be expected
        and its noise."""
        expected = self.rate * self.rows
        largest = min(float(self.rows), expected + _TAIL * math.sqrt(expected) + _TAIL)
        signal = self.lr * self.steps * self.clip * largest / self.batch / (1.0 - self.momentum)
        return signal + _TAIL * self._upload_std

    @property
    def scale(self) -> float:
        """Integers per unit: as many as fit. Beyond the 53 bits of a double there is nothing to gain."""
        return (2.0 ** (min(self.bits, 53) - 1) - self.clients) / (self.clients * self.limit)

    @property
    def reach(self) -> float:
        return self.lr * self.steps * self.clip / (1.0 - self.momentum)

    def facts(self) -> dict[str, str]:
        facts = {
            "local steps": f"{self.steps}, each example drawn with probability {self.rate:.4g}"
        }
        if self.bits:
            facts["ring"] = f"{self.bits} bits, scale {self.scale:.6g}"
        return facts

    # ------------------------------------------------------------------ for the accountant
    def seen(
        self, variance: float, protected: Unit, sampling: Sampling, adversary: Adversary
    ) -> Release:
        """Neither the noise in the sum nor the draw of the cohort counts."""
        law = Gaussian(self.noise_multiplier(variance, protected))
        own = Poisson(self.rate, Unit.EXAMPLE, DrawnBy.DEVICE)
        draw = own if protected is Unit.EXAMPLE else NoSampling()
        return Release(law, draw, Adjacency.ZERO_OUT, protected, adversary, self.steps)

    def noise_multiplier(self, variance: float, protected: Unit) -> float:
        """Of one step, on one device."""
        return self.local_multiplier / self.weight(protected)

    # ------------------------------------------------------------------ on the wire
    def check(self) -> None:
        if self.unit is not Unit.EXAMPLE:
            raise UnsoundMechanismError("Noise inside of training protects examples.")
        for name in ("clip", "rate", "batch", "lr"):
            if not getattr(self, name) > 0:
                raise UnsoundMechanismError(f"The mechanism has no sound {name!r}.")
        for name in ("steps", "rows", "dim", "clients"):
            if not 1 <= getattr(self, name) < _MOST:
                raise UnsoundMechanismError(f"The mechanism has no sound {name!r}.")
        for name, sound in {
            "rate": self.rate <= 1,
            "momentum": self.momentum < 1,
            "bits": self.bits == 0 or self.bits in _RINGS,
        }.items():
            if not sound:
                raise UnsoundMechanismError(f"The mechanism has no sound {name!r}.")
        if not math.isfinite(self.limit) or (self.bits and not 0 < self.scale < math.inf):
            raise UnsoundMechanismError("The round's sum does not fit its ring, or any number.")

    def check_round(self, ring: RingShape, most: int, drops: int, colluders: int) -> None:
        if self.ring is None:
            raise self._unmaskable()
        for name, value, wanted in (
            ("dim", self.dim, ring.dim),
            ("bits", self.bits, ring.bits),
            ("clients", self.clients, most),
        ):
            if value != wanted:
                raise UnsoundMechanismError(
                    f"The round's mechanism is for {name} = {value}, the round for {wanted}."
                )
