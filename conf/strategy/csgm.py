"""L2-CSGM: clients send a random part of their update; and when the secrecy of the masks adds privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedsketch.conf.settings import FollowedSettings
from fedsketch.conf.types import Positive, frozen
from fedsketch.privacy.accounting.releases import Unit

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class CsgmConfig(FollowedSettings):
    rate: Annotated[float, Field(gt=0, le=1)]
    mask: Literal["own", "common"]
    bits: Literal[8, 16, 32]
    peak: Positive | None

    @property
    def measures_without_noise(self) -> bool:
        return self.mask == "own"

    def check(self, config: Config) -> None:
        if config.privacy.unit is not Unit.CLIENT:
            raise ValueError("strategy=csgm samples whole updates: set privacy.unit=client")
        if self.mask == "common":
            return
        if self.broadcast == "replay":
            raise ValueError(
                "with strategy.mask=own the mean of a round is as long as the model: set strategy.broadcast=full"
            )
        if config.secagg.name != "none" or config.secagg.noise != "gaussian":
            raise ValueError(
                "with strategy.mask=own every client sends other coordinates, so that they cannot be summed under "
                "masks, and the server, which is trusted, adds Gaussian noise: set secagg=none, or "
                "strategy.mask=common"
            )
        if config.privacy.fixed_clip is None:
            raise ValueError(
                "strategy=csgm sends numbers of a known range: set privacy.clip to a number"
            )
        if config.privacy.private and config.privacy.against == "server":
            raise ValueError(
                "with strategy.mask=own the server is trusted, and no budget can be against it: set "
                "privacy.against=model or client, or strategy.mask=common with secagg=auto"
            )
        if config.privacy.accounting == "paper":
            raise ValueError(
                "strategy=csgm computes its noise by its own theorem: set privacy.accounting=exact"
            )


SETTINGS = CsgmConfig
