"""The loop over rounds: broadcast, collect, update, account, evaluate, save. A killed run is resumed from its last
checkpoint.

A round is applied completely or not at all. A round that lost too many clients is repeated without them, and
after `clients.retries` repetitions the run stops. Everything up to the last complete round is on disk.
"""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedsketch.conf import Config, to_json
from fedsketch.conf.schema import Randomness
from fedsketch.errors import CutShort
from fedsketch.secagg import Directory
from fedsketch.server.accounts import Accounts
from fedsketch.server.checkpoint import Checkpoint
from fedsketch.server.device_evaluations import evaluations_of
from fedsketch.server.exchange import Exchange
from fedsketch.server.grids.losses import LossTeller
from fedsketch.server.grids.stack import build_grids
from fedsketch.server.guarantee import adversaries, budget, guarantee, not_private
from fedsketch.server.observers.observer import Display
from fedsketch.server.observers.tracking import tracked
from fedsketch.server.report.model_card import model_card
from fedsketch.server.run_folder import RunFolder, versions
from fedsketch.server.validation import validation_of
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.coordinator import Coordinator
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.data.tabular import is_table, resolved, schema_of
from fedsketch.tasks.scores import evaluate
from fedsketch.tasks.workload import Workload

log = logging.getLogger(__name__)


