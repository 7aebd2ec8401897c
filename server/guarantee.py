"""What a run guarantees, against whom, for which unit and adjacency: a few sentences for the first line, the summary and the report."""

from collections.abc import Iterable

from fedsketch.conf import Config
from fedsketch.conf.schema import Accounting, Against, Randomness
from fedsketch.conf.settings import DataSettings, PartitionedSettings
from fedsketch.server.device_evaluations import DeviceEvaluations
from fedsketch.strategies.shared.base import FederatedStrategy


def guarantee(strategy: FederatedStrategy, evaluations: DeviceEvaluations | None = None) -> str:
    privacy = strategy.config.privacy
    exposed = not_private(strategy.config)
    warning = "" if exposed is None else f"NOT PRIVATE: {exposed}."
    if not privacy.private:
        return warning
    sentence = (
        f"{_noise(strategy)}, per {privacy.unit.value} (its contribution zeroed out), against {strategy.adversary(strategy.bound)}."
        f"{strategy.remarks()}{_public_data(strategy.config.data)}{_validation(strategy.config)}"
        f"{'' if evaluations is None else evaluations.sentence()}"
    )
    return f"{sentence} {warning}".strip()


def adversaries(strategy: FederatedStrategy, names: Iterable[str]) -> dict[str, str]:
    """Who these are, in words; and the server, where it is trusted and has no epsilon."""
    words = {name: strategy.adversary(name) for name in names}
    return {**words, Against.server.value: "trusted"} if strategy.noise.trusted else words


def not_private(config: Config) -> str | None:
    """Why nothing that a run says about epsilon holds; None if it does."""
    if not config.privacy.private:
        return "nothing is noised"
    if config.privacy.randomness is Randomness.seeded:
        return "privacy.randomness=seeded makes noise and cohorts reproducible"
    return None


def _noise(strategy: FederatedStrategy) -> str:
    """The noise, and what the budget has to do with it: it was found from the budget, or the budget ends the run when it is spent."""
    privacy = strategy.config.privacy
    told = f"Noise multiplier {strategy.noise_multiplier:.4g}"
    if privacy.epsilon is None:
        return told
    limit = f"{budget(strategy)} at delta {privacy.delta:g}"
    if privacy.noise_multiplier is None and privacy.accounting is Accounting.exact:
        return f"{told} for {limit}"
    source = "" if privacy.noise_multiplier is not None else " by a paper's theorem"
    return f"{told}{source}; the run ends before it exceeds {limit}"


def _public_data(data: DataSettings) -> str:
    """Who holds public data, where a run has any."""
    held = None
    if data.public_root is not None:
        held = f"the public examples in {data.public_root}, which no device reads"
    elif isinstance(data, PartitionedSettings) and data.public:
        held = f"{data.public:,} public examples of the training set, which no client has"
    return (
        "" if held is None else f" The server holds {held}: nothing about them counts as private."
    )


def _validation(config: Config) -> str:
    """Whose the examples are that choose the best model and may end the run."""
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
        f" The server chooses the best model by {count:,} validation examples of {whose}: nothing about them counts as private, and the "
        f"choice looks at nothing else but models that are out, so it costs nothing.{early}"
    )


def budget(strategy: FederatedStrategy) -> str:
    """The budget in words; where it binds another adversary than the configuration names, that one is named beside it."""
    privacy = strategy.config.privacy
    usual = strategy.bound == privacy.against.value
    return f"epsilon {privacy.epsilon:g}" + ("" if usual else f" against the {strategy.bound}")
