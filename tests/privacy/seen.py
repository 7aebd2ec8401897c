"""What each adversary sees of a round that was witnessed, as pairs of the tests' own accountant; and what a run states
about it.

Nothing here is asked of the project's releases: the noise is what was really drawn, and who knows what is said in the
words of this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedsketch.conf import Config
from fedsketch.server.accounts import Accounts
from tests.privacy.own_accountant.sums import (
    GaussianSum,
    NoisySum,
    Pair,
    SkellamSum,
    either,
    revealed,
)
from tests.privacy.witness import Witnessed

# Of the interval of an epsilon, or twice that: losses are rounded to steps of this over the number of rounds.
WIDTH = 1e-3


class Seen(NamedTuple):
    """What an adversary sees: so many times the same kind of release."""

    law: str
    kind: str
    round: Pair
    times: int


def everything_seen(config: Config, round: Witnessed) -> dict[str, Seen]:
    """By adversary, from the noise that was drawn and from who knows it."""
    if config.strategy.noise_in_training:
        return dict.fromkeys(("model", "client", "server"), _training(config, round))
    masked = config.secagg.name != "none"
    helpers = math.floor(round.cohort * config.secagg.colluders) if masked else 0
    honest = (len(round.arrived) - helpers) * round.share if masked else round.share
    if config.strategy.name == "fedceo":
        return _in_stacks(config, round, helpers, masked)
    return {
        "model": _by_models(config, round),
        "client": _by_colluding_clients(config, round, max(1, helpers), masked),
        "server": _by_members(config, round, honest, config.rounds),
    }


def _in_stacks(config: Config, round: Witnessed, helpers: int, masked: bool) -> dict[str, Seen]:
    """FedCEO with slots, and a smoothing in every round: the models that go out show the parts of a stack, and who is
    in which. A part is the sum of a group, of which all colluders may be members, or without masks the model of one
    client."""
    if not masked:
        return dict.fromkeys(
            ("model", "client", "server"), _by_members(config, round, round.share, config.rounds)
        )
    group = len(round.arrived) // config.strategy.groups
    known = {"model": 0, "client": max(1, helpers), "server": helpers}
    return {
        name: _by_members(config, round, (group - count) * round.share, config.rounds)
        for name, count in known.items()
    }


def _by_members(config: Config, round: Witnessed, variance: float, times: int) -> Seen:
    """By those who know who is in a sum, and do not know noise of this variance."""
    noisy = _sum(round, variance)
    return Seen(round.record["mechanism"], "always", noisy.always(_step(config)), times)


def _by_models(config: Config, round: Witnessed) -> Seen:
    """By those who see the sum, and neither who is in it nor any noise.

    Where each device's noise must do alone, there is as much noise as the cohort is large: its size shows, and then it
    is a draw of that size. Elsewhere everything that shows is the same for all sizes (`tests.attacks.symptoms` checks
    it).
    """
    times = _known_times(config)
    if times:
        return _by_members(config, round, round.noise, times)
    alone = config.secagg.name == "none" and config.privacy.against == "server"
    expected, sampling = config.clients.per_round, config.clients.sampling
    size, sampling = (round.cohort, "fixed") if alone else (expected, str(sampling))
    noisy = _sum(round, round.noise)
    kind, pair = _secret_draw(config, noisy, size / config.clients.total, sampling)
    return Seen(round.record["mechanism"], kind, pair, config.rounds)


def _by_colluding_clients(
    config: Config, round: Witnessed, colluding_clients: int, masked: bool
) -> Seen:
    """By participants, who know their own noise.

    Under masks they know who is in the cohort. Without masks, one of them knows whether it was drawn itself, and its
    share of the noise says how large the cohort is: it faces a draw of fixed size among all others, of the cohort with
    or without itself. If the budget is against it and the draw is a Poisson draw, its share is the same in all cohorts
    (`tests.strategies.noise.test_hidden_draws`): it faces a Poisson draw among all others, and knows noise if it was
    drawn.
    """
    unknown = round.noise - colluding_clients * round.share
    times = _known_times(config) or (config.rounds if masked else 0)
    if times:
        return _by_members(config, round, unknown, times)
    total, cohort = config.clients.total, round.cohort
    if config.clients.sampling == "poisson" and config.privacy.against == "client":
        rate = config.clients.per_round / total
        kind, inside = _secret_draw(config, _sum(round, unknown), rate, "poisson")
        _, outside = _secret_draw(config, _sum(round, round.noise), rate, "poisson")
        pair = either([(rate, inside), (1.0 - rate, outside)])
        return Seen(round.record["mechanism"], f"{kind} among others", pair, config.rounds)
    kind, inside = _secret_draw(config, _sum(round, unknown), (cohort - 1) / (total - 1), "fixed")
    _, outside = _secret_draw(config, _sum(round, round.noise), cohort / (total - 1), "fixed")
    pair = either([(cohort / total, inside), (1.0 - cohort / total, outside)])
    return Seen(round.record["mechanism"], f"{kind} among others", pair, config.rounds)


def _step(config: Config) -> float:
    return WIDTH / config.rounds


def _known_times(config: Config) -> int:
    """How often a client is in a sum, where everybody can know it; 0: a secret draw decides."""
    clients = config.clients
    if clients.sampling == "passes":
        return math.ceil(config.rounds / math.ceil(clients.total / clients.per_round))
    return config.rounds if clients.per_round == clients.total else 0


def _secret_draw(config: Config, noisy: NoisySum, rate: float, sampling: str) -> tuple[str, Pair]:
    if config.privacy.unit == "example":
        return "revealed", revealed(noisy.always(_step(config)), rate)
    if sampling == "poisson":
        return "poisson", noisy.poisson(rate, _step(config))
    return "fixed size", noisy.fixed_size(rate, _step(config))


def _sum(round: Witnessed, variance: float) -> NoisySum:
    """One unit's largest contribution to a sum, under noise of this variance."""
    told = round.record
    if told["mechanism"] == "gaussian":
        return GaussianSum(math.sqrt(variance) / told["clip"])
    return SkellamSum(variance, (math.isqrt(largest_squared_norm(told)),))


