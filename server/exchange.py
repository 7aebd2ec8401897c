"""The attempts at one round: ask a cohort, wait, apply the sum, charge what was seen; or try again without those who
failed."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from flwr.app import ConfigRecord

from fedsketch.errors import RoundAborted, TooFewClients
from fedsketch.secagg import Aborted, WrappedGrid
from fedsketch.server.accounts import Accounts
from fedsketch.server.grids.config_errors import config_errors
from fedsketch.server.grids.losses import LossTeller
from fedsketch.server.run_folder import Attempt, RunFolder
from fedsketch.strategies.rounds.coordinator import Coordinator

log = logging.getLogger(__name__)


class Exchange:
    """Plays rounds of a coordinator through a Grid. Attempts are on the disk before anybody is asked."""

    def __init__(
        self,
        grid: WrappedGrid,
        folder: RunFolder,
        coordinator: Coordinator,
        accounts: Accounts,
        teller: LossTeller,
    ) -> None:
        self._grid = grid
        self._teller = teller
        self.dropped: set[int] = set()  # clients that the last round lost, in all its attempts
        self._folder = folder
        self._coordinator = coordinator
        self._accounts = accounts

    def run(self, current: int, following: int | None, *, evaluation: bool = False) -> float:
        """Play one round, with as many attempts as allowed, and return the seconds spent waiting for clients.
        `following` is the next round, if the same cohort key draws it."""
        coordinator, clients = self._coordinator, self._coordinator.config.clients
        waited, problem = 0.0, ""
        coordinator.lost.clear()
        gone = self.dropped = set[int]()
        for attempt in range(clients.retries + 1):
            if attempt and not self._accounts.affordable(current):
                raise TooFewClients(
                    f"Round {current} failed because {problem}, and another attempt would exceed the budget."
                )
            messages = coordinator.configure_train(
                current, coordinator.arrays(), ConfigRecord(), self._grid
            )
            if not messages:
                self._skip(current)
                return waited
            self._folder.announce(Attempt(current, coordinator.cohort_size, evaluation))
            self._grid.expect(None if following is None else coordinator.nodes_of(following))
            start = time.monotonic()
            try:
                with config_errors():
                    replies = self._grid.send_and_receive(messages, timeout=clients.timeout)
                waited += time.monotonic() - start
                coordinator.aggregate_train(current, replies)
            except (RoundAborted, Aborted) as aborted:
                problem = str(aborted).rstrip(".")
                log.warning("Round %d, attempt %d: %s", current, attempt + 1, aborted)
                self._teller.failed(current, attempt + 1, clients.retries + 1, problem)
                self._accounts.charge_attempt(current, coordinator.cohort_size)
                gone |= coordinator.leave_out(
                    aborted.missing if isinstance(aborted, Aborted) else ()
                )
                continue
            self._note_dropouts(current)
            # Without those that delivered when they were asked once more.
            self.dropped = gone & coordinator.lost | coordinator.dropped.keys()
            self._charge(current, repeated=attempt > 0)
            return waited
        raise TooFewClients(
            f"Round {current} failed {clients.retries + 1} times, the last time because {problem}; "
            f"look after these clients and resume with resume={self._path}, or start a new run with more "
            "clients.tolerated_dropouts."
        )

    @property
    def _path(self) -> Path:
        return self._folder.path

    def _skip(self, current: int) -> None:
        """Finish a round whose draw is too small to be asked."""
        coordinator = self._coordinator
        log.warning("Round %d: the draw is too small, nobody is asked.", current)
        coordinator.skip_round(current)
        # If sizes are secret, such a round looks like all others and costs the same. In a pass it adds no cost, but is
        # recorded all the same, because the accountant counts the rounds of a pass to know where the next pass begins.
        clients = coordinator.config.clients
        if coordinator.strategy.noise.draw_is_secret or clients.sampling.in_passes:
            self._accounts.charge_applied(current, clients.per_round)

    def _note_dropouts(self, current: int) -> None:
        self._coordinator.explain_dropouts(self._grid.dropouts)
        for client, reason in self._coordinator.dropped.items():
            log.warning("Round %d: client %d dropped out: %s", current, client, reason)
            self._teller.lost(client, reason)

    def _charge(self, current: int, *, repeated: bool) -> None:
        """Charge a round that was applied. If the draw counts although sizes are visible, it counts for the first
        attempt only."""
        coordinator = self._coordinator
        asked, arrived = coordinator.cohort_size, coordinator.arrived
        known = repeated and not coordinator.strategy.noise.draw_is_secret
        self._accounts.charge_attempt(current, asked, arrived)
        self._accounts.charge_applied(current, asked, arrived, known_cohort=known)
