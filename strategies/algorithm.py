"""What the author of a strategy needs to know: the two halves of a strategy, and what goes between them.

A round, from one half to the other:

    Strategy.broadcast          what devices need besides the model, such as the seed of a sketch
    DeviceHalf.prepare          what a device makes of it, once for all rows: the sketch
    DeviceHalf.shorten          the rows that leave: sketched, then clipped and noised by the mechanism
    Strategy.update             the server's step, from the sum of all rows

Everything between these methods is done elsewhere: who takes part (`strategies.rounds`), local training
(`strategies.local`), clip and noise (`privacy.mechanisms`, `strategies.noise`), masks (`secagg`), accounting
(`server.accounts`). A strategy that overrides nothing of "privacy" below has the guarantees of DP-FedAvg
(`strategies.noise.device`), whatever its two halves do.

    class Signs(Strategy[MySettings]):
        def update(self, server_round, aggregate):
            self.model.vector.sub_(self.settings.server.lr * aggregate.sum.sign())

    SERVER, DEVICE = Signs, DeviceHalf
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import torch
from flwr.app import RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedsketch.conf import Config
from fedsketch.conf.settings import StrategySettings
from fedsketch.delivery.parcels import Parcels
from fedsketch.errors import UnsafeUpdateError
from fedsketch.privacy.accounting.releases import Release, Unit
from fedsketch.privacy.mechanisms.bound_half import TrainedModel
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.strategies.noise.adversaries import in_words
from fedsketch.strategies.noise.device import DeviceNoise
from fedsketch.strategies.noise.plan import NoisePlan
from fedsketch.strategies.noise.sizes import CohortSizes
from fedsketch.strategies.rounds.clip import clipping_of
from fedsketch.strategies.rounds.messages import Broadcast, Scalar
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload

if TYPE_CHECKING:
    from fedsketch.strategies.local.row_factors import FactorSketch

SettingsT = TypeVar("SettingsT", bound=StrategySettings)
PreparedT = TypeVar("PreparedT")
Vector = NDArray[np.generic]


@dataclass(frozen=True)
class Aggregate:
    """The sum over the clients that delivered, which clients they were, and the standard deviation of the noise in
    each number of the sum. `parts` are the sums that it was made of, if the strategy asks for them."""

    sum: Tensor
    clients: int
    noise_std: float
    members: tuple[int, ...] = ()
    parts: tuple[Aggregate, ...] = ()


@dataclass(frozen=True)
class Payload:
    """What is sent to devices besides the model: tensors and scalars by name."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)


