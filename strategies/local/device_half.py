"""The device half of a strategy, and its input."""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field

import torch

from fedsketch.conf import Config
from fedsketch.errors import UnsafeUpdateError
from fedsketch.privacy.mechanisms.bound_half import TrainedModel
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.strategies.local.batched import BatchedWork
from fedsketch.strategies.local.product_cache import ProductCache
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel


@dataclass(frozen=True)
class LocalWork:
    """The input of a device half in a round.

    - `model` already holds the parameters of the broadcast. It may be changed.
    - `generator` is seeded by run, client and round.
    - `memory` keeps tensors for the device's next round of the run. They never leave the device.
    - `client` is the number by which the server knows the client.
    - `kept` caches products for as long as the process lives.
    """

    broadcast: Broadcast
    shard: Examples
    model: FlatModel
    generator: torch.Generator
    memory: MutableMapping[str, torch.Tensor]
    client: int = 0
    kept: ProductCache = field(default_factory=ProductCache)


class DeviceHalf:
    """The device half. A strategy implements `rows`, or `trained_model` if its mechanism adds noise during local
    training.

    One object serves all clients that share a process. So it may keep only what follows from the broadcast alone.
    """

    def rows(self, work: LocalWork) -> torch.Tensor:
        """Return one row per privacy unit (so a single row for unit `client`). The round's mechanism clips each row
        and sums them."""
        raise UnsafeUpdateError(
            "the mechanism adds noise to uploads, and this strategy adds it during training."
        )

    def blocks(self, work: LocalWork) -> Iterator[Rows]:
        """Return the same rows in blocks, possibly as factors (`strategies.local.factored`). Used if the mechanism
        rounds the sum of the rows."""
        yield Rows.of(self.rows(work))

    def batched_blocks(self, work: BatchedWork) -> list[Rows] | None:
        """Return the rows of `blocks` for several clients, one element for each, the same up to rounding. For
        simulations. None if `batched_rows` is to be used."""
        return None

    def batched_rows(self, work: BatchedWork) -> torch.Tensor | None:
        """Return the rows of several clients, in their order, the same as those of `rows` up to rounding. For
        simulations. None if clients must be processed one by one."""
        return None

    def costly(self, config: Config) -> bool:
        """Whether `batched_rows` takes long even for few rows, so that it should be called for many clients at once."""
        return False

    def trained_model(self, work: LocalWork) -> TrainedModel:
        """Return the model that the round's mechanism trains."""
        raise UnsafeUpdateError(
            "the mechanism adds noise during training, and this strategy adds it to uploads."
        )
