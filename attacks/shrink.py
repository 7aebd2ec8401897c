"""The audited run: as few clients and rounds as possible, with everything that privacy depends on.

It keeps the run's strategy, unit, clip, distribution of the noise, budget or noise multiplier, masks, shares of
colluders and dropouts, the kind of sampling and, as far as few clients allow, its rate. It changes three things:

- the number of clients and rounds; the noise is computed again for them;
- the learning rates; privacy does not depend on them, and the gradients of canaries are known only if the model does
  not move;
- an adaptive clip, which stays at its first value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from fedsketch.conf import Config
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig
from fedsketch.conf.schema import Randomness, SecAggConfig
from fedsketch.errors import ConfigError
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.strategies.noise.sizes import CohortSizes
from fedsketch.tasks.workload import Workload

ROUNDS = 2  # rounds of an audited run, unless more are asked for
MOST_CLIENTS = 64
_USUAL_COHORT = 12  # if nothing needs a larger one
_LARGEST_COHORT = 24
_EXAMPLES = 6  # examples of a client, if examples are the unit
_TRAINED_EXAMPLES = 20  # examples of a client, if local steps draw them: enough to keep the rate
_LEAST_LOSS = 1e-3  # the loss of a model that knows nothing is far above it
_STILL = 1e-12  # a learning rate with which the model does not move


@dataclass(frozen=True)
class AuditRun:
    """What is simulated: a small configuration, and the number of examples of each client."""

    config: Config
    examples: int


def shrink(config: Config, rounds: int = ROUNDS) -> AuditRun:
    """Return the audited run of a configuration. Raises ConfigError if there is nothing to audit."""
    if not config.privacy.private:
        raise ConfigError(
            "The run is not private, so there is nothing to audit: set privacy=client or privacy=example."
        )
    if config.privacy.randomness is Randomness.SEEDED:
        raise ConfigError(
            "privacy.randomness=seeded is noise that everybody knows, so there is nothing to audit: set "
            "privacy.randomness=secret."
        )
    played = min(config.rounds, rounds)
    strategy: Any = config.strategy
    # A smoothing round is included, if there are any.
    if getattr(strategy, "every", None) is not None:
        strategy = replace(strategy, every=min(strategy.every, played))
    strategy = replace(strategy, server=replace(strategy.server, lr=_STILL))
    examples = 1
    if config.privacy.unit is Unit.EXAMPLE:
        examples = _EXAMPLES
    if strategy.noise_in_training:
        examples = _TRAINED_EXAMPLES
        rate = strategy.local.batch * config.clients.total / Workload(config).examples
        batch = max(1, round(min(1.0, rate) * examples))
        strategy = replace(strategy, local=replace(strategy.local, batch=batch, lr=_STILL))
    privacy = config.privacy
    if privacy.fixed_clip is None:  # an adaptive clip stays at its start; its count is included
        privacy = replace(privacy, adaptive=replace(privacy.adaptive, rate=_STILL**2))
    secagg = config.secagg
    if isinstance(secagg, SecAggConfig):  # a number of colluders would be too many for few clients
        secagg = replace(secagg, colluders=CohortSizes(config).colluding_share)
    evaluation = config.evaluation
    if isinstance(evaluation, FederatedEvaluationConfig):
        # As many evaluations as rounds; every loss is above its bound, where it counts most.
        evaluation = replace(evaluation, every=1, clients=None, loss_bound=_LEAST_LOSS)
    small = replace(
        config,
        evaluation=evaluation,
        privacy=privacy,
        secagg=secagg,
        rounds=played,
        device="cpu",
        clients=_clients(config, strategy),
        strategy=strategy,
    )
    return AuditRun(small, examples)


def _clients(config: Config, strategy: Any) -> Any:
    """Return a cohort that can contain a colluder and a dropout, if the run has any, and enough clients for the run's
    sampling rate."""
    clients = config.clients
    colluders = CohortSizes(config).colluding_share
    shares = [share for share in (colluders, clients.tolerated_dropouts) if share > 0]
    wanted = max([_USUAL_COHORT, *(math.ceil(1 / share) for share in shares)])
    if strategy.noise_in_training:
        # The guarantee counts each device's own noise only, so the noise of other devices should be small.
        wanted = 2
    cohort = min(clients.per_round, wanted, _LARGEST_COHORT)
    groups = math.lcm(
        getattr(strategy, "groups", None) or 1, getattr(config.evaluation, "groups", 1)
    )
    cohort = min(clients.per_round, -(-cohort // groups) * groups)
    total = cohort
    if clients.per_round < clients.total:
        total = min(
            clients.total, max(cohort + 1, round(cohort * clients.total / clients.per_round))
        )
        if total > MOST_CLIENTS and not clients.sampling.in_passes:
            total = MOST_CLIENTS
            rate = clients.per_round / clients.total
            cohort = max(CohortSizes(config).smallest, groups, round(total * rate))
        total = min(total, MOST_CLIENTS)
    return replace(clients, total=total, per_round=cohort)
