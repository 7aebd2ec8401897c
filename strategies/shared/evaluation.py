"""Federated evaluation: what devices say of a model on their own held-out examples, bounded, noised and summed like an
update.

Every example gives m numbers from 0 to 1: the scores of the run's task, and its loss as a part of
`evaluation.loss_bound` (`tasks.local_tests`). A device sends them less one half, so that each lies within [-1/2, 1/2]:

- unit client: one row, the means over its held-out examples; the server adds 1/2 to the mean of the rows.
- unit example: a row for each held-out example, and in each the number 1/2 besides, so that the sum tells how many
  there are.

Formal guarantees: nothing new is released. An evaluation is one more round of the run's kind of noise
(`strategies.shared.device_noise`) with short rows. Their norm is at most sqrt(k) / 2 for k numbers, and the mechanism
bounds them once more, whatever was made of them. The accountant composes the rounds of training and of evaluation.

Unbiased. Rows fit their bound, so nothing is clipped. `bound_of` makes the bound C a little larger than sqrt(k) / 2,
such that under masks 1/2 is a whole number N of the ring's steps (the scale is 2^12 / C). A number within [-N, N] that
is rounded to one of its two neighbours stays within [-N, N]. So no rounded row has a norm above sqrt(k) N <= s C, none
is drawn again, and rounding is right in the mean: so is the sum, and for clients its mean. (A ring in which so many
rows do not fit has a smaller scale s; then a mean is wrong by 1/s at most.) For examples the mean is a quotient of two
noisy sums a / b: with noise of standard deviation t in b it is wrong by about (t/b)^2 of its distance from 1/2. Who
drops out of a cohort whose size is a secret counts as 1/2, and so does a device without held-out examples, or one whose
evaluation fails.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import Message

from fedsketch.conf import Config, ConfigError
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig, ServerEvaluationConfig
from fedsketch.conf.schema import Accounting, Sampling
from fedsketch.conf.settings import LocalConfig, Optimizer, OptimizerConfig, StrategySettings
from fedsketch.privacy.accounting.releases import Release, Unit
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.secagg.settings import majority
from fedsketch.strategies.shared.base import FederatedStrategy
from fedsketch.strategies.shared.cohort import Cohorts
from fedsketch.strategies.shared.cohort_sizes import CohortSizes
from fedsketch.strategies.shared.device_noise import DeviceNoise
from fedsketch.strategies.shared.messages import Aggregate, Broadcast, Number
from fedsketch.strategies.shared.uploads import EVALUATION, GROUPS
from fedsketch.tasks.examples import Examples
from fedsketch.tasks.flat import FlatModel
from fedsketch.tasks.local_tests import LOSS, score_names, scores_of

_STEPS = 2.0**12  # of a bound: the resolution of rings that do not rotate
_FINE_RING = 32  # bits: the vector is short, so a ring in which nothing is lost costs nothing


@dataclass(frozen=True)
class Mean:
    """One metric: its mean, the standard deviation of the noise in it, and the same for each group."""

    mean: float
    noise: float
    groups: tuple[tuple[float, float], ...] = ()


class FederatedEvaluation(FederatedStrategy):
    """The server's half. An evaluation is a round of this strategy, which leaves the model of the other one as it
    is."""

    def __init__(self, trained: FederatedStrategy, key: int) -> None:
        config = trained.config
        assert isinstance(config.evaluation, FederatedEvaluationConfig)
        self.settings = config.evaluation
        self.trained = trained
        self.names = score_names(trained.model.task, trained.job.kind.classes)
        self.means: dict[str, Mean] = {}  # of the last evaluation
        own = _own_config(config, self.settings, self.upload_size(1))
        super().__init__(own, trained.job, trained.model, cohorts_of(own, key))
        self._refuse_small_groups()

    # ------------------------------------------------------------------ a round
    def upload_size(self, server_round: int) -> int:
        return len(self.names) + (self.trained.config.privacy.unit is Unit.EXAMPLE)

    def groups(self, server_round: int) -> int:
        return self.settings.groups

    def wants_parts(self, server_round: int) -> bool:
        return self.settings.groups > 1

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        whole = self._means(aggregate)
        groups = [self._means(part) for part in aggregate.parts]
        self.means = {
            name: Mean(*value, tuple(group[name] for group in groups if name in group))
            for name, value in whole.items()
        }

    def know_the_nodes_of(self, other: FederatedStrategy) -> None:
        """The clients of a run are the same for all that it does."""
        self._nodes = other._nodes

    def _means(self, part: Aggregate) -> dict[str, tuple[float, float]]:
        """The mean of each metric over a sum, and the deviation of the noise in it; nothing where noise has eaten the
        count."""
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
            unit = self.settings.loss_bound if name == LOSS else 1.0
            means[name] = (unit * (0.5 + off_half), unit * noise)
        return means

    def _sum(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        """Its parts are the sums of groups. Without masks clients come one by one: the server cuts them into groups at
        random, and shows no other sum."""
        whole, count = super()._sum(server_round, replies), self.settings.groups
        if self.sizes.masked or not whole.parts:
            return whole
        with self._stream(server_round) as stream:
            order = stream.uint64(len(whole.parts)).argsort()
        groups = (_joined([whole.parts[i] for i in order[group::count]]) for group in range(count))
        return replace(whole, parts=tuple(groups))

    def _broadcast(self, server_round: int, mechanism: Mechanism) -> Broadcast:
        """The model as devices of a training round get it, and the run's own configuration."""
        parcels = self.trained.parcels
        numbers: dict[str, Number] = {EVALUATION: True, **self.frozen.head()}
        if parcels is not None:
            numbers |= parcels.head()
        if self.settings.groups > 1:
            numbers[GROUPS] = self.settings.groups
        arrays = {"model": self.model.vector} if parcels is None else {}
        return Broadcast(self.trained.config, server_round, mechanism, arrays, numbers)

    def _stream(self, server_round: int) -> Stream:
        return super()._stream(-server_round)  # not the noise of the round of training

    # ------------------------------------------------------------------ privacy
    def plan_noise(self) -> DeviceNoise:
        """Sums of groups tell who moved where if somebody is swapped, so with groups nothing rests on a secret draw."""
        groups, privacy = self.settings.groups, self.config.privacy
        most = self.job.largest_local_test  # raises where a client has nothing to hold out
        rows = most if privacy.unit is Unit.EXAMPLE else 1
        return DeviceNoise(
            self.config,
            self.upload_size(1),
            rows,
            privacy.fixed_clip,
            privacy.noise_multiplier,
            groups=groups,
            known_cohort=groups > 1,
        )

    def releases(self, server_round: int, cohort: int, clients: int) -> dict[str, Release]:
        """What an evaluation reveals. With groups it is what the smallest accepted group reveals, because a client is
        in one group only."""
        if self.settings.groups > 1:
            clients = self.noise.sizes.survivors(cohort)
        return self.noise.releases(cohort, clients)

    def _refuse_small_groups(self) -> None:
        """Raise ConfigError, before anything is spent, where groups are too small to finish, or for honest noise."""
        cohort = self.config.clients.per_round
        sizes = CohortSizes(self.config, self.settings.groups)
        members, colluders = sizes.members(cohort), sizes.colluders(cohort)
        needed = majority(members, colluders)
        unfinished = sizes.masked and sizes.survivors(cohort) < needed
        if unfinished or not self.noise.asked(cohort):
            raise ConfigError(
                f"A group of {members} clients of an evaluation needs {needed} of them to the end, against "
                f"{colluders} who may work with the server: lower evaluation.groups, raise evaluation.clients, or "
                "lower secagg.colluders or clients.tolerated_dropouts."
            )

    # ------------------------------------------------------------------ nothing is kept from one evaluation to the next
    def state_dict(self) -> dict[str, float]:
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None: ...


