"""What a run guarantees, against whom, for which unit and adjacency: a few sentences for the first line, the summary and the report."""

from fedsketch.conf.schema import Randomness
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
        f"{strategy.remarks()}"
    )
    if privacy.randomness is Randomness.seeded:
        sentence += " NOT PRIVATE: privacy.randomness=seeded makes noise and cohorts reproducible."
    return sentence


def budget(strategy: FederatedStrategy) -> str:
    """The budget in words; where it binds another adversary than the configuration names, that one is named beside it."""
    privacy = strategy.config.privacy
    usual = strategy.bound == privacy.against.value
    return f"epsilon {privacy.epsilon:g}" + ("" if usual else f" against the {strategy.bound}")
