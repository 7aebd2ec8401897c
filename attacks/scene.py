"""Simulates one scene of an audit many times: the real code of server and devices, and what adversaries see of every
canary.

The adversaries know everything that is public: the code, the broadcasts and so every sketch, and all data but the coins
of the canaries. So they know what each canary would contribute (they run the device's code without its noise), and
subtract everything that they know from what they see. One number is left for each canary and round: how much of its
contribution is in the sum.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedsketch.attacks.canaries import FEATURES, Canary, CanaryWorkload
from fedsketch.attacks.cohorts import ChosenCohorts, Draw, FixedSizeCohorts, WithColludingClients
from fedsketch.attacks.devices import QUIET, Devices
from fedsketch.attacks.shrink import AuditRun
from fedsketch.attacks.views import Contributions, Seen, Views
from fedsketch.conf import Config
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.strategies.algorithm import Aggregate, Strategy
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.coordinator import Coordinator
from fedsketch.strategies.rounds.messages import scalars_in
from fedsketch.strategies.rounds.sampling import CohortSampler

Matrix = NDArray[np.float64]
Known = TypeVar("Known")
_LONG = 0.95  # of the largest squared length, so that canaries are similar


@dataclass(frozen=True)
class Scene:
    """What is simulated: how cohorts are chosen, whether all other clients push against the canary, and the
    adversaries."""

    draw: Draw
    opposed: bool
    adversaries: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """Which canaries were present, and what every adversary saw in every round."""

    coins: NDArray[np.bool_]
    seen: dict[str, list[Seen]]


class SceneSimulator:
    """Simulates one scene. It belongs to one process."""

    def __init__(self, run: AuditRun, scene: Scene) -> None:
        self.run = run
        self.config: Config = run.config
        self.scene = scene
        self.workload = CanaryWorkload(run.config, run.examples)
        strategy = self.coordinator_of(run, self.workload, None).strategy
        sizes, clients = strategy.sizes, run.config.clients
        self.devices = Devices(self.workload, clients.total, sizes.masked)
        colluding_clients = sizes.colluding_clients(clients.per_round)
        secret = scene.draw not in (Draw.CHOSEN, Draw.KNOWN, Draw.SHOWN)
        self.views = Views(sizes.colluders(clients.per_round), colluding_clients, secret)
        groups = max(strategy.groups(r) for r in range(1, run.config.rounds + 1))
        self._drops = sizes.drops(clients.per_round) if groups == 1 else 0
        # The first client with canaries.
        self._first = min(colluding_clients, clients.per_round - 1)
        if scene.draw is Draw.CHOSEN:
            self._first = min(colluding_clients + self._drops, clients.per_round - 1)
        elif scene.draw in (Draw.POISSON, Draw.FIXED):
            self._first = 0  # an adversary who sees only models has no clients
        last = clients.per_round if scene.draw is Draw.CHOSEN else clients.total
        holders = range(self._first, self._first + 1 if scene.opposed else last)
        examples = run.examples if run.config.privacy.unit is Unit.EXAMPLE else 1
        everyone = [Canary(client, e) for client in holders for e in range(examples)]
        self._known: dict[Hashable, Contributions] = {}
        self._latest: dict[int, Contributions] = {}
        self.workload.directions = self.directions()
        self.canaries = everyone[: 1 if scene.opposed else len(self.workload.directions)]
        self.workload.canaries = self.canaries

    # ------------------------------------------------------------------ a trial
    def simulate(self, coins: NDArray[np.bool_]) -> Trial:
        """Simulate one run from its first round to its last. The canaries with a true coin are present."""
        present = {canary for canary, coin in zip(self.canaries, coins, strict=True) if coin}
        opposed: set[int] = set()
        if self.scene.opposed:
            opposed = set(range(self.config.clients.total)) - {self._first}
        if self.scene.draw is Draw.BESIDE_COLLUDING:
            opposed -= set(range(self.views.colluding_clients))
        seen: dict[str, list[Seen]] = {name: [] for name in self.scene.adversaries}
        memories: dict[Canary, RecordDict] = {}

        def between(coordinator: Coordinator, round: int) -> Contributions:
            made = self._contributions(coordinator, round, memories)
            self.workload.present, self.workload.opposed = present, opposed  # as they were before
            self._latest[round] = made
            return made

        for coordinator, current, found, aggregate in self._rounds(present, opposed, between):
            # For a round in which nobody was asked, the contributions of canaries are known from other rounds.
            contributions = found or self._latest.get(current)
            for name in seen:
                seen[name].append(
                    self.views.of(
                        name,
                        coordinator,
                        self.devices,
                        current,
                        aggregate,
                        contributions,
                        self.canaries,
                        coins,
                    )
                )
        return Trial(coins, seen)

    def _rounds(
        self,
        present: set[Canary],
        opposed: set[int],
        between: Callable[[Coordinator, int], Known],
    ) -> Iterator[tuple[Coordinator, int, Known | None, Aggregate | None]]:
        """Simulate the rounds of a trial. `between` is called when uploads have arrived and the server's state is still
        that of the broadcast."""
        self.workload.present, self.workload.opposed = present, opposed
        coordinator = self.coordinator_of(self.run, self.workload, self._cohorts())
        self.devices.begin(coordinator.strategy.parcels)
        # Models and adaptive clips depend on nothing but the sums that the strategy receives.
        aggregates: list[Aggregate] = []
        coordinator.listeners.append(lambda _, whole: aggregates.append(whole))
        for current in range(1, self.config.rounds + 1):
            self.workload.round = current
            messages = coordinator.configure_train(
                current, coordinator.arrays(), ConfigRecord(), self.devices
            )
            if not messages:
                heard = len(aggregates)
                coordinator.skip_round(current)
                passed = aggregates[-1] if len(aggregates) > heard else None
                yield coordinator, current, None, passed
                continue
            self.devices.dropping = self._dropping(coordinator, current)
            replies = self.devices.send_and_receive(messages)
            contributions = between(coordinator, current)
            coordinator.aggregate_train(current, replies)
            yield coordinator, current, contributions, aggregates[-1]

    @classmethod
    def coordinator_of(
        cls, run: AuditRun, workload: CanaryWorkload, cohorts: CohortSampler | None
    ) -> Coordinator:
        """Return the server's half, with these cohorts or the run's own secret ones."""
        drawn = cohorts or CohortSampler(run.config.clients, secrets.randbits(128))
        return Coordinator(make_strategy(run.config, workload, workload.model()), drawn)

    def _cohorts(self) -> CohortSampler | None:
        clients = self.config.clients
        if self.scene.draw is Draw.CHOSEN:
            return ChosenCohorts(clients, range(clients.per_round))
        if self.scene.draw is Draw.FIXED:
            return FixedSizeCohorts(clients, ())
        if self.scene.draw is Draw.SHOWN:
            return WithColludingClients(clients, self.views.colluding_clients)
        if self.scene.draw is Draw.BESIDE_COLLUDING:
            return FixedSizeCohorts(clients, range(self.views.colluding_clients))
        return None

    def _dropping(self, coordinator: Coordinator, current: int) -> list[int]:
        """Return as many dropouts as the round tolerates, and if possible none of the clients that the trial is
        about."""
        cohort = coordinator.sampler.draw(current)
        if self._drops == 0 or coordinator.strategy.groups(current) > 1:
            return []
        if self.scene.draw is Draw.CHOSEN:
            return cohort[self._first - self._drops : self._first]
        others = [client for client in cohort if client > self._first]
        drops = coordinator.strategy.sizes.drops(len(cohort))
        return others[len(others) - drops :] if drops else []

    # ------------------------------------------------------------------ what is known
    def _contributions(
        self, coordinator: Coordinator, round: int, memories: dict[Canary, RecordDict]
    ) -> Contributions:
        """Return the contributions of canaries, computed again only if the broadcast has changed."""
        # A sketch may depend on the round itself. If nothing is sketched, only the sign of canaries does.
        strategy = coordinator.strategy
        shortened = strategy.upload_length(round) < strategy.model.size
        key = (round if shortened else round % 2, _public(strategy, self.devices, round))
        if key not in self._known:
            rows, forgetful = [], True
            self.workload.opposed = set()
            for canary in self.canaries:
                self.workload.present = {canary}
                memory = memories.setdefault(canary, RecordDict())
                rows.append(self.devices.alone(canary.client, memory, round))
                forgetful = forgetful and not memory
            made = Contributions(np.array(rows))
            if not forgetful:  # what devices remember affects what they send
                return made
            self._known[key] = made
        return self._known[key]

    def directions(self) -> Matrix:
        """Return inputs of canaries, one row for each, orthonormal: those whose contributions over all rounds are the
        longest.

        A sketch keeps some directions, loses others, and makes some longer. The adversary knows it and chooses what is
        preserved best: of the right singular vectors of the uploads for small inputs, those that are the longest as
        canaries.
        """
        every = np.eye(FEATURES)
        length, self.workload.length = (
            self.workload.length,
            0.5 * (self.config.privacy.first_clip or 1.0),
        )
        images = self._images(every)
        self.workload.length = length
        if not images:
            return every
        left, _, _ = np.linalg.svd(np.hstack(images), full_matrices=True)
        directions = np.ascontiguousarray(left.T)
        energies = sum(np.square(image).sum(axis=1) for image in self._images(directions))
        order = np.argsort(-np.asarray(energies), kind="stable")
        longest = order[np.asarray(energies)[order] >= _LONG * np.max(energies)]
        return np.ascontiguousarray(directions[longest])

    def _images(self, directions: Matrix) -> list[Matrix]:
        """Return what a canary in each direction contributes, by round; empty if uploads are not sketched, so that all
        are equal."""
        holder = Canary(self._first)

        def between(coordinator: Coordinator, round: int) -> Matrix:
            strategy = coordinator.strategy
            if strategy.upload_length(round) >= strategy.model.size:
                return np.empty((len(directions), 0))
            rows = []
            for direction in directions:
                self.workload.canaries, self.workload.directions = [holder], direction[None]
                self.workload.present, self.workload.opposed = {holder}, set()
                rows.append(self.devices.alone(holder.client, RecordDict(), round))
            self.workload.present = set()
            return np.array(rows)

        played = self._rounds(set(), set(), between)
        return [image for _, _, image, _ in played if image is not None and image.size]


def _public(strategy: Strategy[Any], devices: Devices, round: int) -> Hashable:
    """Return all parts of a broadcast on which uploads depend, except for the model, which does not move."""
    assert devices.last is not None
    content = devices.last.content
    # The amount of noise, and the cohort's size for which it is made, do not change the deterministic part.
    record = devices.last.mechanism.to_record().items()
    record_key = tuple(
        sorted((k, str(v)) for k, v in record if k not in (*QUIET, "clients", "drops", "colluders"))
    )
    if strategy.parcels is not None:  # devices compute the arrays themselves
        made = strategy.parcels.arrays(round)
        known = sorted((k, x.numpy().tobytes()) for k, x in made.items() if k != "model")
        return (record_key, tuple(known))
    sent: Any = content.array_records.get("arrays", {})
    scalars = scalars_in(content)
    shown = tuple((key, array.data) for key, array in sent.items() if key != "model")
    return (record_key, shown, tuple(sorted((k, str(v)) for k, v in scalars.items())))
