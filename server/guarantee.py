"""What a run guarantees, against whom, for which unit and adjacency: a few sentences for the first line, the summary and the report."""

from fedsketch.conf.schema import Randomness
from fedsketch.conf.settings import DataSettings, PartitionedSettings
from fedsketch.strategies.shared.base import FederatedStrategy


def guarantee(strategy: FederatedStrategy) -> str:
    privacy = strategy.config.privacy
    if not privacy.private:
        return "No privacy: nothing is noised."
    bound = f"Noise multiplier {strategy.noise_multiplier:.4g}"
    if privacy.epsilon is not None:
        bound += f" for {budget(strategy)} at delta {privacy.delta:g}"
    sentence = (
        f"{bound}, per {privacy.unit.value} (its contribution zeroed out), against {strategy.adversary()}."
        f"{strategy.remarks()}{_public_data(strategy.config.data)}"
    )
    if privacy.randomness is Randomness.seeded:
        sentence += " NOT PRIVATE: privacy.randomness=seeded makes noise and cohorts reproducible."
    return sentence


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


def budget(strategy: FederatedStrategy) -> str:
    """The budget in words; where it binds another adversary than the configuration names, that one is named beside it."""
    privacy = strategy.config.privacy
    usual = strategy.bound == privacy.against.value
    return f"epsilon {privacy.epsilon:g}" + ("" if usual else f" against the {strategy.bound}")
