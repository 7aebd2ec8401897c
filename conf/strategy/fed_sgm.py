"""Fed-SGM: a random sketch from a seed; and when the paper's theorem about a secret sketch (`r_secret`) covers a
run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fedsketch.conf.settings import FollowedSettings
from fedsketch.conf.types import Positive, frozen

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class FedSgmConfig(FollowedSettings):
    sketch: Literal["gaussian", "hadamard", "count_sketch", "identity"]
    sketch_dim: Positive
    seed_per: Literal["round", "run"]
    clip: Literal["before", "after", "both"]
    accounting: Literal["r_public", "r_secret"]

    def __post_init__(self) -> None:
        if self.sketch == "count_sketch" and self.clip == "before":
            raise ValueError(
                "a count sketch may add up a whole update in one bucket, so that strategy.clip=before bounds nothing: "
                "set strategy.clip=after or both"
            )

    def check(self, config: Config) -> None:
        """Refuse a budget against the eavesdropper that cannot be turned into noise."""
        if config.privacy.clip == "adaptive" and self.clip != "after":
            raise ValueError(
                "privacy.clip=adaptive counts what the last clip cuts: set strategy.clip=after, or privacy.clip to a "
                "number"
            )
        if self.accounting != "r_secret":
            return
        needs = r_secret_needs(config)
        if needs:
            raise ValueError(
                f"no theorem covers strategy.accounting=r_secret here: set {', '.join(needs)}, or r_public"
            )
        if config.clients.sampling == "poisson":
            raise ValueError(
                "strategy.accounting=r_secret is about a known number of clients, and a Poisson cohort has any number: "
                "set clients.sampling=fixed"
            )
        if config.privacy.accounting == "paper":
            raise ValueError(
                "strategy.accounting=r_secret and privacy.accounting=paper both say how much noise to add: set one back"
            )


def r_secret_needs(config: Config) -> tuple[str, ...]:
    """Return what must be set for the theorem to cover a run of Fed-SGM; empty if it covers the run."""
    strategy = config.strategy
    assert isinstance(strategy, FedSgmConfig)
    needs = {
        "rounds=1": config.rounds == 1,
        "strategy.sketch=gaussian": strategy.sketch == "gaussian",
        "strategy.seed_per=round": strategy.seed_per == "round",
        "strategy.clip=before": strategy.clip == "before",
        "secagg=none with secagg.noise=gaussian": config.secagg.noise == "gaussian",
    }
    return tuple(need for need, met in needs.items() if not met)


SETTINGS = FedSgmConfig