def largest_squared_norm(told: Mapping[str, Any]) -> int:
    """What one row moves at most. Conditional rounding of rows: |q|^2 <= (s C)^2 + k/4 + s C + sqrt(k)/2, and never
    more than (s C + sqrt(k))^2. Where a sum is rounded, (s C + sqrt(k))^2 and a billionth for floating point."""
    reach, k = told["scale"] * told["clip"], told["dim"]
    if told.get("rounds_sum"):
        return math.floor((reach * (1.0 + 1e-9) + math.sqrt(k)) ** 2)
    bound = min(reach**2 + k / 4 + reach + math.sqrt(k) / 2, (reach + math.sqrt(k)) ** 2)
    return math.floor(bound * (1.0 - 1e-12))


def _training(config: Config, round: Witnessed) -> Seen:
    """Noise in every local step, of one device by itself; an example is in a step's batch by a draw that the device
    keeps to itself."""
    (variance,) = {drawn for client in round.arrived for drawn in round.draws[client]}
    steps = len(round.draws[round.arrived[0]])
    mean = round.strategy.workload.examples / config.clients.total
    rate = min(1.0, config.strategy.local.batch / mean)
    noisy = GaussianSum(math.sqrt(variance) / round.record["clip"])
    return Seen("gaussian", "poisson", noisy.poisson(rate, _step(config)), steps * config.rounds)


def stated(config: Config, round: Witnessed) -> dict[str, float]:
    """What a run says that was spent when every round was like this one."""
    accounts = Accounts(round.strategy)
    for current in range(1, config.rounds + 1):
        accounts.charge_attempt(current, round.cohort, len(round.arrived))
        accounts.charge_applied(current, round.cohort, len(round.arrived))
    return {name: value for name, value in accounts.epsilon().items() if value is not None}
