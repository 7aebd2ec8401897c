"""Federated evaluation: devices evaluate a model on their own held-out examples. The results are clipped, noised and
summed like updates.

Every example gives m numbers from 0 to 1: the scores of the run's task, and the loss divided by
`evaluation.loss_bound` (`tasks.scores`). A device subtracts 1/2, so that each number lies within [-1/2, 1/2], and
sends:

- unit client: one row with the means over its held-out examples. The server adds 1/2 to the mean of the rows.
- unit example: a row for each held-out example. Each row has the additional number 1/2, so that the sum shows how many
  examples there are.

Formal guarantees: an evaluation is one more round with the run's kind of noise (`strategies.noise.device`) and
short rows. The norm of a row of k numbers is at most sqrt(k) / 2, and the mechanism clips it once more in any case.
The accountant composes the rounds of training and of evaluation.

The result is unbiased:
- Rows are not longer than the bound, so nothing is clipped.
- Rounding is unbiased. `bound_of` makes the bound C a little larger than sqrt(k) / 2, such that with secure
  aggregation 1/2 is a whole number N of the ring's steps (the scale is s = 2^12 / C). A number within [-N, N] that is
  rounded to one of its two neighbours stays within [-N, N]. So no rounded row has a norm above sqrt(k) N <= s C, and
  none has to be rounded again. So the sum is unbiased, and for unit client the mean too. (If so many rows do not fit
  into the ring, its scale s is smaller; then the error of a mean is at most 1/s.)
- For unit example the mean is a quotient a / b of two noisy sums. If the noise in b has the standard deviation t, its
  bias is about (t/b)^2 times its distance from 1/2.

If the size of a cohort is secret, a client that drops out counts as 1/2. So does a device without held-out examples,
and one on which the evaluation fails.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import RecordDict

from fedsketch.conf import Config
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig, ServerEvaluationConfig
from fedsketch.conf.schema import Accounting, CohortSampling
from fedsketch.conf.settings import LocalConfig, Optimizer, OptimizerConfig, StrategySettings
from fedsketch.conf.types import RingBits
from fedsketch.delivery.parcels import Parcels
from fedsketch.errors import ConfigError
from fedsketch.privacy.accounting.releases import Release, Unit
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.strategies.algorithm import Aggregate, Payload, Strategy, members_of
from fedsketch.strategies.noise.device import DeviceNoise
from fedsketch.strategies.noise.sizes import CohortSizes
from fedsketch.strategies.rounds.codec import EVALUATION
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.scores import LOSS, score_names, scores_of

_STEPS = 2.0**12  # steps per bound: the resolution of rings without a rotation
log = logging.getLogger(__name__)

_FINE_RING = 32  # bits; the vector is short, so a ring with a fine resolution costs nothing


@dataclass(frozen=True)
class Mean:
    """One metric: its mean, the standard deviation of the noise in it, and the same for each group."""

    mean: float
    noise: float
    groups: tuple[tuple[float, float], ...] = ()


class FederatedEvaluation(Strategy[StrategySettings]):
    """The server half. An evaluation is a round of this strategy. It does not change the model of the strategy that
    trains."""

    def __init__(self, trained: Strategy[Any]) -> None:
        config = trained.config
        assert isinstance(config.evaluation, FederatedEvaluationConfig)
        self.evaluation = config.evaluation
        self.trained = trained
        self.names = score_names(trained.model.task, trained.workload.data_shape.classes)
        self.means: dict[str, Mean] = {}  # the metrics of the last evaluation
        own = _own_config(config, self.evaluation, self.upload_length(1))
        super().__init__(own, trained.workload, trained.model)
        self._refuse_small_groups()

    # ------------------------------------------------------------------ a round
    def upload_length(self, server_round: int) -> int:
        return len(self.names) + (self.trained.config.privacy.unit is Unit.EXAMPLE)

    def groups(self, server_round: int) -> int:
        return self.evaluation.groups

    def wants_parts(self, server_round: int) -> bool:
        return self.evaluation.groups > 1

    def broadcast(self, server_round: int) -> Payload:
        return Payload(scalars={EVALUATION: True})

    @property
    def parcels(self) -> Parcels | None:
        """Those of the strategy that trains: devices get the model as in a training round."""
        return self.trained.parcels

    @property
    def device_config(self) -> Config:
        return self.trained.config

    def stream_label(self, server_round: int) -> int:
        return -server_round  # other noise than that of the training round

    def planned_broadcast(self) -> tuple[Payload, RecordDict]:
        return self.broadcast(1), RecordDict()

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        whole = self._means(aggregate)
        groups = [self._means(part) for part in aggregate.parts]
        self.means = {
            name: Mean(*value, tuple(group[name] for group in groups if name in group))
            for name, value in whole.items()
        }

    def _means(self, part: Aggregate) -> dict[str, tuple[float, float]]:
        """Return the mean of each metric and the standard deviation of the noise in it. Nothing if the count of
        examples is not larger than its noise."""
        total = part.sum.double()[: len(self.names)]
        if self.config.privacy.unit is Unit.CLIENT:
            count, of_count = self.clients(part), 0.0
        else:
            count, of_count = 2.0 * float(part.sum[-1]), 2.0 * part.noise_std
        if count <= of_count:
            return {}
        means = {}
        for name, off_half in zip(self.names, (total / count).tolist(), strict=True):
            noise = math.hypot(part.noise_std, of_count * off_half) / count
            unit = self.evaluation.loss_bound if name == LOSS else 1.0
            means[name] = (unit * (0.5 + off_half), unit * noise)
        return means

    def arrange_parts(self, whole: Aggregate, stream: Callable[[], Stream]) -> Aggregate:
        """Return the sum with the sums of groups as its parts. Without secure aggregation the server gets the uploads
        one by one. It then forms random groups, and publishes no other sums."""
        count = self.evaluation.groups
        if self.sizes.masked:
            return whole
        with stream() as own:
            order = own.uint64(len(whole.parts)).argsort()
        groups = (_joined([whole.parts[i] for i in order[group::count]]) for group in range(count))
        return replace(whole, parts=tuple(groups))

    # ------------------------------------------------------------------ privacy
    def plan_noise(self) -> DeviceNoise:
        """Plan the noise. With groups the draw does not count as a secret: replacing one client by another would also
        move other clients to other groups."""
        groups, privacy = self.evaluation.groups, self.config.privacy
        most = self.workload.largest_local_test  # raises if a client has nothing to hold out
        rows = most if privacy.unit is Unit.EXAMPLE else 1
        return DeviceNoise(
            self.config,
            self.upload_length(1),
            rows,
            privacy.fixed_clip,
            privacy.noise_multiplier,
            groups=groups,
            known_cohort=groups > 1,
            fine=True,
        )

    def releases(self, server_round: int, cohort: int, clients: int) -> dict[str, Release]:
        """Return what an evaluation reveals. With groups it is what the smallest accepted group reveals, because a
        client is in one group only."""
        if self.evaluation.groups > 1:
            clients = self.noise.sizes.survivors(cohort)
        return self.noise.releases(cohort, clients)

    def _refuse_small_groups(self) -> None:
        """Raise ConfigError if groups are too small to finish, or to have enough honest noise. This is checked before
        any budget is spent."""
        cohort = self.config.clients.per_round
        sizes = CohortSizes(self.config, self.evaluation.groups)
        members, colluders = sizes.members(cohort), sizes.colluders(cohort)
        needed = sizes.needed(cohort)
        unfinished = sizes.masked and sizes.survivors(cohort) < needed
        if unfinished or not self.noise.accepts(cohort):
            raise ConfigError(
                f"An evaluation needs {needed} of the {members} clients of a group to the end, because {colluders} "
                "may collude with the server: lower evaluation.groups, raise evaluation.clients, or "
                "lower secagg.colluders or clients.tolerated_dropouts."
            )


def evaluation_rows(
    config: Config, model: FlatModel, held_out: Examples, classes: int
) -> torch.Tensor:
    """Return the device half: return its rows. A device without held-out examples has one row of zeros."""
    assert isinstance(config.evaluation, FederatedEvaluationConfig)
    by_example = config.privacy.unit is Unit.EXAMPLE
    width = len(score_names(model.task, classes))
    bound = config.evaluation.loss_bound
    if held_out.present is not None:
        made = [torch.zeros(0, width, dtype=torch.float64), *_one_by_one(model, held_out, bound)]
        scores = torch.cat(made) - 0.5
    elif len(held_out):
        scores = scores_of(model, held_out, bound, apart=by_example) - 0.5
    else:
        return torch.zeros(1, width + by_example, dtype=torch.float64)
    if not by_example:
        return scores.mean(dim=0, keepdim=True)
    counts = torch.full((len(scores), 1), 0.5, dtype=scores.dtype, device=scores.device)
    return torch.cat([scores, counts], dim=1)


def _one_by_one(model: FlatModel, held_out: Examples, loss_bound: float) -> Iterator[torch.Tensor]:
    """Yield the scores of every example that is there and at which nothing raises, (1, m)."""
    assert held_out.present is not None
    for place in torch.nonzero(held_out.present):
        try:
            scores = scores_of(model, held_out.take(place), loss_bound, apart=True)
        except Exception as error:  # its text may repeat what a record contains
            log.error("A record cannot be evaluated (%s) and is left out", type(error).__name__)
        else:
            yield scores.cpu()


def bound_of(length: int) -> float:
    """Return the bound C: the largest norm of a row of this many numbers within [-1/2, 1/2], increased until 1/2 is a
    whole number of the ring's steps."""
    return 0.5 * _STEPS / math.floor(_STEPS / math.sqrt(length))


