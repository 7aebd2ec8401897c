"""What a run guarantees, against whom, for which unit and adjacency: a few sentences for the first line, the summary and the report."""

import math

from fedsketch.conf.schema import Against, Randomness
from fedsketch.conf.strategy.fed_sgm import FedSgmConfig, r_secret_needs
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.strategies.shared.device_noise import NoisePlan

_EAVESDROPPER = "an eavesdropper who sees the noisy sums, and neither the sketch's seed, nor a model, nor a single upload"


def guarantee(plan: NoisePlan) -> str:
    privacy = plan.config.privacy
    if not privacy.private:
        return "No privacy: nothing is noised."
    bound = f"Noise multiplier {plan.noise_multiplier:.4g}"
    if privacy.epsilon is not None:
        reading = " (r_secret)" if plan.r_secret else ""
        bound += f" for epsilon {privacy.epsilon:g}{reading} at delta {privacy.delta:g}"
    sentence = f"{bound}, per {privacy.unit.value} (its contribution zeroed out), against {_adversary(plan)}."
    strategy = plan.config.strategy
    if isinstance(strategy, FedSgmConfig) and strategy.sketch == "gaussian":
        sentence += _readings(plan)
    if privacy.randomness is Randomness.seeded:
        sentence += " NOT PRIVATE: privacy.randomness=seeded makes noise and cohorts reproducible."
    return sentence


def _adversary(plan: NoisePlan) -> str:
    config = plan.config
    if plan.r_secret:
        return _EAVESDROPPER
    if config.privacy.against is Against.model:
        return "all who see the models of every round, but not what the server sees"
    if not plan.masked:
        return "the server, which sees every upload"
    honest = config.secagg.name == "semi_honest"
    server = "a server that follows the protocol" if honest else "a server that may lie"
    share = f"{config.secagg.colluders:.0%} of a cohort" if config.secagg.colluders else "no client"
    return f"{server} and works with {share}"


def _readings(plan: NoisePlan) -> str:
    """Both readings of the sketched Gaussian mechanism over all rounds, side by side."""
    spent = ", ".join(
        f"{_spent(plan, adversary)} against {adversary.value}" for adversary in Against
    )
    public = f" r_public, which holds whoever knows the sketch, is {spent}"
    if plan.r_secret:
        return f"{public}."
    needs = r_secret_needs(plan.config)
    secret = f"no theorem covers (it needs {', '.join(needs)})" if needs else _spent(plan, None)
    return f"{public}; r_secret, which holds only against {_EAVESDROPPER}, {'' if needs else 'is '}{secret}."


def _spent(plan: NoisePlan, adversary: Against | None) -> str:
    """Epsilon of all rounds; of the eavesdropper where nobody is named."""
    cohort = plan.config.clients.per_round
    clients = plan.survivors(cohort)
    seen = (
        plan.overheard(cohort, clients)
        if adversary is None
        else plan.releases(cohort, clients)[adversary]
    )
    assert seen is not None
    accountant = Accountant(plan.config.privacy.delta)
    accountant.record(seen, plan.config.rounds)
    epsilon = accountant.epsilon().epsilon
    return f"epsilon {epsilon:.4g}" if math.isfinite(epsilon) else "no guarantee"
