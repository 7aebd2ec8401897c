"""FedCEO (Li et al. 2024): UDP-FedAvg, and every I rounds the stack of noisy models is smoothed by the tensor SVD.

UDP-FedAvg (`every: null`) is local training whose update is clipped and noised on the device, and a mean. In a
smoothing round the K noisy models are folded, tensor by tensor, into stacks (K, rows, columns) whose slices lose
singular values (`sketching.tensor_svd`).

- `start: slots`, as in the paper: the next round's clients start from the K smoothed models. Client c takes slot c mod
  K. All who see those models see functions of single parts of the stack, so `model` and `server` are charged for the
  noise of one part. The draw of the cohort counts against nobody then: the theorems swap one client for another, which
  in a stack moves others to other places.
- `start: mean`: all start from the mean of the smoothed models. That mean depends on the first slice alone, which is
  the sum:
  it is TruncatedSVD(mean, threshold / K) (Proposition 3.2 without its condition), the server needs the sum alone, and a
  smoothing round costs no more than any other.

What a part is: one client's model without masks, which the server then sees under that client's noise alone; under
secure aggregation the mean model of one of `groups` disjoint groups, each with the noise that the budget asks of a sum.
Averaging rounds are one sum always. Formal guarantees: see `strategies.shared.device_noise`.
"""

from dataclasses import replace
from typing import Any

import torch

from fedsketch.conf import Config
from fedsketch.conf.strategy.fedceo import FedCeoConfig
from fedsketch.privacy.accounting.releases import Release
from fedsketch.sketching.tensor_svd import smooth
from fedsketch.strategies.shared.base import DeviceHalf, FederatedStrategy, LocalWork
from fedsketch.strategies.shared.cohort import Cohorts
from fedsketch.strategies.shared.cohort_work import CohortWork, cohort_updates
from fedsketch.strategies.shared.device_noise import DeviceNoise
from fedsketch.strategies.shared.local_update import client_update
from fedsketch.strategies.shared.messages import Aggregate, Number
from fedsketch.tasks.flat import FlatModel, Slot
from fedsketch.tasks.job import Job

_SLOTS = "slots"


class FedCeo(FederatedStrategy):
    """The server's half: averages, and smooths every few rounds."""

    def __init__(self, config: Config, job: Job, model: FlatModel, cohorts: Cohorts) -> None:
        assert isinstance(config.strategy, FedCeoConfig)
        self.settings = config.strategy
        super().__init__(config, job, model, cohorts)
        self.slots: torch.Tensor | None = None  # (K, d): where the next round's clients start
        self.smoothings: dict[str, Any] = {}  # of the last round, by tensor

    # ------------------------------------------------------------------ rounds
    def smooths(self, server_round: int) -> bool:
        every = self.settings.every
        return every is not None and server_round % every == 0

    def wants_parts(self, server_round: int) -> bool:
        return self.settings.start == "slots" and self.smooths(server_round)

    def groups(self, server_round: int) -> int:
        return (self.settings.groups or 1) if self.wants_parts(server_round) else 1

    def broadcast_extras(
        self, server_round: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, Number]]:
        return ({} if self.slots is None else {_SLOTS: self.slots}), {}

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

    def _moved(self, part: Aggregate, clients: float) -> torch.Tensor:
        """The mean of these clients' noisy models: where they started, less their updates (Algorithm 1, line 10, with
        the rate eta)."""
        start = self.model.vector
        if self.slots is not None:
            start = self.slots[[client % len(self.slots) for client in part.members]].mean(dim=0)
        return start - self._rate * part.sum / clients

    @property
    def _rate(self) -> float:
        return self.settings.server.lr

    def _smoothed(
        self, server_round: int, stack: torch.Tensor, noise: float, models: float
    ) -> torch.Tensor:
        """All matrices of a stack of models smoothed; `models` is K, of which a stack of one is the mean."""
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

    def _threshold(
        self, server_round: int, folded: torch.Tensor, noise: float, models: float
    ) -> float:
        """Relative to the largest singular value of the noise in a slice, sigma (sqrt(rows) + sqrt(columns)) sqrt(K);
        or Eq. (3)'s."""
        count, rows, columns = folded.shape
        if self.settings.threshold == "noise":
            return self.settings.edge * noise * (rows**0.5 + columns**0.5) * count**0.5
        assert self.settings.every is not None
        absolute = self.settings.growth ** (server_round / self.settings.every)
        # The first slice of K models is K times their mean.
        return absolute / (2 * self.settings.weight) * count / models

    def metrics(self) -> dict[str, Any]:
        return {"smoothing": self.smoothings} if self.smoothings else {}

    # ------------------------------------------------------------------ privacy
    def plan_noise(self) -> DeviceNoise:
        stacks = self.settings.every is not None and self.settings.start == "slots"
        return replace(super().plan_noise(), known_cohort=stacks)

    def releases(self, server_round: int, cohort: int, clients: int) -> dict[str, Release]:
        noise = self.noise_of(server_round)
        if not self.wants_parts(server_round):
            return noise.releases(cohort, clients)
        return noise.releases(cohort, noise.sizes.survivors(cohort) if self.sizes.masked else 1)

    def noise_of(self, server_round: int) -> DeviceNoise:
        """The noise of a round. In a smoothing round each part of a stack needs its own; if the noise is given, no
        client adds more than usual."""
        if not self.wants_parts(server_round):
            return self.noise
        if self.sizes.masked:
            return replace(self.noise, groups=self.groups(server_round))
        return replace(self.noise, single=self.noise.multiplier is None)

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


class FedCeoDevice(DeviceHalf):
    """The device's half: local training from the model that was sent, or from this client's slot."""

    def rows(self, work: LocalWork) -> torch.Tensor:
        slots = work.broadcast.arrays.get(_SLOTS)
        if slots is not None:
            work.model.load(slots[work.client % len(slots)])
        settings = work.broadcast.config.strategy.local
        return client_update(work.model, work.shard, settings, work.generator).unsqueeze(0)

    def cohort_rows(self, work: CohortWork) -> torch.Tensor | None:
        slots = work.broadcast.arrays.get(_SLOTS)
        if slots is None:
            return cohort_updates(work)
        starts = slots[[client % len(slots) for client in work.clients]]
        return cohort_updates(work, starts.to(work.model.vector))


def _folded(stack: torch.Tensor, slot: Slot) -> torch.Tensor:
    """One tensor of every model as a matrix: outputs by inputs, a convolution's kernel being part of the inputs; a
    vector is one row."""
    rows = slot.shape[0] if len(slot.shape) > 1 else 1
    return stack[:, slot.start : slot.stop].reshape(len(stack), rows, -1)


SERVER, DEVICE = FedCeo, FedCeoDevice