def sampler_of(own: Config, key: int) -> CohortSampler:
    """Return the cohorts of evaluations. They are independent of those of training, from the same key."""
    return CohortSampler(own.clients, int.from_bytes(derived_key(key, "evaluation"), "big"))


def _joined(parts: Sequence[Aggregate]) -> Aggregate:
    """Add sums that have independent noise."""
    total = torch.stack([part.sum for part in parts]).sum(dim=0)
    noise = math.hypot(*(part.noise_std for part in parts))
    return Aggregate(total, sum(part.clients for part in parts), noise, members_of(parts))


def _bits(config: Config) -> RingBits:
    given = config.secagg.bits
    return max(given, _FINE_RING) if isinstance(given, int) else given


def _own_config(config: Config, settings: FederatedEvaluationConfig, numbers: int) -> Config:
    """Return the configuration with which the noise is planned, as if the evaluations were a run of their own: as many
    rounds as there are evaluations, with their budget, their clients and their bound. It is never sent to devices."""
    clients, privacy = config.clients, config.privacy
    # Passes concern training rounds only. And groups reveal their sizes, which a Poisson draw must hide.
    plain = clients.sampling.in_passes or settings.groups > 1
    return replace(
        config,
        rounds=settings.times(config.rounds),
        clients=replace(
            clients,
            per_round=settings.cohort(config),
            sampling=CohortSampling.FIXED if plain else clients.sampling,
        ),
        privacy=replace(
            privacy,
            epsilon=settings.epsilon if privacy.private else None,
            noise_multiplier=None if privacy.private else 0.0,
            clip=bound_of(numbers),
            accounting=Accounting.EXACT,
        ),
        secagg=replace(config.secagg, bits=_bits(config)),
        strategy=StrategySettings(
            "evaluation",
            LocalConfig(steps=1, epochs=None, batch=0, lr=1.0, momentum=0.0),
            OptimizerConfig(Optimizer.SGD, lr=1.0, momentum=0.0),
        ),
        evaluation=ServerEvaluationConfig("server"),
    )