def evaluation_rows(
    config: Config, model: FlatModel, held_out: Examples, classes: int
) -> torch.Tensor:
    """The device's half: its rows. A device with nothing held out has one of zeros."""
    assert isinstance(config.evaluation, FederatedEvaluationConfig)
    by_example = config.privacy.unit is Unit.EXAMPLE
    if not len(held_out):
        numbers = len(score_names(model.task, classes)) + by_example
        return torch.zeros(1, numbers, dtype=torch.float64)
    scores = scores_of(model, held_out, config.evaluation.loss_bound, apart=by_example) - 0.5
    if not by_example:
        return scores.mean(dim=0, keepdim=True)
    counts = torch.full((len(scores), 1), 0.5, dtype=scores.dtype, device=scores.device)
    return torch.cat([scores, counts], dim=1)


def bound_of(numbers: int) -> float:
    """C: the norm of a row of so many numbers within [-1/2, 1/2], and so much more that 1/2 is a whole number of the
    ring's steps."""
    return 0.5 * _STEPS / math.floor(_STEPS / math.sqrt(numbers))


def cohorts_of(own: Config, key: int) -> Cohorts:
    """Drawn apart from the cohorts of training, from the same key."""
    return Cohorts(own.clients, int.from_bytes(derived_key(key, "evaluation"), "big"))


def _joined(parts: Sequence[Aggregate]) -> Aggregate:
    """The sum of sums whose noises are independent."""
    total = torch.stack([part.sum for part in parts]).sum(dim=0)
    noise = math.hypot(*(part.noise_std for part in parts))
    members = tuple(sorted(client for part in parts for client in part.members))
    return Aggregate(total, sum(part.clients for part in parts), noise, members)


def _own_config(config: Config, settings: FederatedEvaluationConfig, numbers: int) -> Config:
    """The evaluations as a run of their own, for whoever plans noise: as many rounds as there are evaluations, with
    their budget, their clients and their bound. Devices are never sent it."""
    clients, privacy = config.clients, config.privacy
    # A pass is a matter of training rounds; and groups show sizes, which a Poisson draw must hide.
    plain = clients.sampling.in_passes or settings.groups > 1
    return replace(
        config,
        rounds=settings.times(config.rounds),
        clients=replace(
            clients,
            per_round=settings.cohort(config),
            sampling=Sampling.fixed if plain else clients.sampling,
        ),
        privacy=replace(
            privacy,
            epsilon=settings.epsilon if privacy.private else None,
            noise_multiplier=None if privacy.private else 0.0,
            clip=bound_of(numbers),
            accounting=Accounting.exact,
        ),
        secagg=replace(config.secagg, bits=max(config.secagg.bits, _FINE_RING)),
        strategy=StrategySettings(
            "evaluation",
            LocalConfig(steps=1, epochs=None, batch=0, lr=1.0, momentum=0.0),
            OptimizerConfig(Optimizer.sgd, lr=1.0, momentum=0.0),
        ),
        evaluation=ServerEvaluationConfig("server"),
    )