class Strategy(ABC, Generic[SettingsT]):
    """The server half. `settings` are those of the YAML file, checked. A strategy implements `update`, and overrides
    what differs from the default."""

    def __init__(self, config: Config, workload: Workload, model: FlatModel) -> None:
        self.config = config
        self.workload = workload
        self.model = model
        self.settings = cast(SettingsT, config.strategy)
        self.clipping = clipping_of(config)
        self.noise = self.plan_noise()
        self.start()

    # ------------------------------------------------------------------ rounds
    def start(self) -> None:
        """Make what the strategy keeps between rounds, such as an optimiser. Called once."""

    def upload_length(self, server_round: int) -> int:
        """Return how many numbers a client sends in a round, without the count that an adaptive clip adds."""
        return self.model.size

    def broadcast(self, server_round: int) -> Payload:
        """Return what is sent besides the model."""
        return Payload()

    @abstractmethod
    def update(self, server_round: int, aggregate: Aggregate) -> None:
        """Apply the sum of a round to the model."""

    def wants_parts(self, server_round: int) -> bool:
        """Return whether `update` also needs the parts of the sum: the sums of groups with secure aggregation, every
        upload without."""
        return False

    def groups(self, server_round: int) -> int:
        """Return the number of disjoint groups that secure aggregation sums separately. The server sees one sum for
        each."""
        return 1

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the last round that only this strategy has."""
        return {}

    # ------------------------------------------------------------------ checkpoints
    def state_dict(self) -> dict[str, Any]:
        """Return everything besides the model that the next round depends on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""

    # ------------------------------------------------------------------ privacy
    def plan_noise(self) -> NoisePlan:
        """Return how much noise there is, for the longest upload of the run. Called before `start`."""
        return self.device_noise()

    def device_noise(self) -> DeviceNoise:
        """Return the usual plan, in which devices add the noise to their uploads. Only uploads of the first rounds may
        be longer than later ones, so the first and the last round are compared."""
        privacy = self.config.privacy
        first, last = (self.vector_length(server_round) for server_round in (1, self.config.rounds))
        rows = self.workload.largest_shard if privacy.unit is Unit.EXAMPLE else 1
        return DeviceNoise(
            self.config,
            max(first, last),
            rows,
            self.clipping.bound,
            privacy.noise_multiplier,
            fine=first != last,  # what a ring that rotates holds depends on the length
        )

    def noise_of(self, server_round: int) -> NoisePlan:
        """Return the noise of one round. Strategies with different kinds of rounds override it."""
        return self.noise

    def releases(self, server_round: int, cohort: int, clients: int) -> dict[str, Release]:
        """Return what a round reveals to each adversary, by name, if `clients` of a cohort of this size delivered.

        The server and eavesdroppers see every attempt at a round. `model` and `client` see only rounds that were
        applied.
        """
        return self.noise_of(server_round).releases(cohort, clients)

    def worst(self, server_round: int) -> Release:
        """Return the most that a round reveals to the adversary of the privacy budget (`privacy.against`)."""
        return self.noise_of(server_round).worst()

    @property
    def budget_adversary(self) -> str:
        """The adversary of the privacy budget: a key of `releases`."""
        return self.config.privacy.against.value

    def adversary(self, name: str) -> str:
        """Return who an adversary is, in words."""
        return in_words(self.config, name)

    def remarks(self) -> str:
        """Return additional sentences for the statement of the run's guarantee."""
        return ""

    # ------------------------------------------------------------------ what every strategy can ask
    @property
    def sizes(self) -> CohortSizes:
        """The sizes of a cohort: how many clients may drop out, collude, and are needed."""
        return CohortSizes(self.config)

    def vector_length(self, server_round: int) -> int:
        """Return how many numbers a client sends in a round in total."""
        return self.upload_length(server_round) + self.clipping.extra

    def mechanism(self, server_round: int, cohort: int) -> Mechanism:
        """Return the mechanism that each device of a cohort of this size applies to its upload. An adaptive clip has
        its initial value here."""
        return self.noise_of(server_round).mechanism(cohort, self.vector_length(server_round))

    def units(self, aggregate: Aggregate) -> float:
        """Return the public number of privacy units by which a sum is divided. If the draw of the cohort is secret,
        the number of clients that delivered is secret too, and the expected number is used instead."""
        clients = self.clients(aggregate)
        if self.config.privacy.unit is Unit.EXAMPLE:
            clients *= self.workload.examples / self.config.clients.total
        return clients

    def clients(self, aggregate: Aggregate) -> float:
        """Return the public number of clients by which a sum is divided."""
        is_secret = self.noise.draw_is_secret
        return self.config.clients.per_round if is_secret else aggregate.clients

    # ------------------------------------------------------------------ hooks of the coordinator that few need
    @property
    def parcels(self) -> Parcels | None:
        """The steps that devices replay to follow the model by themselves; None if the model is sent."""
        return None

    def planned_broadcast(self) -> tuple[Payload, RecordDict]:
        """Return a payload of the size that the last round's will have, and what is sent to single devices beside it.
        For the plan of a run."""
        return self.broadcast(self.config.rounds), RecordDict()

    @property
    def device_config(self) -> Config:
        """The configuration that devices receive."""
        return self.config

    def must_pause(self, client: int, server_round: int) -> bool:
        """Return whether a client may not take part in a round for which it was drawn."""
        return False

    def inspect(self, mechanism: Mechanism, uploads: Sequence[Vector]) -> None:
        """Look at what the server received, before it is summed: sums of groups, or single uploads."""

    def arrange_parts(self, whole: Aggregate, stream: Callable[[], Stream]) -> Aggregate:
        """Return the aggregate with the parts that `update` gets. `stream` gives the server's own randomness."""
        return whole

    def stream_label(self, server_round: int) -> int:
        """Return the number that tells the server's randomness of this round from that of other rounds."""
        return server_round

    def added_noise(
        self,
        server_round: int,
        mechanism: Mechanism,
        dim: int,
        variance: float,
        stream: Callable[[int], Stream],
    ) -> Vector:
        """Return the server's own noise for the sum of a round: an upload that contains only noise of this variance.
        `stream` gives the secret randomness of any round."""
        with stream(server_round) as own:
            return mechanism.noise_alone(dim, variance, own)


