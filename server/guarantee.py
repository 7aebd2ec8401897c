"""What a run guarantees, against whom, for which unit and adjacency, in a few sentences for the display, the summary
and the report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedsketch.conf import Config
from fedsketch.conf.schema import Accounting, Against, CohortSampling, Randomness
from fedsketch.conf.settings import DataSettings, PartitionedSettings
from fedsketch.server.device_evaluations import Evaluations, NoEvaluations
from fedsketch.server.sums import kinds_of, sums_sentence
from fedsketch.strategies.algorithm import Strategy

_NONE = NoEvaluations()


def guarantee(strategy: Strategy[Any], evaluations: Evaluations = _NONE) -> str:
    privacy = strategy.config.privacy
    exposed = not_private(strategy.config)
    warning = "" if exposed is None else f"NOT PRIVATE: {exposed}."
    if not privacy.private:
        return warning
    sentence = (
        f"{_noise(strategy)}, per {privacy.unit.value} (its contribution zeroed out), against "
        f"{strategy.adversary(strategy.budget_adversary)}.{_memory(strategy)}{strategy.remarks()}"
        f"{_public_data(strategy.config.data)}{_validation(strategy.config)}{evaluations.sentence()}"
        f"{sums_sentence(kinds_of(strategy, evaluations))}"
    )
    return f"{sentence} {warning}".strip()


def adversaries(strategy: Strategy[Any], names: Iterable[str]) -> dict[str, str]:
    """Return the adversaries in words, and the server where it is trusted and has no epsilon."""
    words = {name: strategy.adversary(name) for name in names}
    return {**words, Against.SERVER.value: "trusted"} if strategy.noise.trusts_server else words


def not_private(config: Config) -> str | None:
    """Return why no epsilon of this run holds; None if it holds."""
    if not config.privacy.private:
        return "nothing is noised"
    if config.privacy.randomness is Randomness.SEEDED:
        return "privacy.randomness=seeded makes noise and cohorts reproducible"
    return None


def _noise(strategy: Strategy[Any]) -> str:
    """Return the noise and its relation to the budget: it was computed from the budget, or the run ends when the
    budget is spent."""
    privacy = strategy.config.privacy
    start = f"Noise multiplier {strategy.noise.noise_multiplier:.4g}"
    if privacy.epsilon is None:
        return start
    limit = f"{budget(strategy)} at delta {privacy.delta:g}"
    if privacy.noise_multiplier is None and privacy.accounting is Accounting.EXACT:
        return f"{start} for {limit}"
    source = "" if privacy.noise_multiplier is not None else " by a paper's theorem"
    return f"{start}{source}; the run ends before it exceeds {limit}"


def _memory(strategy: Strategy[Any]) -> str:
    """Return what it costs that devices remember when they took part, where it costs something."""
    fixed = strategy.config.clients.sampling is CohortSampling.FIXED
    if not (strategy.config.strategy.devices_remember and strategy.noise.draw_is_secret and fixed):
        return ""
    return (
        " Devices remember when they took part, so the draw of the clients is booked as if everybody saw it: "
        "clients.sampling=poisson would hide more."
    )


def _public_data(data: DataSettings) -> str:
    """Return who holds public data, if a run has any."""
    public = None
    if data.public_root is not None:
        public = f"the public examples in {data.public_root}, which no device reads"
    elif isinstance(data, PartitionedSettings) and data.public:
        public = f"{data.public:,} public examples of the training set, which no client has"
    return (
        ""
        if public is None
        else f" The server holds {public}: nothing about them counts as private."
    )


def _validation(config: Config) -> str:
    """Return which examples select the best model and may end the run."""
    count = config.validation.examples
    if not count:
        return ""
    early = ""
    if config.validation.patience is not None:
        early = " They may end the run early: its epsilon is that of all planned rounds, whenever it ends."
    whose = "its own, which no device reads"
    if isinstance(config.data, PartitionedSettings):
        whose = "the training set, which no client has"
    return (
        f" The server chooses the best model by {count:,} validation examples of {whose}: nothing about them counts as "
        f"private, and the choice depends only on models that are released, so it costs nothing.{early}"
    )


def budget(strategy: Strategy[Any]) -> str:
    """Return the budget in words, with the adversary if it is another one than the configuration names."""
    privacy = strategy.config.privacy
    usual = strategy.budget_adversary == privacy.against.value
    return f"epsilon {privacy.epsilon:g}" + (
        "" if usual else f" against the {strategy.budget_adversary}"
    )