class Rounds:
    """One run, from its configuration to its report."""

    def __init__(self, config: Config, path: Path, display: Display) -> None:
        # Everything is built and planned here, so that settings that do not fit fail before anything starts.
        config = resolved(config)
        self.config = config
        self.folder = RunFolder(path)
        self.display = tracked(config, path, display)
        self.workload = Workload(config)
        self.model = self.workload.model()
        self.test = self.workload.test
        self.workload.try_out(self.model)
        self._histogram = (
            self.workload.histogram()
        )  # raises PartitionError here, not on every device
        self.strategy = make_strategy(config, self.workload, self.model)
        self.coordinator = Coordinator(self.strategy, self._sampler(None))
        self.accounts = Accounts(self.strategy)
        self.accounts.refuse_a_run_without_rounds()
        self.evaluations = evaluations_of(self.coordinator)
        self.sentence = guarantee(self.strategy, self.evaluations)
        self.not_private = not_private(config)
        self._metrics = [metric.name for metric in config.task.all_metrics]
        self.validation = validation_of(config, self.workload.validation, self.folder)
        self.traffic = (0.0, 0.0)  # bytes up and down per client, summed over rounds

    def run(self, grid: Grid, roster: Directory | None = None) -> None:
        """Execute all remaining rounds. With a `roster`, a node with a wrong signature is dropped alone. A finished run
        is not changed."""
        with self.folder.locked():
            self.folder.begin(self.config)
            summary = self.folder.read_summary()
            if summary is not None:
                self.display.began(self.config, summary["rounds"], self.sentence)
                self.display.ended(summary, self.folder.report)
                self._raise_if_cut_short(summary)
                return
            self.folder.write_interface(self.workload.interface)
            if is_table(self.config.data):
                self.folder.schema.write_text(schema_of(self.config.data).to_yaml())
            try:
                summary = self._run(grid, roster)
            except BaseException:
                # An error in the card must not hide why the run was interrupted.
                with suppress(Exception):
                    self._card_of_an_interrupted_run()
                raise
            self._raise_if_cut_short(summary)

    def _raise_if_cut_short(self, summary: dict[str, Any]) -> None:
        """Raise CutShort if attempts without a result have spent the budget of the last rounds."""
        if summary.get("cut_short"):
            raise CutShort(f"{summary['stopped']} What there is, is in {self.folder.path}.")

    def _run(self, grid: Grid, roster: Directory | None) -> dict[str, Any]:
        started = time.monotonic()
        checkpoint = self.folder.latest_checkpoint(self.config)
        self._resume(checkpoint)
        done, before = 0, 0.0
        if checkpoint is not None:
            done, before, self.traffic = checkpoint.round, checkpoint.seconds, checkpoint.traffic
        self._log_start(done)
        self.display.began(self.config, done, self.sentence)
        teller = LossTeller(self.display.notes)
        self.meter, grid_of_run = build_grids(grid, self.coordinator, roster, teller)
        self._training = Exchange(grid_of_run, self.folder, self.coordinator, self.accounts, teller)
        self.coordinator.identify_clients(grid_of_run)
        self.evaluations.begin(self.coordinator, grid_of_run, self.folder, teller)
        self.meter.take()
        row = self.folder.read_metrics()[-1] if done else {}
        while not self._finished(done):
            done += 1
            row = self._round(done)
            self.folder.append_metrics(row)
            if self._due(done, self.config.checkpoint_every):
                elapsed = before + time.monotonic() - started
                self.folder.sync_metrics()
                self._checkpoint(done, elapsed).save(self.folder.checkpoints)
            self.display.round_done(row)
        best = self.validation.chosen(self.model, self.test)
        stopped = self._reason_for_stopping(done)
        summary = self._summary(row, stopped, before + time.monotonic() - started, best)
        self.folder.write_card(model_card(self.config, summary))
        report = self.folder.finish(self.model, summary)
        log.info("The run ended after round %d. %s", done, stopped or "All its rounds were played.")
        self.display.ended(summary, report)
        return summary

    def _reason_for_stopping(self, done: int) -> str | None:
        """Return why the run stopped, as a sentence; None if all rounds were executed."""
        if done == self.config.rounds:
            return None
        if self.validation.stopped is not None:
            return (
                f"Stopped after round {done}: {self.validation.stopped}. Epsilon is that of all rounds that were "
                "planned: the models decided when to stop, so the epsilon of fewer rounds would not hold."
            )
        whole = f"Stopped after round {done} of {self.config.rounds}: another would exceed {budget(self.strategy)}"
        if not self._cut_short(done):
            return f"{whole}."
        failed = self._failed_attempts(done)
        were = "attempt without a result is" if failed == 1 else "attempts without a result are"
        return f"{whole}, because {failed} {were} charged too (run.log says why)."

    def _failed_attempts(self, done: int) -> int:
        """Return how many attempts at rounds were charged and not applied."""
        attempts = [attempt for attempt in self.folder.attempts_since(0) if not attempt.evaluation]
        applied = {attempt.round for attempt in attempts if attempt.round <= done}
        return len(attempts) - len(applied)

    def _cut_short(self, done: int) -> bool:
        """Return whether the budget of the last rounds was spent by attempts without a result."""
        went_on = done == self.config.rounds or self.validation.stopped is not None
        return not went_on and self._failed_attempts(done) > 0

    def _card_of_an_interrupted_run(self) -> None:
        rows = self.folder.read_metrics()
        if rows:
            stopped = (
                f"Interrupted after round {rows[-1]['round']}, and not finished. A round that was cut off is charged "
                "when the run is resumed: it is not in these numbers."
            )
            summary = self._summary(rows[-1], stopped, seconds=0.0, best=None)
            self.folder.write_card(model_card(self.config, summary))

    def _log_start(self, done: int) -> None:
        """Log what somebody who reads only the log must know."""
        folder = self.folder.path.absolute()
        begins = f"is resumed after round {done}" if done else "begins"
        log.info("A run of %d rounds %s in %s.", self.config.rounds, begins, folder)
        log.info("%s", self.sentence)
        log.info(
            "Versions: %s", ", ".join(f"{name} {number}" for name, number in versions().items())
        )
        log.info("Configuration: %s", to_json(self.config))

    def _sampler(self, key: int | None) -> CohortSampler:
        """Return the cohorts of a new run, or of a resumed one with its key."""
        if key is None:
            seeded = self.config.privacy.randomness is Randomness.SEEDED
            key = self.config.seed if seeded else secrets.randbits(128)
        return CohortSampler(self.config.clients, key)

    def _resume(self, checkpoint: Checkpoint | None) -> None:
        """Restore the state of the checkpoint, and charge what was seen after it."""
        if checkpoint is not None:
            self.coordinator.sampler = self._sampler(checkpoint.cohort_key)
            self.model.load(checkpoint.model)
            self.coordinator.resume(checkpoint.strategy)
            self.accounts.load_json(checkpoint.accounts)
            self.evaluations.load_json(checkpoint.evaluations)
            self.validation.load_state_dict(checkpoint.validation)
        self.validation.restore(self.model)
        # Seeded noise is the same when it is drawn again.
        if self.config.privacy.randomness is not Randomness.SEEDED:
            lost = self.folder.attempts_since(checkpoint.attempts if checkpoint else 0)
            self.accounts.charge_lost(lost)
            self.evaluations.charge_lost(lost)

    def _finished(self, done: int) -> bool:
        if done == self.config.rounds or self.validation.stopped is not None:
            return True
        return not self.accounts.affordable(done + 1)

    def _due(self, done: int, every: int) -> bool:
        """Return whether something that is done every few rounds is done after this one. It is always done after the
        last."""
        return done % every == 0 or self._finished(done)

    def _round(self, current: int) -> dict[str, Any]:
        start = time.monotonic()
        coordinator = self.coordinator
        evaluates = self.evaluations.may_follow(current)
        following = current + 1 if current < self.config.rounds and not evaluates else None
        clients_seconds = self._training.run(current, following)
        update_seconds = time.monotonic() - start - clients_seconds
        up, down = self._metered(coordinator.cohort_size)
        looks = self._due(current, self.config.evaluate_every)
        validated = self.validation.row(current, self.model, looks)
        metrics: dict[str, float | None] = dict.fromkeys(self._metrics)
        if looks:
            metrics |= evaluate(self.model, self.test)
        return {
            "round": current,
            **metrics,
            **validated,
            **self._evaluated_by_devices(current),
            "epsilon": self._epsilon(current),
            "delta": self.config.privacy.delta,
            "budget_against": self.strategy.budget_adversary,
            "private": self.not_private is None,
            "clients": coordinator.arrived,
            "dropped": len(self._training.dropped),
            "uplink_bytes": up,
            "downlink_bytes": down,
            "seconds": {
                "round": time.monotonic() - start,
                "clients": clients_seconds,
                "update": update_seconds,
            },
            "snr": coordinator.snr,
            **coordinator.all_metrics(),
        }

    def _metered(self, clients: int) -> tuple[float, float]:
        """Return the bytes up and down per client since the last call, which are also added to the run's."""
        up, down = (total / max(clients, 1) for total in self.meter.take())
        self.traffic = (self.traffic[0] + up, self.traffic[1] + down)
        return up, down

    def _evaluated_by_devices(self, current: int) -> dict[str, Any]:
        """Evaluate this round's model on devices, if it is due."""
        row = self.evaluations.evaluate(current, last=self._finished(current))
        self._metered(self.evaluations.cohort_size)
        return row

    def _epsilon(self, done: int) -> dict[str, float | None]:
        """Return epsilon of training and evaluations together after this many rounds; if the models have ended the run,
        that of all planned rounds (`server.validation` says why)."""
        if self.validation.stopped is None:
            return self.accounts.epsilon(self.evaluations.accounts)
        last, accounts = self.accounts.as_planned(done)
        return accounts.epsilon(self.evaluations.as_planned(done, last))

    def _checkpoint(self, current: int, seconds: float) -> Checkpoint:
        return Checkpoint(
            config=to_json(self.config),
            round=current,
            model=self.model.vector,
            strategy=self.coordinator.checkpoint_state(),
            accounts=self.accounts.to_json(),
            evaluations=self.evaluations.to_json(),
            cohort_key=self.coordinator.sampler.key,
            seconds=seconds,
            traffic=self.traffic,
            attempts=len(self.folder.attempts_since(0)),
            validation=self.validation.state_dict(),
        )

    def _summary(
        self,
        row: dict[str, Any],
        stopped: str | None,
        seconds: float,
        best: dict[str, Any] | None,
    ) -> dict[str, Any]:
        done = row.get("round", 0)
        epsilon = self._epsilon(done)
        return {
            "rounds": done,
            **{name: row.get(name) for name in self._metrics},
            "best": best,
            **{name: row.get(name) for name in self.evaluations.row()},
            "epsilon": epsilon,
            "delta": self.config.privacy.delta,
            "budget_against": self.strategy.budget_adversary,
            "noise_multiplier": self.strategy.noise.noise_multiplier,
            "guarantee": self.sentence,
            "private": self.not_private is None,
            "not_private": self.not_private,
            "adversaries": adversaries(self.strategy, epsilon),
            "stopped": stopped,
            "cut_short": self._cut_short(done),
            "uplink_bytes": self.traffic[0],
            "downlink_bytes": self.traffic[1],
            "seconds": seconds,
            "seed": self.config.seed,
            "parameters": self.model.size,
            "frozen": self.model.frozen_size,
            "versions": versions(),
            "partition": {"histogram": self._histogram.tolist()},
        }