# ---------------------------------------------------------------------- on the device
@dataclass(frozen=True)
class Clients:
    """The clients of some rows, one row each: their ids, how many examples each has, and what each remembers.
    Memories keep tensors for the device's next round of the run, and never leave the device."""

    ids: Sequence[int]
    sizes: Sequence[int]
    memories: Sequence[MutableMapping[str, Tensor]]


@dataclass(frozen=True)
class LocalWork:
    """The input of one client in a round. `model` already holds the parameters of the broadcast, and may be changed.
    `generator` is seeded by run, client and round."""

    broadcast: Broadcast
    shard: Examples
    model: FlatModel
    generator: torch.Generator
    memory: MutableMapping[str, Tensor]
    client: int = 0

    @property
    def clients(self) -> Clients:
        """This client alone."""
        return Clients([self.client], [len(self.shard)], [self.memory])


class DeviceHalf(Generic[PreparedT]):
    """The device half: how the rows of local training become shorter rows. A row is the update of a client, or the
    gradient of an example (`privacy.unit`). This class leaves them as they are, which is DP-FedAvg.

    It is one description. From it `strategies.local` derives the work of one device, of several simulated clients at
    once, and of rows that are given as factors. An object serves all clients that share a process, so it keeps
    nothing.
    """

    # Whether each client has one row, whatever the privacy unit is.
    ignores_unit: ClassVar[bool] = False

    def prepare(self, broadcast: Broadcast, model: FlatModel) -> PreparedT:
        """Return what follows from the broadcast alone, such as the sketch. Called once for each broadcast. Only the
        layout of `model` may be used."""
        return cast(PreparedT, None)

    def shorten(self, prepared: PreparedT, rows: Tensor) -> Tensor:
        """Return shorter rows, each made from its row alone."""
        return rows

    def shorten_clients(self, prepared: PreparedT, rows: Tensor, clients: Clients) -> Tensor:
        """Do the same for the updates of whole clients, where it depends on who they are."""
        return self.shorten(prepared, rows)

    def starts(self, prepared: PreparedT, clients: Sequence[int]) -> Tensor | None:
        """Return the model from which each client starts, (n, d). None: all start from the broadcast's model."""
        return None

    def factor_sketch(self, prepared: PreparedT) -> FactorSketch | None:
        """Return how rows are shortened that are given as factors. None if they have to be multiplied out."""
        return None

    def is_costly(self, prepared: PreparedT) -> bool:
        """Return whether `shorten` takes long even for few rows, so that it should get many at once."""
        return False

    def trained_model(self, prepared: PreparedT, work: LocalWork) -> TrainedModel:
        """Return the model that the round's mechanism trains, if it adds noise in every local step."""
        raise UnsafeUpdateError(
            "the mechanism adds noise during training, and this strategy adds it to uploads."
        )

    @property
    def shortens(self) -> bool:
        """Whether rows are changed at all."""
        base = DeviceHalf
        own = type(self)
        return own.shorten is not base.shorten or own.shorten_clients is not base.shorten_clients

    @property
    def is_trained_by_mechanism(self) -> bool:
        """Whether the mechanism adds noise in every local step, so that there are no rows."""
        return type(self).trained_model is not DeviceHalf.trained_model


def members_of(parts: Iterable[Aggregate]) -> tuple[int, ...]:
    """Return the clients in these sums, in ascending order."""
    return tuple(sorted(client for part in parts for client in part.members))
