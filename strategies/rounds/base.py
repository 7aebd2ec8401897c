"""The base class of all strategies on the server. It implements Flower's `Strategy`, and leaves a few methods to each
strategy.

- `broadcast_extras`: what is sent to devices besides the model.
- `update`: applies the sum of the uploads to the model.
- `mechanism` and `releases`: how uploads are protected, and what a round reveals to whom.

The work on the devices is done by the strategy's `DeviceHalf`. The rest of this class is Flower's `Strategy`
interface, so that a strategy also runs with Flower's own `start()`.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedsketch.conf import Config
from fedsketch.conf.schema import Randomness
from fedsketch.conf.settings import PartitionedSettings
from fedsketch.delivery.frozen_part import FrozenPart
from fedsketch.delivery.parcels import Parcels
from fedsketch.errors import RoundAborted
from fedsketch.privacy.accounting.releases import Release, Unit
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.secagg import RECORD, SURVIVORS
from fedsketch.strategies.local.device_half import DeviceHalf, LocalWork
from fedsketch.strategies.noise.adversaries import in_words
from fedsketch.strategies.noise.device import DeviceNoise
from fedsketch.strategies.noise.sizes import CohortSizes
from fedsketch.strategies.rounds.clip import clipping_of
from fedsketch.strategies.rounds.messages import Aggregate, Broadcast, Number, signal_to_noise
from fedsketch.strategies.rounds.sampling import CohortSampler, identify_clients
from fedsketch.strategies.rounds.uploads import GROUPS, delivered
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload

__all__ = ["DeviceHalf", "FederatedStrategy", "LocalWork", "RoundAborted"]

_Part = tuple[NDArray[np.generic], list[int]]  # a sum of uploads, and the clients in it


class FederatedStrategy(Strategy):
    """The server half. Subclasses implement `update`, and override the methods in which they differ from the
    default."""

    def __init__(
        self, config: Config, job: Workload, model: FlatModel, cohorts: CohortSampler
    ) -> None:
        self.config = config
        self.job = job
        self.model = model
        self.frozen = FrozenPart(model, job.features)
        self.cohorts = cohorts
        self.sizes = CohortSizes(config)
        self.clipping = clipping_of(config)
        self.noise = self.plan_noise()
        self.parcels: Parcels | None = None  # set if devices make the arrays themselves (replay)
        self.lost: set[int] = set()  # clients that failed in an earlier attempt at this round
        self.dropped: dict[int, str] = {}  # clients that did not deliver, and why
        self.arrived = 0
        self.snr: float | None = None
        self._nodes: dict[int, int] = {}  # node by client
        self._cohort: dict[int, int] = {}  # client by node
        self._arrays: ArrayRecord | None = None
        self._asked: tuple[Mechanism, int] | None = None  # mechanism and length of uploads

    # ------------------------------------------------------------------ what a strategy implements
    def upload_size(self, server_round: int) -> int:
        """Return how many numbers a client sends in a round, without the count that an adaptive clip adds."""
        return self.model.size

    def broadcast_extras(
        self, server_round: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, Number]]:
        """Return the tensors and numbers that are sent besides the model."""
        return {}, {}

    @abstractmethod
    def update(self, server_round: int, aggregate: Aggregate) -> None:
        """Apply the sum of a round to the model."""

    def wants_parts(self, server_round: int) -> bool:
        """Whether `update` also needs the parts of the sum: the sums of groups with secure aggregation, every upload
        without."""
        return False

    def groups(self, server_round: int) -> int:
        """Return the number of disjoint groups that secure aggregation sums separately. The server sees one sum for
        each."""
        return 1

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the last round that only this strategy has."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return everything besides the model that the next round depends on."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    # ------------------------------------------------------------------ what a strategy says about privacy
    def plan_noise(self) -> DeviceNoise:
        """Return how much noise the devices add, for the longest upload of the run. Only uploads of the first rounds
        may be longer than later ones, so the first and the last round are compared."""
        dim = max(self.numbers(server_round) for server_round in (1, self.config.rounds))
        example = self.config.privacy.unit is Unit.EXAMPLE
        rows = self.job.largest_shard if example else 1
        bound = self.clipping.bound
        return DeviceNoise(self.config, dim, rows, bound, self.config.privacy.noise_multiplier)

    def noise_of(self, server_round: int) -> DeviceNoise:
        """Return the noise of one round. Strategies with different kinds of rounds override it."""
        return self.noise

    def mechanism(self, server_round: int, cohort: int) -> Mechanism:
        """Return the mechanism that each device of a cohort of this size applies to its upload. An adaptive clip has
        its initial value here."""
        return self.noise_of(server_round).mechanism(cohort, self.numbers(server_round))

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
    def noise_multiplier(self) -> float:
        """The standard deviation of the sum's noise divided by its sensitivity, in the worst case. Noise that the
        adversary of the budget knows does not count."""
        return self.noise.noise_multiplier

    @property
    def bound(self) -> str:
        """The adversary of the privacy budget: a key of `releases`."""
        return self.config.privacy.against.value

    def adversary(self, name: str) -> str:
        """Return who an adversary is, in words."""
        return in_words(self.config, name)

    def remarks(self) -> str:
        """Return additional sentences for the statement of the run's guarantee."""
        return ""

    # ------------------------------------------------------------------ Flower's interface
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        self.identify_clients(grid)
        if arrays is not self._arrays:  # Flower's start() brings the initial model
            self.model.module.load_state_dict(arrays.to_torch_state_dict())
            self.frozen = FrozenPart(self.model, self.job.features)
        cohort = [client for client in self.cohorts.draw(server_round) if client not in self.lost]
        self.arrived, self.dropped, self.snr = 0, {}, None
        if not self.noise_of(server_round).accepts(len(cohort)):
            self._cohort = {}
            return []
        self._cohort = {self._nodes[client]: client for client in cohort}
        mechanism = self.clipping.of_round(self.mechanism(server_round, len(cohort)))
        self._asked = (mechanism, self.numbers(server_round))
        content = self._broadcast(server_round, mechanism).to_records()
        return [
            Message(content, node, "train", group_id=str(server_round)) for node in self._cohort
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if not self._cohort:
            self.skip_round(server_round)
            return None, None
        aggregate = self._sum(server_round, replies)
        self._apply_sum(server_round, aggregate)
        return self.arrays(), MetricRecord({"clients": aggregate.clients})

    def skip_round(self, server_round: int) -> None:
        """Finish a round for which no client is asked, because its Poisson draw was too small or too large. Drawing
        again would change the distribution of the draw. If the size of a cohort is secret
        (`DeviceNoise.draw_is_secret`), the round is applied with noise alone, which looks like any other round.
        Otherwise the model stays as it is."""
        noise = self.noise_of(server_round)
        if noise.draw_is_secret:
            # A strategy may choose here what its `update` needs, such as the sketch of the round.
            self.broadcast_extras(server_round)
            size = self.numbers(server_round)
            mechanism = self.clipping.of_round(noise.mechanism(noise.sizes.largest, size))
            nothing = np.zeros(size, np.float32 if mechanism.ring is None else np.uint64)
            self._apply_sum(
                server_round, self._aggregate(server_round, mechanism, 0, [(nothing, [])])
            )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []  # metrics without noise would leak: see `strategies.rounds.evaluation`

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Print nothing. Flower's strategies print a summary here; ours is the first line of a run."""

    # ------------------------------------------------------------------ what the round loop needs
    def numbers(self, server_round: int) -> int:
        """Return how many numbers a client sends in a round in total."""
        return self.upload_size(server_round) + self.clipping.extra

    def all_metrics(self) -> dict[str, Any]:
        """Return all metrics of the last round."""
        return {**self.clipping.metrics(), **self.metrics()}

    def checkpoint_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the model."""
        shared = {"clipping": self.clipping.state_dict(), "frozen": self.frozen.fingerprint}
        return {"strategy": self.state_dict(), **shared}

    def resume(self, saved: dict[str, Any]) -> None:
        self.frozen.refuse_another(saved["frozen"])
        self.load_state_dict(saved["strategy"])
        self.clipping.load_state_dict(saved["clipping"])

    def identify_clients(self, grid: Grid) -> None:
        """Ask every node which client it is, once per run."""
        if not self._nodes:
            clients = self.config.clients
            numbered = isinstance(self.config.data, PartitionedSettings)
            self._nodes = identify_clients(grid, clients.total, clients.timeout, numbered=numbered)

    def arrays(self) -> ArrayRecord:
        """Return the model as a Flower record: `arrays.to_torch_state_dict()` fits `module.load_state_dict`."""
        self._arrays = ArrayRecord(self.model.module.state_dict())
        return self._arrays

    def nodes_of(self, server_round: int) -> list[int]:
        """Return the nodes that will be asked in a round if no client failed before."""
        return [self._nodes[client] for client in self.cohorts.draw(server_round)]

    def planned_broadcast(self) -> RecordDict:
        """Return a broadcast of the size that the run's broadcasts will have, for the run's plan."""
        mechanism = self.mechanism(self.config.rounds, self.config.clients.per_round)
        return self._broadcast(self.config.rounds, mechanism).to_records()

    @property
    def cohort_size(self) -> int:
        return len(self._cohort)

    def leave_out(self, nodes: Iterable[int]) -> None:
        """Do not ask these nodes again until the round is over, because they did not deliver. The rest of the cohort
        is kept: whether a client delivers does not depend on who else was drawn. A new draw would favour cohorts in
        which nobody fails."""
        lost = {self._cohort[node] for node in nodes if node in self._cohort} | set(self.dropped)
        rest = len(set(self._cohort.values()) - lost)
        # If hardly any client delivered, the server may be the cause: then all are asked again.
        self.lost = self.lost | lost if self.noise.accepts(rest) else set()

    def explain_dropouts(self, reasons: Mapping[int, str]) -> None:
        """Replace the reasons why nodes dropped out by more precise ones, which a Grid knows."""
        for node, reason in reasons.items():
            if self._cohort.get(node) in self.dropped:
                self.dropped[self._cohort[node]] = reason

    def units(self, aggregate: Aggregate) -> float:
        """Return the public number of privacy units by which a sum is divided. If the draw of the cohort is secret,
        the number of clients that delivered is secret too, and the expected number is used instead."""
        clients = self.clients(aggregate)
        if self.config.privacy.unit is Unit.EXAMPLE:
            clients *= self.job.examples / self.config.clients.total
        return clients

    def clients(self, aggregate: Aggregate) -> float:
        """Return the public number of clients by which a sum is divided."""
        return self.config.clients.per_round if self.noise.draw_is_secret else aggregate.clients

    # ------------------------------------------------------------------ inside
    def _apply_sum(self, server_round: int, whole: Aggregate) -> None:
        """Apply the sum of a round: the counts go to the adaptive clip, the rest to the strategy."""
        aggregate = self.clipping.read(whole, self.units(whole))
        self.snr = signal_to_noise(aggregate)
        self.update(server_round, aggregate)

    def _broadcast(self, server_round: int, mechanism: Mechanism) -> Broadcast:
        frozen = self.frozen.head()
        if self.parcels is not None:
            told = {**frozen, **self.parcels.head()}
            return Broadcast(self.config, server_round, mechanism, {}, told)
        extra, numbers = self.broadcast_extras(server_round)
        if self.groups(server_round) > 1:
            numbers = {**numbers, GROUPS: self.groups(server_round)}
        arrays = {"model": self.model.vector, **extra}
        return Broadcast(self.config, server_round, mechanism, arrays, {**frozen, **numbers})

    def _sum(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        assert self._asked is not None
        mechanism, size = self._asked
        self.dropped = dict.fromkeys(self._cohort.values(), "did not answer in time")
        parts: dict[int, _Part] = {}
        for reply in replies:
            client = self._cohort.get(reply.metadata.src_node_id)
            if client is None:  # a reply that Flower writes for a lost node has no node id
                continue
            vector, reason = delivered(reply, mechanism, size)
            if vector is None:
                self.dropped[client] = reason
                continue
            survivors = self._survivors(reply)
            parts[client] = (vector, survivors)
            for survivor in survivors:
                self.dropped.pop(survivor, None)
        self.arrived = sum(len(members) for _, members in parts.values())
        groups = self.groups(server_round)
        needed = groups * CohortSizes(self.config, groups).survivors(len(self._cohort))
        if self.arrived < needed:
            reasons = sorted(set(self.dropped.values()))
            raise RoundAborted(
                f"{self.arrived} of {len(self._cohort)} clients delivered, {needed} are needed ({'; '.join(reasons)})"
            )
        # In a fixed order, so that the sum is the same in every runtime.
        ordered = [parts[client] for client in sorted(parts)]
        whole = self._aggregate(server_round, mechanism, len(self._cohort), ordered)
        if not self.wants_parts(server_round):
            return whole
        each = (
            self._aggregate(server_round, mechanism, len(self._cohort), [part]) for part in ordered
        )
        return replace(whole, parts=tuple(each))

    def _aggregate(
        self, server_round: int, mechanism: Mechanism, cohort: int, parts: list[_Part]
    ) -> Aggregate:
        """Return the sum of these parts, with the noise that the server adds to it."""
        members = tuple(sorted(client for _, clients in parts for client in clients))
        noise, vectors = self.noise_of(server_round), [vector for vector, _ in parts]
        variance = noise.variance(cohort, len(members))
        added = variance - len(members) * mechanism.variance_per_device
        if added > 0:
            vectors.append(self.server_noise(server_round, mechanism, len(vectors[0]), added))
        total = mechanism.total(vectors, server_round)
        return Aggregate(
            torch.from_numpy(total).to(self.model.device, torch.float32),
            len(members),
            mechanism.noise_std(variance),
            members,
        )

    def server_noise(
        self, server_round: int, mechanism: Mechanism, dim: int, variance: float
    ) -> NDArray[np.generic]:
        """Return the server's own noise for the sum of a round: an upload that contains only noise of this
        variance."""
        with self._stream(server_round) as stream:
            return mechanism.noise_alone(dim, variance, stream)

    def _stream(self, server_round: int) -> Stream:
        """Return the randomness for the server's own noise. It is secret, unless the run is set to be reproducible."""
        if self.config.privacy.randomness is Randomness.SECRET:
            return Stream()
        return Stream(derived_key(self.config.seed, "server noise", server_round, len(self.lost)))

    def _survivors(self, reply: Message) -> list[int]:
        """Return the clients whose uploads are in a reply. If the Grid sums uploads it names them; otherwise it is the
        client that sent the reply."""
        nodes = [reply.metadata.src_node_id]
        if self.sizes.masked or self.config.runtime.name == "cohort":
            nodes = list(reply.content.config_records[RECORD][SURVIVORS])  # type: ignore[arg-type]
        return [self._cohort[node] for node in nodes]
