"""The device's half of a strategy, and what it works with."""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field

import torch

from fedsketch.conf import Config
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.privacy.mechanisms.trainee import Trainee
from fedsketch.privacy.mechanisms.unsafe import UnsafeUpdateError
from fedsketch.sketching.kept_products import KeptProducts
from fedsketch.strategies.shared.cohort_work import CohortWork
from fedsketch.strategies.shared.messages import Broadcast
from fedsketch.tasks.examples import Examples
from fedsketch.tasks.flat import FlatModel


@dataclass(frozen=True)
class LocalWork:
    """What a device half works with in a round.

    `model` already holds the broadcast's parameters; it may be changed. `generator` is seeded by run, client and round.
    What is put into `memory` is there in the device's next round of the run, and never leaves it. `client` is the
    number by which the server knows it. `kept` is there as long as the process is.
    """

    broadcast: Broadcast
    shard: Examples
    model: FlatModel
    generator: torch.Generator
    memory: MutableMapping[str, torch.Tensor]
    client: int = 0
    kept: KeptProducts = field(default_factory=KeptProducts)


class DeviceHalf:
    """The device's half: `rows`, or `trainee` where the strategy's mechanism has its noise inside of training.

    One object serves all clients that share a process, so what it keeps must follow from the broadcast alone.
    """

    def rows(self, work: LocalWork) -> torch.Tensor:
        """Rows to be bounded each on its own and summed by the round's mechanism, one per privacy unit (one for unit
        `client`)."""
        raise UnsafeUpdateError(
            "the mechanism blurs an upload, and this strategy noises its steps."
        )

    def blocks(self, work: LocalWork) -> Iterator[Rows]:
        """The same rows in blocks, perhaps as factors (`strategies.shared.factored`), where the mechanism rounds their
        sum."""
        yield Rows.of(self.rows(work))

    def cohort_blocks(self, work: CohortWork) -> list[Rows] | None:
        """For simulations: the rows of `blocks`, of several clients, one element for each, up to rounding. None: as
        `cohort_rows`."""
        return None

    def cohort_rows(self, work: CohortWork) -> torch.Tensor | None:
        """For simulations: the rows of several clients, in their order, as `rows` makes them up to rounding. None: one
        by one."""
        return None

    def costly(self, config: Config) -> bool:
        """Whether `cohort_rows` takes much time however few rows it makes, so that they should be many."""
        return False

    def trainee(self, work: LocalWork) -> Trainee:
        """The model that the round's mechanism trains."""
        raise UnsafeUpdateError("the mechanism noises steps, and this strategy blurs its upload.")
