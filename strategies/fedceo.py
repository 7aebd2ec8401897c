"""FedCEO, in which "clients collaborate with each other" (Li et al. 2024): the server smooths the clients' noisy
models.

Most rounds are UDP-FedAvg, federated averaging with user-level differential privacy: clients train, clip their updates
and add noise, and the server takes the mean. With `every: null` all rounds are.

Every `every` rounds (the paper's I) there is a smoothing round. It puts K noisy models, tensor by tensor, into a stack
of shape (K, rows, columns), and lowers the singular values of its slices (tensor SVD: `sketching.tensor_svd`). The
next round's clients start from the result:

- `start: slots`, as in the paper: clients start from the K smoothed models. Client c starts from number c mod K, its
  slot. Each of these models reveals something about single parts of the stack, so `model` and `server` are charged for
  the noise of one part. The random draw of the cohort gives no amplification then: the theorems replace one client by
  another, and in a stack this would also move other clients to other places.
- `start: mean`: all clients start from the mean of the smoothed models. This mean depends only on the first slice,
  which is the sum of the models. It equals TruncatedSVD(mean, threshold / K) (Proposition 3.2 without its condition).
  So the server needs only the sum, and a smoothing round costs no more privacy than any other.

A part of the stack is:
- without secure aggregation one client's model. The server sees it protected by that client's noise alone.
- with secure aggregation the mean model of one of `groups` disjoint groups. The sum of each group has the noise that
  the budget requires of a sum.

Rounds without smoothing always release one sum. Formal guarantees: see `strategies.noise.device`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsketch.conf.strategy.fedceo import FedCeoConfig
from fedsketch.privacy.accounting.releases import Release
from fedsketch.sketching.tensor_svd import smooth
from fedsketch.strategies.algorithm import Aggregate, DeviceHalf, Payload, Strategy
from fedsketch.strategies.noise.device import DeviceNoise
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.models.flat_model import FlatModel, Slot

_SLOTS = "slots"


class FedCeo(Strategy[FedCeoConfig]):
    """The server half: averages, and smooths every few rounds."""

    def start(self) -> None:
        self.slots: Tensor | None = None  # (K, d): starts of the next round's clients
        self.smoothings: dict[str, Any] = {}  # metrics of the last smoothing, by tensor

    # ------------------------------------------------------------------ rounds
    def smooths(self, server_round: int) -> bool:
        every = self.settings.every
        return every is not None and server_round % every == 0

    def wants_parts(self, server_round: int) -> bool:
        return self.settings.start == "slots" and self.smooths(server_round)

    def groups(self, server_round: int) -> int:
        return (self.settings.groups or 1) if self.wants_parts(server_round) else 1

    def broadcast(self, server_round: int) -> Payload:
        return Payload({} if self.slots is None else {_SLOTS: self.slots})

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        self.smoothings = {}
        if not self.wants_parts(server_round):
            mean = self._moved(aggregate, self.units(aggregate))
            if self.smooths(server_round):
                noise = self._rate * aggregate.noise_std / self.units(aggregate)
                mean = self._smoothed(server_round, mean[None], noise, self.clients(aggregate))[0]
            self.slots = None
            self.model.load(mean)
            return
        stack = torch.stack([self._moved(part, part.clients) for part in aggregate.parts])
        noise = max(self._rate * part.noise_std / part.clients for part in aggregate.parts)
        self.slots = self._smoothed(server_round, stack, noise, len(stack))
        self.model.load(self.slots.mean(dim=0))

    def _moved(self, part: Aggregate, clients: float) -> Tensor:
        """Return the mean of these clients' noisy models: the models that they started from minus eta times their
        updates (Algorithm 1, line 10; eta is `server.lr`)."""
        start = self.model.vector
        if self.slots is not None:
            start = self.slots[[client % len(self.slots) for client in part.members]].mean(dim=0)
        return start - self._rate * part.sum / clients

    @property
    def _rate(self) -> float:
        return self.settings.server.lr

    def _smoothed(self, server_round: int, stack: Tensor, noise: float, models: float) -> Tensor:
        """Smooth all matrices of a stack of models. `models` is K, also if the stack holds only the mean of the K
        models."""
        result = stack.clone()
        for slot in self.model.layout:
            if len(slot.shape) == 1 and self.settings.tensors == "matrices":
                continue
            folded = _folded(stack, slot)
            threshold = self._threshold(server_round, folded, noise, models)
            smoothed = smooth(folded, threshold)
            result[:, slot.start : slot.stop] = smoothed.stack.reshape(len(stack), -1)
            self.smoothings[slot.name] = {
                "threshold": threshold,
                "spectrum": smoothed.spectrum.tolist(),
            }
        return result

    def _threshold(self, server_round: int, folded: Tensor, noise: float, models: float) -> float:
        """Return how much is subtracted from singular values. With `threshold: noise` it is relative to the largest
        singular value of the noise in a slice, sigma (sqrt(rows) + sqrt(columns)) sqrt(K). Otherwise it is that of Eq.
        (3)."""
        count, rows, columns = folded.shape
        if self.settings.threshold == "noise":
            return self.settings.edge * noise * (rows**0.5 + columns**0.5) * count**0.5
        assert self.settings.every is not None
        absolute = self.settings.growth ** (server_round / self.settings.every)
        # The first slice of a stack of K models is K times their mean. A stack of the mean alone (`count` = 1) has the
        # mean as its slice, so its threshold is K times smaller.
        return absolute / (2 * self.settings.weight) * count / models

    def metrics(self) -> dict[str, Any]:
        return {"smoothing": self.smoothings} if self.smoothings else {}

    # ------------------------------------------------------------------ privacy
    def plan_noise(self) -> DeviceNoise:
        stacks = self.settings.every is not None and self.settings.start == "slots"
        self._plan = replace(self.device_noise(), known_cohort=stacks)
        return self._plan

    def releases(self, server_round: int, cohort: int, clients: int) -> dict[str, Release]:
        noise = self.noise_of(server_round)
        if not self.wants_parts(server_round):
            return noise.releases(cohort, clients)
        return noise.releases(cohort, noise.sizes.survivors(cohort) if self.sizes.masked else 1)

    def noise_of(self, server_round: int) -> DeviceNoise:
        """Return the noise of a round. In a smoothing round each part of the stack needs enough noise by itself. If
        the user sets the noise multiplier, clients add no more noise than in other rounds."""
        if not self.wants_parts(server_round):
            return self._plan
        if self.sizes.masked:
            return replace(self._plan, groups=self.groups(server_round))
        return replace(self._plan, single=self._plan.multiplier is None)

    def remarks(self) -> str:
        if self.settings.every is None or self.settings.start == "mean":
            return ""
        what = "sums of groups" if self.sizes.masked else "the noisy models of single clients"
        return (
            f" In every {self.settings.every}th round the server stacks {what}, and their smoothed versions are sent "
            "to clients."
        )

    # ------------------------------------------------------------------ checkpoints
    def state_dict(self) -> dict[str, Any]:
        return {} if self.slots is None else {_SLOTS: self.slots}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slots = state.get(_SLOTS)


class FedCeoDevice(DeviceHalf[Tensor | None]):
    """The device half: local training from the model that was sent, or from this client's slot."""

    ignores_unit: ClassVar[bool] = True

    def prepare(self, broadcast: Broadcast, model: FlatModel) -> Tensor | None:
        return broadcast.arrays.get(_SLOTS)

    def starts(self, prepared: Tensor | None, clients: Sequence[int]) -> Tensor | None:
        if prepared is None:
            return None
        return prepared[[client % len(prepared) for client in clients]]


def _folded(stack: Tensor, slot: Slot) -> Tensor:
    """Return one tensor of every model as a matrix with a row per output. The kernel of a convolution is part of its
    inputs; a vector becomes one row."""
    rows = slot.shape[0] if len(slot.shape) > 1 else 1
    return stack[:, slot.start : slot.stop].reshape(len(stack), rows, -1)


SERVER, DEVICE = FedCeo, FedCeoDevice
