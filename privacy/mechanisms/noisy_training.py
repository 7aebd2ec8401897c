"""Noise inside of local training (DP-SGD on the device): Poisson batches, clipped rows, and a noised sum in every
step.

A device makes T steps. In each step every example is drawn independently with probability q, with the operating
system's randomness. The rows (gradients) of the drawn examples are clipped to C and added up, and N(0, (sigma C)^2) is
added to every number of the sum. The model then moves along the sum divided by the expected batch size B, with
momentum if configured. The upload is the sum of all these moves. It is post-processing of the noised sums, so it needs
no further noise. An empty batch still gets noise and a step. A row that is not finite counts as zero.

q and B are public and the same on every device, whatever number of examples a device has. If all devices took batches
of the same size instead, q would depend on the number of examples, and a refusal by the device's ledger would reveal
it. With a common q, every example of every device has the same guarantee.

Formal guarantee of one round, per example, under zero-out adjacency: T Gaussian releases with noise multiplier sigma,
Poisson-sampled with rate q. It holds against everyone who sees the upload and all models, including the server and its
colluders. The sampling counts against the server too, because the device draws and tells nobody. The noise of other
devices is not counted, so masks, dropouts and colluders change nothing. Per client (all of its examples together) the
sampling hides nothing, and the noise multiplier is sigma divided by the largest number of rows. The Gaussians are
floating-point numbers, which is not a mathematically exact mechanism (see `randomness`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsketch.errors import UnsafeUpdateError, UnsoundMechanismError
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    DrawnBy,
    Gaussian,
    NoSampling,
    Poisson,
    Release,
    SecretDraw,
    Unit,
)
from fedsketch.privacy.mechanisms.bound_half import BoundHalf, TrainedModel
from fedsketch.privacy.mechanisms.encoding import real_sum
from fedsketch.privacy.mechanisms.gaussian import add_gaussian
from fedsketch.privacy.mechanisms.mechanism import Mechanism, RingShape, Upload
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.ring_integers import (
    into_ring,
    is_modulus,
    modulus_of,
    ring_sum,
    ring_text,
)

_RINGS = range(16, 65)
_LARGEST_COUNT = 2**31  # of steps, rows, clients and numbers; floats are still exact there
_TAIL = 7.0  # standard deviations; noise exceeds them with probability 3e-12


@dataclass(frozen=True, kw_only=True)
class NoisyTraining(Mechanism):
    """`clip` is C, `local_multiplier` is sigma, `rate` is q, `steps` is T and `batch` is the expected batch size B.
    `lr` and `momentum` are those of a local step.

    An upload has `dim` numbers. If `bits` is 0 they are real numbers. Otherwise they are integers modulo 2^bits, or
    modulo the `prime` below it, and the ring has room for the sum of `clients` uploads.
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
    prime: int = 0

    # ------------------------------------------------------------------ on the device
    @property
    def bound(self) -> float:
        return self.clip

    @property
    def local_steps(self) -> int:
        return self.steps

    def run(self, half: BoundHalf, stream: Stream, round: int) -> Upload:
        import torch

        trained_model = half.trained_model()
        if trained_model.examples > self.rows:
            raise UnsafeUpdateError(f"the mechanism is for at most {self.rows} examples.")
        velocity, total = np.zeros(trained_model.width), np.zeros(trained_model.width)
        for _ in range(self.steps):
            noised = self.noised_sum(trained_model, stream)
            velocity = self.momentum * velocity + noised / self.batch
            total += self.lr * velocity
            trained_model.step(torch.from_numpy(self.lr * velocity))
        return self._encoded(trained_model.upload(torch.from_numpy(total)).cpu().numpy())

    def noised_sum(self, trained_model: TrainedModel, stream: Stream) -> NDArray[np.float64]:
        """Return what one step releases: the sum of the clipped rows of a Poisson batch, plus noise."""
        import torch

        from fedsketch.privacy.mechanisms.clipping import clip_rows, finite_rows

        drawn = np.flatnonzero(stream.uniform(trained_model.examples) < self.rate)
        total, rows = torch.zeros(trained_model.width, dtype=torch.float64), 0
        for block in trained_model.rows(torch.from_numpy(drawn)) if len(drawn) else ():
            rows += len(block)
            total += clip_rows(finite_rows(block), self.clip).sum(dim=0, dtype=torch.float64).cpu()
        if rows != len(drawn):
            raise UnsafeUpdateError("the local step made another number of rows than were drawn.")
        return add_gaussian(total.numpy(), self.local_multiplier * self.clip, stream)

    def protect_nothing(self, stream: Stream) -> Upload:
        """Return an upload with the noise that it would have if every row had been zero. So a device without an update
        looks like a device without signal."""
        if self.ring is None:
            raise self._unmaskable()
        return self._encoded(add_gaussian(np.zeros(self.dim), self._upload_std, stream))

    def _encoded(self, vector: NDArray[Any]) -> Upload:
        if vector.shape != (self.dim,):
            raise UnsafeUpdateError(
                f"the mechanism is for {self.dim} numbers; the local step returned shape {vector.shape}."
            )
        if not self.bits:
            return Upload(vector.astype(np.float32))
        cut = np.clip(vector, -self.limit, self.limit)
        return Upload(into_ring(np.rint(cut * self.scale).astype(np.int64), self._modulus))

    # ------------------------------------------------------------------ on the server
    def total(self, vectors: Sequence[NDArray[Any]], round: int) -> NDArray[np.float64]:
        return ring_sum(vectors, self._modulus) / self.scale if self.bits else real_sum(vectors)

    @property
    def variance_per_device(self) -> float:
        return self._upload_std**2

    def noise_std(self, variance: float) -> float:
        return math.sqrt(variance)

    @property
    def _upload_std(self) -> float:
        """Standard deviation of the noise that all steps together add to each number of an upload. The models between
        the steps contain noise as well; its influence on later gradients is not counted here."""
        per_step = self.lr * self.local_multiplier * self.clip / self.batch / (1.0 - self.momentum)
        # With momentum m the noise of a step also enters later steps. If j steps are left, counting the step itself,
        # the upload contains it (1 - m^j) / (1 - m) times.
        m, last = self.momentum, self.momentum**self.steps
        squares = self.steps - 2 * m * (1 - last) / (1 - m) + m**2 * (1 - last**2) / (1 - m**2)
        return per_step * math.sqrt(max(squares, 0.0))

    @property
    def ring(self) -> RingShape | None:
        return RingShape(self.dim, self.bits, self._modulus) if self.bits else None

    @property
    def _modulus(self) -> int:
        return modulus_of(self.bits, self.prime)

    @property
    def limit(self) -> float:
        """The largest absolute value of a number in an upload. Larger numbers are cut, so that a sum never wraps
        around. It is beyond the signal of the largest batch to be expected plus its noise."""
        expected = self.rate * self.rows
        largest = min(float(self.rows), expected + _TAIL * math.sqrt(expected) + _TAIL)
        signal = self.lr * self.steps * self.clip * largest / self.batch / (1.0 - self.momentum)
        return signal + _TAIL * self._upload_std

    @property
    def scale(self) -> float:
        """Integers per real unit: as many as the ring has room for. More than the 53 bits of a double gain nothing."""
        room = min(self._modulus // 2, 1 << 52) - self.clients
        return room / (self.clients * self.limit)

    @property
    def rounding_cost(self) -> float:
        """The standard deviation of an upload's noise together with that of rounding to integers, divided by that of
        its noise."""
        steps = self.scale * self._upload_std
        return math.hypot(1.0, 0.5 / steps) if steps > 0 else math.inf

    @property
    def reach(self) -> float:
        return self.lr * self.steps * self.clip / (1.0 - self.momentum)

    def facts(self) -> dict[str, str]:
        facts = {
            "local steps": f"{self.steps}, each example drawn with probability {self.rate:.4g}"
        }
        if self.bits:
            facts["ring"] = ring_text(self.bits, self.prime, self.scale)
        return facts

    # ------------------------------------------------------------------ for the accountant
    def release_to(
        self, variance: float, protected: Unit, sampling: SecretDraw, adversary: Adversary
    ) -> Release:
        """Return what the steps of one round release. The guarantee comes from this device's steps alone: `variance`
        and the `sampling` of cohorts are ignored."""
        law = Gaussian(self.noise_multiplier(variance, protected))
        own = Poisson(self.rate, Unit.EXAMPLE, DrawnBy.DEVICE)
        draw = own if protected is Unit.EXAMPLE else NoSampling()
        return Release(law, draw, Adjacency.ZERO_OUT, protected, adversary, self.steps)

    def noise_multiplier(self, variance: float, protected: Unit) -> float:
        """Return that of one step on one device."""
        return self.local_multiplier / self.weight(protected)

    # ------------------------------------------------------------------ on the wire
    def check(self) -> None:
        if self.unit is not Unit.EXAMPLE:
            raise UnsoundMechanismError("Noise inside of training protects examples, not clients.")
        for name in ("clip", "rate", "batch", "lr"):
            if not getattr(self, name) > 0:
                raise UnsoundMechanismError(f"The mechanism has an invalid {name!r}.")
        for name in ("steps", "rows", "dim", "clients"):
            if not 1 <= getattr(self, name) < _LARGEST_COUNT:
                raise UnsoundMechanismError(f"The mechanism has an invalid {name!r}.")
        for name, sound in {
            "rate": self.rate <= 1,
            "momentum": self.momentum < 1,
            "bits": self.bits == 0 or self.bits in _RINGS,
            "prime": is_modulus(self.bits, self.prime),
        }.items():
            if not sound:
                raise UnsoundMechanismError(f"The mechanism has an invalid {name!r}.")
        if not math.isfinite(self.limit) or (self.bits and not 0 < self.scale < math.inf):
            raise UnsoundMechanismError("The round's sum does not fit its ring, or is not finite.")

    def check_round(self, ring: RingShape, most: int, drops: int, colluders: int) -> None:
        if self.ring is None:
            raise self._unmaskable()
        for name, value, wanted in (
            ("dim", self.dim, ring.dim),
            ("bits", self.bits, ring.bits),
            ("modulus", self._modulus, ring.modulus),
            ("clients", self.clients, most),
        ):
            if value != wanted:
                raise UnsoundMechanismError(
                    f"The mechanism was made for {name} = {value}, but the round has {wanted}."
                )
