"""The loop over rounds: broadcast, collect, update, account, evaluate, save. A killed run goes on where it was saved.

A round is applied whole or not at all. One that lost too many clients is tried again with another cohort, and after
`clients.retries` of those the run stops; everything up to the last whole round is on disk.
"""

import logging
import secrets
import time
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from fedsketch.conf import Config, to_json
from fedsketch.conf.schema import Randomness
from fedsketch.secagg import Aborted, Directory
from fedsketch.server.accounts import Accounts
from fedsketch.server.checkpoint import Checkpoint
from fedsketch.server.evaluation import evaluate
from fedsketch.server.grids.aggregating import aggregating
from fedsketch.server.grids.metered import MeteredGrid
from fedsketch.server.guarantee import adversaries, budget, guarantee, not_private
from fedsketch.server.run_folder import RunFolder, versions
from fedsketch.server.tracking import tracked
from fedsketch.strategies import make_strategy
from fedsketch.strategies.shared.base import FederatedStrategy, RoundAborted
from fedsketch.strategies.shared.cohort import Cohorts, TooFewClients
from fedsketch.tasks.job import Job

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Somebody who watches a run."""

    def began(self, config: Config, done: int, guarantee: str) -> None: ...

    def played(self, row: dict[str, Any]) -> None: ...

    def ended(self, summary: dict[str, Any], report: Path) -> None: ...


class Rounds:
    """One run, from its configuration to its report."""

    def __init__(self, config: Config, path: Path, observer: Observer) -> None:
        # Everything is built and planned here, so that what does not fit fails before anything starts.
        self.config = config
        self.folder = RunFolder(path)
        self.observer = tracked(config, path, observer)
        self.job = Job(config)
        self.model = self.job.model()
        self.test = self.job.test
        self.job.try_out(self.model)
        self.strategy = make_strategy(config, self.job, self.model, self._cohorts(None))
        self.accounts = Accounts(self.strategy)
        self.accounts.refuse_an_idle_run()
        self.sentence = guarantee(self.strategy)
        self.not_private = not_private(config)
        self._metrics = [metric.name for metric in config.task.all_metrics]
        self.traffic = (0.0, 0.0)  # bytes up and down per client, since the first round

    def play(self, grid: Grid, roster: Directory | None = None) -> None:
        """Play all rounds that are left; with a `roster`, a node whose signature is wrong is lost alone. A finished run stays as it is."""
        with self.folder.playing():
            self.folder.begin(self.config)
            summary = self.folder.read_summary()
            if summary is None:
                self._play(grid, roster)
            else:
                self.observer.began(self.config, summary["rounds"], self.sentence)
                self.observer.ended(summary, self.folder.report)

    def _play(self, grid: Grid, roster: Directory | None) -> None:
        started = time.monotonic()
        checkpoint = self.folder.latest_checkpoint(self.config)
        strategy = self._resumed(checkpoint)
        done, before = 0, 0.0
        if checkpoint is not None:
            done, before, self.traffic = checkpoint.round, checkpoint.seconds, checkpoint.traffic
        self.observer.began(self.config, done, self.sentence)
        self.meter = MeteredGrid(grid)
        self.grid = aggregating(self.meter, self.config, strategy.parcels, roster)
        strategy.meet(self.grid)
        self.meter.take()
        row = self.folder.read_metrics()[-1] if done else {}
        while not self._finished(done):
            done += 1
            row = self._round(done, strategy)
            self.folder.append_metrics(row)
            if self._due(done, self.config.checkpoint_every):
                elapsed = before + time.monotonic() - started
                self._checkpoint(done, strategy, elapsed).save(self.folder.checkpoints)
            self.observer.played(row)
        stopped = None
        if done < self.config.rounds:
            stopped = f"Stopped after round {done}: another would exceed {budget(strategy)}."
        summary = self._summary(row, stopped, before + time.monotonic() - started)
        self.observer.ended(summary, self.folder.finish(strategy.model, summary))

    def _cohorts(self, key: int | None) -> Cohorts:
        """With the key of a resumed run, or a new one."""
        if key is None:
            seeded = self.config.privacy.randomness is Randomness.seeded
            key = self.config.seed if seeded else secrets.randbits(128)
        return Cohorts(self.config.clients, key)

    def _resumed(self, checkpoint: Checkpoint | None) -> FederatedStrategy:
        """The strategy as the checkpoint has it."""
        strategy = self.strategy
        if checkpoint is not None:
            strategy.cohorts = self._cohorts(checkpoint.cohort_key)
            strategy.model.load(checkpoint.model)
            strategy.resume(checkpoint.strategy)
            self.accounts.load_json(checkpoint.accounts)
        if self.config.privacy.randomness is not Randomness.seeded:  # that is drawn again the same
            known = checkpoint.attempts if checkpoint else 0
            self.accounts.charge_lost(self.folder.attempts_since(known))
        return strategy

    def _finished(self, done: int) -> bool:
        return done == self.config.rounds or not self.accounts.affordable(done + 1)

    def _due(self, done: int, every: int) -> bool:
        """Whether something that is done every so many rounds is done after this one: the last always counts."""
        return done % every == 0 or self._finished(done)

    def _round(self, current: int, strategy: FederatedStrategy) -> dict[str, Any]:
        start = time.monotonic()
        clients_seconds = self._exchange(current, strategy)
        update_seconds = time.monotonic() - start - clients_seconds
        up, down = (total / max(strategy.cohort_size, 1) for total in self.meter.take())
        self.traffic = (self.traffic[0] + up, self.traffic[1] + down)
        metrics: dict[str, float | None] = dict.fromkeys(self._metrics)
        if self._due(current, self.config.evaluate_every):
            metrics |= evaluate(strategy.model, self.test)
        return {
            "round": current,
            **metrics,
            "epsilon": self.accounts.epsilon(),
            "delta": self.config.privacy.delta,
            "budget_against": strategy.bound,
            "private": self.not_private is None,
            "clients": strategy.arrived,
            "dropped": len(strategy.dropped),
            "uplink_bytes": up,
            "downlink_bytes": down,
            "seconds": {
                "round": time.monotonic() - start,
                "clients": clients_seconds,
                "update": update_seconds,
            },
            "snr": strategy.snr,
            **strategy.told(),
        }

    def _exchange(self, current: int, strategy: FederatedStrategy) -> float:
        """One applied round, after as many aborted ones as allowed; returns the seconds spent waiting for clients."""
        waited = 0.0
        problem: Exception | None = None
        strategy.lost.clear()
        for attempt in range(self.config.clients.retries + 1):
            if attempt and not self.accounts.affordable(current):
                raise TooFewClients(
                    f"Round {current} failed because {problem}, and another attempt would exceed the budget."
                )
            messages = strategy.configure_train(
                current, strategy.arrays(), ConfigRecord(), self.grid
            )
            if not messages:  # a draw that cannot be asked
                log.warning("Round %d: the draw is too small, nobody is asked.", current)
                strategy.pass_over(current)
                # Where sizes are hidden it looks like all others, and so is its price. In a pass it costs nothing beyond the pass, but is
                # booked: the accountant counts the rounds of a pass to know where the next one begins.
                if strategy.noise.hidden or self.config.clients.sampling.in_passes:
                    self.accounts.charge_applied(current, self.config.clients.per_round)
                return waited
            self.folder.announce(current, strategy.cohort_size)
            following = current + 1
            self.grid.expect(
                strategy.nodes_of(following) if following <= self.config.rounds else None
            )
            start = time.monotonic()
            try:
                replies = self.grid.send_and_receive(messages, timeout=self.config.clients.timeout)
                waited += time.monotonic() - start
                strategy.aggregate_train(current, replies)
            except (RoundAborted, Aborted) as aborted:
                problem = aborted
                log.warning("Round %d, attempt %d: %s", current, attempt + 1, aborted)
                self.accounts.charge_attempt(current, strategy.cohort_size)
                strategy.leave_out(getattr(aborted, "missing", ()))
                continue
            strategy.explain_dropouts(self.grid.dropouts)
            for client, reason in strategy.dropped.items():
                log.warning("Round %d: client %d dropped out: %s", current, client, reason)
            self.accounts.charge_attempt(current, strategy.cohort_size, strategy.arrived)
            # Where the draw counts although sizes show, it counts for the first attempt only.
            known = attempt > 0 and not strategy.noise.hidden
            self.accounts.charge_applied(
                current, strategy.cohort_size, strategy.arrived, known_cohort=known
            )
            return waited
        raise TooFewClients(
            f"Round {current} failed {attempt + 1} times, the last time because {problem}; "
            f"see to these clients and go on with resume={self.folder.path}, or start anew with more clients.tolerated_dropouts."
        )

    def _checkpoint(self, current: int, strategy: FederatedStrategy, seconds: float) -> Checkpoint:
        return Checkpoint(
            config=to_json(self.config),
            round=current,
            model=strategy.model.vector,
            strategy=strategy.saved(),
            accounts=self.accounts.to_json(),
            cohort_key=strategy.cohorts.key,
            seconds=seconds,
            traffic=self.traffic,
            attempts=len(self.folder.attempts_since(0)),
        )

    def _summary(self, row: dict[str, Any], stopped: str | None, seconds: float) -> dict[str, Any]:
        return {
            "rounds": row.get("round", 0),
            **{name: row.get(name) for name in self._metrics},
            "epsilon": self.accounts.epsilon(),
            "delta": self.config.privacy.delta,
            "noise_multiplier": self.strategy.noise_multiplier,
            "guarantee": self.sentence,
            "private": self.not_private is None,
            "not_private": self.not_private,
            "adversaries": adversaries(self.strategy, self.accounts.epsilon()),
            "stopped": stopped,
            "uplink_bytes": self.traffic[0],
            "downlink_bytes": self.traffic[1],
            "seconds": seconds,
            "seed": self.config.seed,
            "parameters": self.model.size,
            "versions": versions(),
            "partition": {"histogram": self.job.histogram().tolist()},
        }
