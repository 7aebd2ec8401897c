"""What a run guarantees, against whom, for which unit and adjacency: one sentence for the first line, the summary and the report."""

from conf.schema import Against, Randomness
from strategies.noise import NoisePlan


def guarantee(plan: NoisePlan) -> str:
    privacy = plan.config.privacy
    if not privacy.private:
        return "No privacy: nothing is noised."
    bound = f"Noise multiplier {plan.noise_multiplier:.4g}"
    if privacy.epsilon is not None:
        bound += f" for epsilon {privacy.epsilon:g} at delta {privacy.delta:g}"
    sentence = f"{bound}, per {privacy.unit.value} (its contribution zeroed out), against {_adversary(plan)}."
    if privacy.randomness is Randomness.seeded:
        sentence += " NOT PRIVATE: privacy.randomness=seeded makes noise and cohorts reproducible."
    return sentence


def _adversary(plan: NoisePlan) -> str:
    config = plan.config
    if config.privacy.against is Against.model:
        return "all who see the models of every round, but not what the server sees"
    if not plan.masked:
        return "the server, which sees every upload"
    honest = config.secagg.name == "semi_honest"
    server = "a server that follows the protocol" if honest else "a server that may lie"
    share = f"{config.secagg.colluders:.0%} of a cohort" if config.secagg.colluders else "no client"
    return f"{server} and works with {share}"
