"""Runs a strategy's rounds under Flower: who takes part, what they are sent, who dropped out, and the sum.

`Coordinator` is a Flower `Strategy`, so an algorithm (`strategies.algorithm.Strategy`) also runs with Flower's own
`start()`. The round loop of fedsketch (`server.rounds`) calls the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy as FlowerStrategy
from numpy.typing import NDArray

from fedsketch.conf import Config
from fedsketch.conf.schema import Randomness
from fedsketch.conf.settings import PartitionedSettings, StrategySettings
from fedsketch.delivery.frozen_part import FrozenPart
from fedsketch.errors import RoundAborted
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.secagg import RECORD, SURVIVORS
from fedsketch.strategies.algorithm import Aggregate, Payload, Strategy
from fedsketch.strategies.noise.sizes import CohortSizes
from fedsketch.strategies.rounds.codec import GROUPS, delivered
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.strategies.rounds.sampling import CohortSampler, identify_clients

_PartialSum = tuple[NDArray[np.generic], list[int]]  # a sum of uploads, and the clients in it
Listener = Callable[[int, Aggregate], None]


class Coordinator(FlowerStrategy):
    """The rounds of one strategy. `listeners` are called with each sum before it is applied."""

    def __init__(self, strategy: Strategy[StrategySettings], sampler: CohortSampler) -> None:
        self.strategy = strategy
        self.sampler = sampler
        self.frozen = FrozenPart(strategy.model, strategy.workload.features)
        self.listeners: list[Listener] = []
        self.lost: set[int] = set()  # clients that failed in an earlier attempt at this round
        self.dropped: dict[int, str] = {}  # clients that did not deliver, and why
        self.arrived = 0
        self.snr: float | None = None
        self.nodes: dict[int, int] = {}  # node by client
        self._cohort: dict[int, int] = {}  # client by node
        self._arrays: ArrayRecord | None = None
        self._expected: tuple[Mechanism, int] | None = None  # mechanism and length of uploads

    @property
    def config(self) -> Config:
        return self.strategy.config

    # ------------------------------------------------------------------ Flower's interface
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        self.identify_clients(grid)
        strategy = self.strategy
        if arrays is not self._arrays:  # Flower's start() brings the initial model
            strategy.model.module.load_state_dict(arrays.to_torch_state_dict())
            self.frozen = FrozenPart(strategy.model, strategy.workload.features)
        drawn = self.sampler.draw(server_round)
        self.lost |= {client for client in drawn if strategy.must_pause(client, server_round)}
        cohort = [client for client in drawn if client not in self.lost]
        self.arrived, self.dropped, self.snr = 0, {}, None
        if not strategy.noise_of(server_round).accepts(len(cohort)):
            self._cohort = {}
            return []
        self._cohort = {self.nodes[client]: client for client in cohort}
        mechanism = strategy.clipping.of_round(strategy.mechanism(server_round, len(cohort)))
        self._expected = (mechanism, strategy.vector_length(server_round))
        payload = strategy.broadcast(server_round)
        content = self._message(server_round, mechanism, payload).to_records()
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
    def identify_clients(self, grid: Grid) -> None:
        """Ask every node which client it is, once per run."""
        if not self.nodes:
            clients = self.config.clients
            numbered = isinstance(self.config.data, PartitionedSettings)
            self.nodes |= identify_clients(grid, clients.total, clients.timeout, numbered=numbered)

    def arrays(self) -> ArrayRecord:
        """Return the model as a Flower record: `arrays.to_torch_state_dict()` fits `module.load_state_dict`."""
        self._arrays = ArrayRecord(self.strategy.model.module.state_dict())
        return self._arrays

    def nodes_of(self, server_round: int) -> list[int]:
        """Return the nodes that will be asked in a round if no client failed before."""
        return [self.nodes[client] for client in self.sampler.draw(server_round)]

    @property
    def cohort_size(self) -> int:
        return len(self._cohort)

    def skip_round(self, server_round: int) -> None:
        """Finish a round for which no client is asked, because its Poisson draw was too small or too large. Drawing
        again would change the distribution of the draw. If the size of a cohort is secret
        (`NoisePlan.draw_is_secret`), the round is applied with noise alone, which looks like any other round.
        Otherwise the model stays as it is."""
        strategy = self.strategy
        noise = strategy.noise_of(server_round)
        if noise.draw_is_secret:
            # A strategy may choose here what its `update` needs, such as the sketch of the round.
            strategy.broadcast(server_round)
            size = strategy.vector_length(server_round)
            mechanism = strategy.clipping.of_round(noise.mechanism(noise.sizes.largest, size))
            nothing = np.zeros(size, np.float32 if mechanism.ring is None else np.uint64)
            self._apply_sum(
                server_round, self.aggregate(server_round, mechanism, 0, [(nothing, [])])
            )

    def leave_out(self, nodes: Iterable[int]) -> set[int]:
        """Do not ask these nodes again until the round is over, because they did not deliver, and return all clients
        that did not. The rest of the cohort is kept: whether a client delivers does not depend on who else was drawn. A
        new draw would favour cohorts in which nobody fails."""
        lost = {self._cohort[node] for node in nodes if node in self._cohort} | set(self.dropped)
        rest = len(set(self._cohort.values()) - lost)
        # If hardly any client delivered, the server may be the cause: then all are asked again.
        self.lost = self.lost | lost if self.strategy.noise.accepts(rest) else set()
        return lost

    def explain_dropouts(self, reasons: Mapping[int, str]) -> None:
        """Replace the reasons why nodes dropped out by more precise ones, which a Grid knows."""
        for node, reason in reasons.items():
            if self._cohort.get(node) in self.dropped:
                self.dropped[self._cohort[node]] = reason

    def all_metrics(self) -> dict[str, Any]:
        """Return all metrics of the last round that depend on the strategy."""
        strategy = self.strategy
        own = strategy.metrics()
        if self.arrived == 0:  # no client was asked, so nothing was measured
            own = dict.fromkeys(own)
        return {**strategy.clipping.metrics(), **own}

    def planned_broadcast(self) -> RecordDict:
        """Return a broadcast of the size that the run's broadcasts will have, for the run's plan."""
        strategy, last = self.strategy, self.config.rounds
        mechanism = strategy.mechanism(last, self.config.clients.per_round)
        payload, beside = strategy.planned_broadcast()
        return RecordDict({**self._message(last, mechanism, payload).to_records(), **beside})

    # ------------------------------------------------------------------ checkpoints
    def checkpoint_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the model."""
        strategy = self.strategy
        shared = {"clipping": strategy.clipping.state_dict(), "frozen": self.frozen.fingerprint}
        return {"strategy": strategy.state_dict(), **shared}

    def resume(self, state: dict[str, Any]) -> None:
        """Restore what `checkpoint_state` returned."""
        self.frozen.refuse_another(state["frozen"])
        self.strategy.load_state_dict(state["strategy"])
        self.strategy.clipping.load_state_dict(state["clipping"])

    # ------------------------------------------------------------------ the message of a round
    def _message(self, server_round: int, mechanism: Mechanism, payload: Payload) -> Broadcast:
        strategy = self.strategy
        scalars = {**self.frozen.head(), **payload.scalars}
        arrays: dict[str, torch.Tensor] = {}
        if strategy.parcels is not None:  # devices make the arrays themselves
            scalars |= strategy.parcels.head()
        else:
            arrays = {"model": strategy.model.vector, **payload.tensors}
        if strategy.groups(server_round) > 1:
            scalars[GROUPS] = strategy.groups(server_round)
        return Broadcast(strategy.device_config, server_round, mechanism, arrays, scalars)

    # ------------------------------------------------------------------ the sum of a round
    def _apply_sum(self, server_round: int, whole: Aggregate) -> None:
        """Apply the sum of a round: the counts go to the adaptive clip, the rest to the strategy."""
        for listener in self.listeners:
            listener(server_round, whole)
        strategy = self.strategy
        aggregate = strategy.clipping.read(whole, strategy.units(whole))
        self.snr = signal_to_noise(aggregate)
        strategy.update(server_round, aggregate)

    def _sum(self, server_round: int, replies: Iterable[Message]) -> Aggregate:
        assert self._expected is not None
        mechanism, _ = self._expected
        strategy, cohort = self.strategy, len(self._cohort)
        parts = self._delivered(replies)
        self.arrived = sum(len(members) for _, members in parts.values())
        groups = strategy.groups(server_round)
        needed = groups * CohortSizes(self.config, groups).survivors(cohort)
        if self.arrived < needed:
            reasons = sorted(set(self.dropped.values()))
            raise RoundAborted(
                f"{self.arrived} of {cohort} clients delivered, {needed} are needed ({'; '.join(reasons)})"
            )
        # In a fixed order, so that the sum is the same in every runtime.
        ordered = [parts[client] for client in sorted(parts)]
        whole = self.aggregate(server_round, mechanism, cohort, ordered)
        if not strategy.wants_parts(server_round):
            return whole
        each = (self.aggregate(server_round, mechanism, cohort, [part]) for part in ordered)
        return strategy.arrange_parts(
            replace(whole, parts=tuple(each)), lambda: self._stream(server_round)
        )

    def _delivered(self, replies: Iterable[Message]) -> dict[int, _PartialSum]:
        """Return the sums that arrived, each by the client that sent it, and note who dropped out and why."""
        assert self._expected is not None
        self.dropped = dict.fromkeys(self._cohort.values(), "did not answer in time")
        parts: dict[int, _PartialSum] = {}
        for reply in replies:
            client = self._cohort.get(reply.metadata.src_node_id)
            if client is None:  # a reply that Flower writes for a lost node has no node id
                continue
            vector, reason = delivered(reply, *self._expected)
            if vector is None:
                self.dropped[client] = reason
                continue
            survivors = self._survivors(reply)
            parts[client] = (vector, survivors)
            for survivor in survivors:
                self.dropped.pop(survivor, None)
        return parts

    def aggregate(
        self, server_round: int, mechanism: Mechanism, cohort: int, parts: list[_PartialSum]
    ) -> Aggregate:
        """Return the sum of these parts, with the noise that the server adds to it."""
        strategy = self.strategy
        members = tuple(sorted(client for _, clients in parts for client in clients))
        vectors = [vector for vector, _ in parts]
        strategy.inspect(mechanism, vectors)
        variance = strategy.noise_of(server_round).variance(cohort, len(members))
        added = variance - len(members) * mechanism.variance_per_device
        if added > 0:
            dim = len(vectors[0])
            vectors.append(strategy.added_noise(server_round, mechanism, dim, added, self._stream))
        total = mechanism.total(vectors, server_round)
        return Aggregate(
            torch.from_numpy(total).to(strategy.model.device, torch.float32),
            len(members),
            mechanism.noise_std(variance),
            members,
        )

    def _stream(self, server_round: int) -> Stream:
        """Return the randomness for the server's own noise. It is secret, unless the run is set to be reproducible."""
        if self.config.privacy.randomness is Randomness.SECRET:
            return Stream()
        label = self.strategy.stream_label(server_round)
        return Stream(derived_key(self.config.seed, "server noise", label, len(self.lost)))

    def _survivors(self, reply: Message) -> list[int]:
        """Return the clients whose uploads are in a reply. If the Grid sums uploads it names them; otherwise it is the
        client that sent the reply."""
        nodes = [reply.metadata.src_node_id]
        if self.strategy.sizes.masked or self.config.runtime.name == "cohort":
            nodes = list(reply.content.config_records[RECORD][SURVIVORS])  # type: ignore[arg-type]
        return [self._cohort[node] for node in nodes]


def signal_to_noise(aggregate: Aggregate) -> float | None:
    """Return the estimated norm of the noise-free sum divided by the expected norm of the noise. None without
    noise."""
    if aggregate.noise_std == 0:
        return None
    noise = aggregate.noise_std**2 * aggregate.sum.numel()
    signal = float(aggregate.sum.double().square().sum()) - noise
    return (max(signal, 0.0) / noise) ** 0.5
