"""What all strategies share: a round in Flower's vocabulary around two methods that a strategy writes.

`broadcast` says what the cohort gets, `update` takes the sum of what came back. In between lies the device's half, a
`LocalStep`. Everything else here is Flower's `Strategy` interface, so that a strategy also runs under Flower's own `start()`.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedsketch.conf import Config
from fedsketch.conf.schema import Sampling
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.encoding import decode
from fedsketch.replay.parcels import Parcels
from fedsketch.strategies.shared.cohort import Cohorts, meet
from fedsketch.strategies.shared.device_noise import NoisePlan
from fedsketch.strategies.shared.messages import Aggregate, Broadcast, Number
from fedsketch.strategies.shared.terms import GaussianTerms, Terms
from fedsketch.strategies.shared.uploads import uploaded
from fedsketch.tasks.examples import Examples
from fedsketch.tasks.flat import FlatModel


class RoundAborted(RuntimeError):
    """A round that must not be applied: too few arrived. Nothing was changed."""


class LocalStep(Protocol):
    """The device's half: rows to be clipped each on its own and summed, one per privacy unit (one for unit `client`).

    `model` already holds the broadcast's parameters; it may be changed. `generator` is seeded by run, client and round.
    What is put into `memory` is there in the device's next round of the run, and never leaves it.
    """

    def __call__(
        self,
        broadcast: Broadcast,
        shard: Examples,
        model: FlatModel,
        generator: torch.Generator,
        memory: MutableMapping[str, torch.Tensor],
    ) -> torch.Tensor: ...


class FederatedStrategy(Strategy):
    """The server's half. Subclasses write `update`, and `broadcast_extras` if more than the model goes out."""

    def __init__(
        self, config: Config, model: FlatModel, noise: NoisePlan, cohorts: Cohorts, examples: int
    ) -> None:
        self.config = config
        self.model = model
        self.noise = noise
        self.cohorts = cohorts
        self.examples = examples
        self.parcels: Parcels | None = None  # where devices make the arrays themselves
        self.attempt = 0
        self.dropped: dict[int, str] = {}
        self.arrived = 0
        self.snr: float | None = None
        self._nodes: dict[int, int] = {}
        self._cohort: dict[int, int] = {}  # client by node
        self._arrays: ArrayRecord | None = None
        self._terms: Terms = GaussianTerms(None, 0.0)
        self._size = 0

    # ------------------------------------------------------------------ what a strategy writes
    @staticmethod
    def upload_size(config: Config, model: FlatModel, server_round: int) -> int:
        """How many numbers a client sends in a round."""
        return model.size

    def broadcast_extras(
        self, server_round: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, Number]]:
        """Tensors and numbers that go out beside the model."""
        return {}, {}

    @staticmethod
    def planned_broadcast(config: Config, model: FlatModel, terms: Terms) -> RecordDict:
        """A broadcast as long as those of the run, for its plan."""
        return Broadcast(config, config.rounds, terms, {"model": model.vector}).to_records()

    @abstractmethod
    def update(self, server_round: int, aggregate: Aggregate) -> None:
        """Take the sum of a round into the model."""

    def metrics(self) -> dict[str, float | None]:
        """What the strategy has to tell of the last round, beside what all tell."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything beside the model that the next round depends on."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    # ------------------------------------------------------------------ Flower's interface
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        self.meet(grid)
        if arrays is not self._arrays:  # Flower's start() brings the initial model
            self.model.load(torch.from_numpy(arrays["model"].numpy().copy()))
        cohort = self.cohorts.draw(server_round, self.attempt)
        self.arrived, self.dropped, self.snr = 0, {}, None
        if len(cohort) < self.noise.smallest_cohort:
            # A Poisson draw can be this small. Drawing again would change its law: the round passes without an update.
            self._cohort = {}
            return []
        self._cohort = {self._nodes[client]: client for client in cohort}
        tensors, numbers = self._broadcast(server_round)
        self._size = self.upload_size(self.config, self.model, server_round)
        self._terms = self.noise.terms(len(cohort), self._size)
        content = Broadcast(
            config=self.config,
            round=server_round,
            terms=self._terms,
            arrays=tensors,
            numbers=numbers,
        ).to_records()
        return [
            Message(content, node, "train", group_id=str(server_round)) for node in self._cohort
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if not self._cohort:
            return None, None
        aggregate = self._sum(server_round, replies)
        self.snr = signal_to_noise(aggregate)
        self.update(server_round, aggregate)
        return self.arrays(), MetricRecord({"clients": aggregate.clients})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []  # the server evaluates: client metrics in clear would leak

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Flower prints its own; ours is the run's first line."""

    # ------------------------------------------------------------------ what the round loop asks
    def meet(self, grid: Grid) -> None:
        """Learn which node is which client, once."""
        if not self._nodes:
            self._nodes = meet(grid, self.config.clients.total, self.config.clients.timeout)

    def arrays(self) -> ArrayRecord:
        """The model as Flower carries it."""
        self._arrays = ArrayRecord({"model": Array(self.model.vector.cpu().numpy())})
        return self._arrays

    def nodes_of(self, server_round: int) -> list[int]:
        """Who will be asked in a round, if nothing goes wrong."""
        return [self._nodes[client] for client in self.cohorts.draw(server_round)]

    @property
    def cohort_size(self) -> int:
        return len(self._cohort)

    def explain_dropouts(self, reasons: Mapping[int, str]) -> None:
        """Why nodes dropped out, where somebody below knows better."""
        for node, reason in reasons.items():
            if self._cohort.get(node) in self.dropped:
                self.dropped[self._cohort[node]] = reason

    def units(self, aggregate: Aggregate) -> float:
        """What a sum is divided by, a public number of privacy units: under Poisson sampling the true size of the cohort is
        secret, and the expected one stands in for it."""
        clients: float = aggregate.clients
        if self.config.clients.sampling is Sampling.poisson:
            clients = self.config.clients.per_round
        if self.config.privacy.unit is Unit.EXAMPLE:
            clients *= self.examples / self.config.clients.total
        return clients

    # ------------------------------------------------------------------ inside
    def _broadcast(self, server_round: int) -> tuple[dict[str, torch.Tensor], dict[str, Number]]:
        if self.parcels is not None:
            return {}, self.parcels.head()
        extra, numbers = self.broadcast_extras(server_round)
        return {"model": self.model.vector, **extra}, numbers

    def _sum(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        self.dropped = dict.fromkeys(self._cohort.values(), "did not answer in time")
        parts: dict[int, tuple[NDArray[np.generic], int]] = {}
        for reply in replies:
            client = self._cohort.get(reply.metadata.src_node_id)
            if client is None:  # a reply that Flower writes for a lost node has no node id
                continue
            vector, reason = self._vector(reply)
            if vector is None:
                self.dropped[client] = reason
                continue
            survivors = self._survivors(reply)
            parts[client] = (vector, len(survivors))
            for survivor in survivors:
                self.dropped.pop(survivor, None)
        self.arrived = sum(clients for _, clients in parts.values())
        needed = self.noise.survivors(len(self._cohort))
        if self.arrived < needed:
            reasons = sorted(set(self.dropped.values()))
            raise RoundAborted(
                f"{self.arrived} of {len(self._cohort)} clients delivered, {needed} are needed ({'; '.join(reasons)})"
            )
        # In a fixed order: the same sum in every runtime.
        total = self._total([parts[client][0] for client in sorted(parts)], server_round)
        return Aggregate(
            torch.from_numpy(total).to(self.model.device, torch.float32),
            self.arrived,
            self._terms.sum_std(self.arrived),
        )

    def _vector(self, reply: Message) -> tuple[NDArray[np.generic] | None, str]:
        """What a reply brings, or why it brings nothing."""
        if reply.has_error():
            return None, reply.error.reason or f"error {reply.error.code}"
        if "update" not in reply.content.array_records:
            told = reply.content.config_records.get("secagg", ConfigRecord())
            return None, str(told.get("refusal", "sent no update"))
        vector = uploaded(reply.content)
        if vector.shape != (self._size,):
            return None, f"sent numbers of shape {vector.shape} instead of {self._size}"
        return vector, ""

    def _survivors(self, reply: Message) -> list[int]:
        """The clients in a reply: under secure aggregation those that the grid names, else the one that sent it."""
        nodes = [reply.metadata.src_node_id]
        if self.noise.masked:
            nodes = list(reply.content.config_records["secagg"]["survivors"])  # type: ignore[arg-type]
        return [self._cohort[node] for node in nodes]

    def _total(self, vectors: list[NDArray[Any]], server_round: int) -> NDArray[np.float64]:
        if isinstance(self._terms, GaussianTerms):
            total = np.zeros(vectors[0].shape)
            for vector in vectors:
                total += vector
            return total
        ring = np.zeros(vectors[0].shape, dtype=np.uint64)
        for vector in vectors:
            ring += vector  # modulo 2^64, and so modulo 2^b
        ring &= np.uint64((1 << self._terms.plan.bits) - 1)
        return decode(ring, self._terms.plan, rotation_seed=server_round)


def signal_to_noise(aggregate: Aggregate) -> float | None:
    """Estimated norm of the noise-free sum over the expected norm of the noise; None without noise."""
    if aggregate.noise_std == 0:
        return None
    noise = aggregate.noise_std**2 * aggregate.sum.numel()
    signal = float(aggregate.sum.double().square().sum()) - noise
    return (max(signal, 0.0) / noise) ** 0.5
