"""Flower's own strategies: which of them can work on a sum alone, and which options each takes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedsketch.conf.settings import Optimizer, OptimizerConfig, StrategySettings
from fedsketch.conf.types import Fraction, NotNegative, Positive, frozen

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config

OPTIONS: dict[str, tuple[str, ...]] = {
    "FedAvg": (),
    "FedAvgM": ("server_learning_rate", "server_momentum"),
    "FedAdagrad": ("eta", "tau"),
    "FedAdam": ("eta", "beta_1", "beta_2", "tau"),
    "FedYogi": ("eta", "beta_1", "beta_2", "tau"),
}
_SINGLE = "it chooses among the replies of single clients, and here the server has their sum alone"
_NOISE = "it adds noise of its own, and here the devices have added it"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("Bulyan", "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum"), _SINGLE),
    **dict.fromkeys(("FedXgbBagging", "FedXgbCyclic"), "it collects trees, which have no sum"),
    "QFedAvg": "it weighs clients by their losses, which a device does not tell",
    "FedProx": "its server is that of FedAvg, and its devices would train with another loss",
    "DifferentialPrivacyClientSideAdaptiveClipping": _NOISE,
    "DifferentialPrivacyClientSideFixedClipping": _NOISE,
    "DifferentialPrivacyServerSideAdaptiveClipping": _NOISE,
    "DifferentialPrivacyServerSideFixedClipping": _NOISE,
}


@frozen
class FlowerOptions:
    """Options of Flower's strategies. None: Flower's default."""

    eta: Positive | None
    beta_1: Fraction | None
    beta_2: Fraction | None
    tau: Positive | None
    server_learning_rate: Positive | None
    server_momentum: NotNegative | None

    @property
    def given(self) -> dict[str, float]:
        """The options that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@frozen
class FlowerConfig(StrategySettings):
    use: Annotated[str, Field(max_length=100)]
    options: FlowerOptions
    # Flower's strategy takes the step, so there is no optimiser to configure.
    server: OptimizerConfig = Field(
        default=OptimizerConfig(Optimizer.SGD, lr=1.0, momentum=0.0), kw_only=True
    )

    def check(self, config: Config) -> None:
        if self.use not in OPTIONS:
            reason = REFUSED.get(self.use, "Flower has no such strategy that works on a sum")
            raise ValueError(
                f"strategy.use={self.use} cannot be used, because {reason}: set one of {', '.join(OPTIONS)}"
            )
        wrong = sorted(set(self.options.given) - set(OPTIONS[self.use]))
        if wrong:
            takes = ", ".join(OPTIONS[self.use]) or "no options"
            raise ValueError(
                f"strategy.options.{wrong[0]} is not an option of {self.use}, which takes {takes}: leave it out"
            )


SETTINGS = FlowerConfig
