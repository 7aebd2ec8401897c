"""When the theorem of Fed-SGM about a secret sketch covers a run, and the refusal to claim it where it does not."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


def r_secret_needs(config: "Config") -> tuple[str, ...]:
    """What would have to be set for the theorem to cover a run of Fed-SGM; empty where it does."""
    strategy = config.strategy
    assert strategy.name == "fed_sgm"
    needs = {
        "strategy.sketch=gaussian": strategy.sketch == "gaussian",
        "strategy.seed_per=round": strategy.seed_per == "round",
        "strategy.clip=before": strategy.clip == "before",
        "secagg=none with secagg.noise=gaussian": config.secagg.noise == "gaussian",
    }
    return tuple(need for need, met in needs.items() if not met)


def refuse_r_secret(config: "Config") -> None:
    """Raises ValueError where a budget for the eavesdropper cannot be turned into noise."""
    needs = r_secret_needs(config)
    if needs:
        raise ValueError(
            f"no theorem covers strategy.accounting=r_secret here: set {', '.join(needs)}, or r_public"
        )
    if config.clients.sampling == "poisson":
        raise ValueError(
            "strategy.accounting=r_secret is about so many clients, and a Poisson cohort has any number: set clients.sampling=fixed"
        )
    if config.privacy.accounting == "paper":
        raise ValueError(
            "strategy.accounting=r_secret and privacy.accounting=paper both say how much noise to add: set one back"
        )
