"""What all strategies share: a round in Flower's vocabulary around a few methods that a strategy writes.

`update` takes the sum of what came back; `broadcast_extras` says what goes out beside the model; `mechanism` and
`releases` say how uploads are protected and what a round shows to whom. In between lies the device's half, a
`DeviceHalf`. Everything else here is Flower's `Strategy` interface, so that a strategy also runs under Flower's own
`start()`.
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
from fedsketch.privacy.accounting.releases import Release, Unit
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.replay.frozen import FrozenPart
from fedsketch.replay.parcels import Parcels
from fedsketch.strategies.shared.adaptive_clip import clipping_of
from fedsketch.strategies.shared.adversaries import in_words
from fedsketch.strategies.shared.cohort import Cohorts, meet
from fedsketch.strategies.shared.cohort_sizes import CohortSizes
from fedsketch.strategies.shared.device_half import DeviceHalf, LocalWork
from fedsketch.strategies.shared.device_noise import DeviceNoise
from fedsketch.strategies.shared.messages import Aggregate, Broadcast, Number, signal_to_noise
from fedsketch.strategies.shared.uploads import GROUPS, delivered
from fedsketch.tasks.flat import FlatModel
from fedsketch.tasks.job import Job

__all__ = ["DeviceHalf", "FederatedStrategy", "LocalWork", "RoundAborted"]

_Part = tuple[NDArray[np.generic], list[int]]  # a sum, and the clients in it


class RoundAborted(RuntimeError):
    """A round that must not be applied: too few arrived. Nothing was changed."""


class FederatedStrategy(Strategy):
    """The server's half. Subclasses write `update`, and override what they do otherwise than the default."""

    def __init__(self, config: Config, job: Job, model: FlatModel, cohorts: Cohorts) -> None:
        self.config = config
        self.job = job
        self.model = model
        self.frozen = FrozenPart(model, job.features)
        self.cohorts = cohorts
        self.sizes = CohortSizes(config)
        self.clipping = clipping_of(config)
        self.noise = self.plan_noise()
        self.parcels: Parcels | None = None  # where devices make the arrays themselves
        self.lost: set[int] = set()  # clients that failed in an earlier attempt at this round
        self.dropped: dict[int, str] = {}
        self.arrived = 0
        self.snr: float | None = None
        self._nodes: dict[int, int] = {}
        self._cohort: dict[int, int] = {}  # client by node
        self._arrays: ArrayRecord | None = None
        self._asked: tuple[Mechanism, int] | None = None  # how this round's uploads are made

    # ------------------------------------------------------------------ what a strategy writes
    def upload_size(self, server_round: int) -> int:
        """How many numbers a client sends in a round, besides a count that an adaptive clip needs."""
        return self.model.size

    def broadcast_extras(
        self, server_round: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, Number]]:
        """Tensors and numbers that go out beside the model."""
        return {}, {}

    @abstractmethod
    def update(self, server_round: int, aggregate: Aggregate) -> None:
        """Take the sum of a round into the model."""

    def wants_parts(self, server_round: int) -> bool:
        """Whether `update` is to get the sums of groups, or without masks every upload, beside the whole sum."""
        return False

    def groups(self, server_round: int) -> int:
        """Into how many disjoint groups masks cut a cohort: the server then sees one sum for each."""
        return 1

    def metrics(self) -> dict[str, Any]:
        """Metrics of the last round that only this strategy has."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything beside the model that the next round depends on."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    # ------------------------------------------------------------------ what a strategy says about privacy
    def plan_noise(self) -> DeviceNoise:
        """How much noise the devices bring, for the longest upload of the run: only the first rounds may be longer than
        the others."""
        dim = max(self.numbers(server_round) for server_round in (1, self.config.rounds))
        example = self.config.privacy.unit is Unit.EXAMPLE
        rows = self.job.largest_shard if example else 1
        bound = self.clipping.bound
        return DeviceNoise(self.config, dim, rows, bound, self.config.privacy.noise_multiplier)

    def noise_of(self, server_round: int) -> DeviceNoise:
        """The noise of one round, for strategies whose rounds differ."""
        return self.noise

    def mechanism(self, server_round: int, cohort: int) -> Mechanism:
        """The mechanism that each device of a cohort of this size applies to its upload; an adaptive clip is that of
        the first round."""
        return self.noise_of(server_round).mechanism(cohort, self.numbers(server_round))

    def releases(self, server_round: int, cohort: int, clients: int) -> dict[str, Release]:
        """What a round reveals to each adversary, by name, if `clients` of a cohort of this size arrived.

        The server and eavesdroppers see every attempt; `model` and `client` see only rounds that were applied.
        """
        return self.noise_of(server_round).releases(cohort, clients)

    def worst(self, server_round: int) -> Release:
        """The most that a round reveals to the adversary of the budget."""
        return self.noise_of(server_round).worst()

    @property
    def noise_multiplier(self) -> float:
        """Noise of the sum over its sensitivity in the worst case. Noise that is known to those who work with the
        server does not count."""
        return self.noise.noise_multiplier

    @property
    def bound(self) -> str:
        """The adversary of the budget: a key of `releases`."""
        return self.config.privacy.against.value

    def adversary(self, name: str) -> str:
        """Who one of the adversaries is, in words."""
        return in_words(self.config, name)

    def remarks(self) -> str:
        """Sentences that the guarantee needs besides."""
        return ""

    # ------------------------------------------------------------------ Flower's interface
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        self.meet(grid)
        if arrays is not self._arrays:  # Flower's start() brings the initial model
            self.model.module.load_state_dict(arrays.to_torch_state_dict())
            self.frozen = FrozenPart(self.model, self.job.features)
        cohort = [client for client in self.cohorts.draw(server_round) if client not in self.lost]
        self.arrived, self.dropped, self.snr = 0, {}, None
        if not self.noise_of(server_round).asked(len(cohort)):
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
            self.pass_over(server_round)
            return None, None
        aggregate = self._sum(server_round, replies)
        self._take(server_round, aggregate)
        return self.arrays(), MetricRecord({"clients": aggregate.clients})

    def pass_over(self, server_round: int) -> None:
        """A draw that nobody is asked for, as a Poisson draw may be. Drawing again would change its law. Where sizes
        are hidden the round passes as noise alone, which looks like any other; elsewhere the model stays."""
        noise = self.noise_of(server_round)
        if noise.hidden:
            self.broadcast_extras(
                server_round
            )  # where a strategy chooses what `update` goes on with
            size = self.numbers(server_round)
            mechanism = self.clipping.of_round(noise.mechanism(noise.sizes.largest, size))
            nothing = np.zeros(size, np.float32 if mechanism.ring is None else np.uint64)
            self._take(server_round, self._aggregate(server_round, mechanism, 0, [(nothing, [])]))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []  # metrics in clear would leak: devices evaluate by `strategies.shared.evaluation`

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Flower prints its own; ours is the run's first line."""

    # ------------------------------------------------------------------ what the round loop asks
    def numbers(self, server_round: int) -> int:
        """How many numbers travel from a client in a round."""
        return self.upload_size(server_round) + self.clipping.extra

    def told(self) -> dict[str, Any]:
        """The metrics of the last round."""
        return {**self.clipping.metrics(), **self.metrics()}

    def saved(self) -> dict[str, Any]:
        """The state for a checkpoint, without the model."""
        shared = {"clipping": self.clipping.state_dict(), "frozen": self.frozen.fingerprint}
        return {"strategy": self.state_dict(), **shared}

    def resume(self, saved: dict[str, Any]) -> None:
        self.frozen.refuse_another(saved["frozen"])
        self.load_state_dict(saved["strategy"])
        self.clipping.load_state_dict(saved["clipping"])

    def meet(self, grid: Grid) -> None:
        """Learn which node is which client, once."""
        if not self._nodes:
            clients = self.config.clients
            numbered = isinstance(self.config.data, PartitionedSettings)
            self._nodes = meet(grid, clients.total, clients.timeout, numbered=numbered)

    def arrays(self) -> ArrayRecord:
        """The model as Flower carries it: `arrays.to_torch_state_dict()` fits `module.load_state_dict`."""
        self._arrays = ArrayRecord(self.model.module.state_dict())
        return self._arrays

    def nodes_of(self, server_round: int) -> list[int]:
        """The nodes that will be asked in a round, if nothing goes wrong."""
        return [self._nodes[client] for client in self.cohorts.draw(server_round)]

    def planned_broadcast(self) -> RecordDict:
        """A broadcast as long as those of the run, for its plan."""
        mechanism = self.mechanism(self.config.rounds, self.config.clients.per_round)
        return self._broadcast(self.config.rounds, mechanism).to_records()

    @property
    def cohort_size(self) -> int:
        return len(self._cohort)

    def leave_out(self, nodes: Iterable[int]) -> None:
        """These did not deliver: until the round is over they are not asked again. The draw stays what it was: who of
        it is there does not depend on who else was drawn, and another draw would be one that such cohorts made more
        likely."""
        lost = {self._cohort[node] for node in nodes if node in self._cohort} | set(self.dropped)
        rest = len(set(self._cohort.values()) - lost)
        # If hardly anybody delivered, the fault may be ours: all are asked again.
        self.lost = self.lost | lost if self.noise.asked(rest) else set()

    def explain_dropouts(self, reasons: Mapping[int, str]) -> None:
        """Why nodes dropped out, where a grid knows better."""
        for node, reason in reasons.items():
            if self._cohort.get(node) in self.dropped:
                self.dropped[self._cohort[node]] = reason

    def units(self, aggregate: Aggregate) -> float:
        """The public number of privacy units by which a sum is divided. If the draw of the cohort is secret, the number
        of clients that arrived is secret too, and the expected number is used instead."""
        clients = self.clients(aggregate)
        if self.config.privacy.unit is Unit.EXAMPLE:
            clients *= self.job.examples / self.config.clients.total
        return clients

    def clients(self, aggregate: Aggregate) -> float:
        """The public number of clients by which a sum is divided."""
        return self.config.clients.per_round if self.noise.hidden else aggregate.clients

    # ------------------------------------------------------------------ inside
    def _take(self, server_round: int, whole: Aggregate) -> None:
        """A round's sum: the clip takes its part, the strategy the rest."""
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
        # In a fixed order: the same sum in every runtime.
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
        """The sum, with the noise that the server adds."""
        members = tuple(sorted(client for _, clients in parts for client in clients))
        noise, vectors = self.noise_of(server_round), [vector for vector, _ in parts]
        variance = noise.variance(cohort, len(members))
        added = variance - len(members) * mechanism.share
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
        """The server's own noise for the sum of a round, as an upload that contains only noise of this variance."""
        with self._stream(server_round) as stream:
            return mechanism.noise_alone(dim, variance, stream)

    def _stream(self, server_round: int) -> Stream:
        """The randomness of the server's own noise: secret, unless the run is to be reproducible."""
        if self.config.privacy.randomness is Randomness.secret:
            return Stream()
        return Stream(derived_key(self.config.seed, "server noise", server_round, len(self.lost)))

    def _survivors(self, reply: Message) -> list[int]:
        """The clients in a reply: where the grid makes sums those that it names, else the one that sent it."""
        nodes = [reply.metadata.src_node_id]
        if self.sizes.masked or self.config.runtime.name == "cohort":
            nodes = list(reply.content.config_records["secagg"]["survivors"])  # type: ignore[arg-type]
        return [self._cohort[node] for node in nodes]
