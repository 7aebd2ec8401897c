"""SGMF: L2-CSGM with noise that is correlated over rounds; and which orders of clients its theorems cover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from fedsketch.conf.strategy.csgm import CsgmConfig
from fedsketch.conf.types import Count, frozen

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class SgmfConfig(CsgmConfig):
    factorisation: Literal["optimal", "banded", "square_root", "tree", "identity"]
    band: Count | None
    restarts: bool
    mask: Literal["own"] = Field(default="own", kw_only=True)

    def check(self, config: Config) -> None:
        private = config.privacy.private
        if config.secagg.name != "none" or (private and config.privacy.against == "server"):
            raise ValueError(
                "in strategy=sgmf the noise of a round cancels part of the noise of earlier rounds, so one party "
                "must know all of it. That is the server, which is trusted and sees every upload: set secagg=none "
                "and privacy.against=model or client"
            )
        if config.privacy.clip == "adaptive":
            raise ValueError(
                "strategy=sgmf makes its noise for all rounds at once, and an adaptive clip would change it: set "
                "privacy.clip to a number"
            )
        super().check(config)
        if self.server.optimizer != "sgd":
            raise ValueError(
                "strategy=sgmf adds noise that cancels in sums of updates: set strategy.server.optimizer=sgd"
            )
        everybody = config.clients.per_round == config.clients.total  # each pass has one round
        sampling = "passes" if self.restarts else "cycle"
        if not everybody and config.clients.sampling != sampling:
            place = "in different passes" if self.restarts else "a whole pass apart"
            raise ValueError(
                f"with strategy.restarts={str(self.restarts).lower()} the rounds of a client must be {place}: "
                f"set clients.sampling={sampling}"
            )
        if not self.restarts and self.factorisation not in ("banded", "identity"):
            raise ValueError(
                "with strategy.restarts=false the noise of a client's rounds must not overlap: set "
                "strategy.factorisation=banded"
            )
        apart = -(-config.clients.total // config.clients.per_round)
        if not self.restarts and (self.band or 1) > apart:
            raise ValueError(
                f"the rounds of a client are {apart} apart: set strategy.band to at most that, or to null"
            )
        if private and config.privacy.randomness == "secret" and config.checkpoint_every != 1:
            raise ValueError(
                "a resumed run of strategy=sgmf must know the noise of every released model: set checkpoint_every=1"
            )


SETTINGS = SgmfConfig
