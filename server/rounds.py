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

from conf import Config, to_json
from conf.schema import Against, Randomness
from server.accounts import Accounts
from server.checkpoint import Checkpoint
from server.evaluation import evaluate
from server.run_folder import RunFolder, versions
from server.traffic import MeteredGrid
from strategies import server_half
from strategies.base import FederatedStrategy, RoundAborted
from strategies.cohort import Cohorts, TooFewClients
from strategies.noise import guarantee, plan_noise
from tasks.job import Job

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Somebody who watches a run."""

    def began(self, config: Config, done: int, guarantee: str) -> None: ...

    def played(self, row: dict[str, Any]) -> None: ...

    def ended(self, summary: dict[str, Any], report: Path) -> None: ...


class Rounds:
    """One run, from its configuration to its report."""

    def __init__(self, config: Config, path: Path, observer: Observer) -> None:
        self.config = config
        self.folder = RunFolder(path)
        self.observer = observer
        self.job = Job(config)
        self.noise = plan_noise(config)
        self.accounts = Accounts(config, self.noise)
        self.model = (
            self.job.model()
        )  # built and partitioned here, so that what does not fit fails before anything starts
        self.histogram = self.job.histogram().tolist()

    def play(self, grid: Grid) -> None:
        """Play all rounds that are left."""
        self.folder.begin(self.config)
        checkpoint = self.folder.latest_checkpoint(self.config)
        strategy = self._strategy(checkpoint)
        done = checkpoint.round if checkpoint else 0
        before = checkpoint.seconds if checkpoint else 0.0
        self.traffic = checkpoint.traffic if checkpoint else (0.0, 0.0)
        started = time.monotonic()
        sentence = guarantee(self.noise)
        self.observer.began(self.config, done, sentence)
        metered = MeteredGrid(grid)
        strategy.meet(metered)
        metered.take()
        row = self.folder.read_metrics()[-1] if done else {}
        stopped = None
        for current in range(done + 1, self.config.rounds + 1):
            if not self.accounts.affordable():
                stopped = f"Stopped after round {current - 1}: another would exceed epsilon {self.config.privacy.epsilon:g}."
                break
            row = self._round(current, strategy, metered)
            self.folder.append_metrics(row)
            elapsed = before + time.monotonic() - started
            if current % self.config.checkpoint_every == 0 or current == self.config.rounds:
                self._checkpoint(current, strategy, elapsed).save(self.folder.checkpoints)
            self.observer.played(row)
        summary = {
            "rounds": row.get("round", 0),
            "accuracy": row.get("accuracy"),
            "loss": row.get("loss"),
            "epsilon": self.accounts.epsilon(),
            "delta": self.config.privacy.delta,
            "noise_multiplier": self.noise.noise_multiplier,
            "guarantee": sentence,
            "stopped": stopped,
            "uplink_bytes": self.traffic[0],
            "downlink_bytes": self.traffic[1],
            "seconds": before + time.monotonic() - started,
            "seed": self.config.seed,
            "parameters": strategy.model.size,
            "versions": versions(),
            "partition": {"histogram": self.histogram},
        }
        report = self.folder.finish(strategy.model, summary)
        self.observer.ended(summary, report)

    def _strategy(self, checkpoint: Checkpoint | None) -> FederatedStrategy:
        if checkpoint is not None:
            key = checkpoint.cohort_key
        elif self.config.privacy.randomness is Randomness.seeded:
            key = self.config.seed
        else:
            key = secrets.randbits(128)
        strategy = server_half(self.config.strategy.name)(
            self.config,
            self.model,
            self.noise,
            Cohorts(self.config.clients, key),
            len(self.job.dataset.train),
        )
        if checkpoint is not None:
            strategy.model.load(checkpoint.model)
            strategy.load_state_dict(checkpoint.strategy)
            self.accounts.load_json(checkpoint.accounts)
        if (
            self.config.privacy.randomness is Randomness.secret
        ):  # seeded noise is drawn again the same
            done = checkpoint.round if checkpoint else 0
            self.accounts.charge_lost(self.folder.attempts_after(done), done)
        return strategy

    def _round(
        self, current: int, strategy: FederatedStrategy, grid: MeteredGrid
    ) -> dict[str, Any]:
        start = time.monotonic()
        clients_seconds = self._exchange(current, strategy, grid)
        update_seconds = time.monotonic() - start - clients_seconds
        up, down = (total / max(strategy.cohort_size, 1) for total in grid.take())
        self.traffic = (self.traffic[0] + up, self.traffic[1] + down)
        accuracy = loss = None
        if current % self.config.evaluate_every == 0 or current == self.config.rounds:
            accuracy, loss = evaluate(strategy.model, self.job.dataset.test)
        return {
            "round": current,
            "accuracy": accuracy,
            "loss": loss,
            "epsilon": self.accounts.epsilon(),
            "delta": self.config.privacy.delta,
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
        }

    def _exchange(self, current: int, strategy: FederatedStrategy, grid: MeteredGrid) -> float:
        """One applied round, after as many aborted ones as allowed; returns the seconds spent waiting for clients."""
        waited = 0.0
        for attempt in range(self.config.clients.retries + 1):
            strategy.attempt = attempt
            messages = strategy.configure_train(current, strategy.arrays(), ConfigRecord(), grid)
            self.folder.announce(current, strategy.cohort_size)
            start = time.monotonic()
            replies = list(grid.send_and_receive(messages, timeout=self.config.clients.timeout))
            waited += time.monotonic() - start
            # The server has seen what came, whether or not the round is applied.
            self.accounts.charge(Against.server, strategy.cohort_size)
            try:
                strategy.aggregate_train(current, replies)
            except RoundAborted as aborted:
                log.warning("Round %d, attempt %d: %s", current, attempt + 1, aborted)
                problem = aborted
                continue
            for client, reason in strategy.dropped.items():
                log.warning("Round %d: client %d dropped out: %s", current, client, reason)
            self.accounts.charge(Against.model, strategy.cohort_size)
            return waited
        raise TooFewClients(
            f"Round {current} failed {attempt + 1} times, the last time because {problem}; "
            "raise clients.tolerated_dropouts or see to these clients, then resume."
        )

    def _checkpoint(self, current: int, strategy: FederatedStrategy, seconds: float) -> Checkpoint:
        return Checkpoint(
            config=to_json(self.config),
            round=current,
            model=strategy.model.vector,
            strategy=strategy.state_dict(),
            accounts=self.accounts.to_json(),
            cohort_key=strategy.cohorts.key,
            seconds=seconds,
            traffic=self.traffic,
        )
