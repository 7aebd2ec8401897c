"""The loop over rounds: broadcast, collect, update, account, evaluate, save. A killed run is resumed from its last
checkpoint.

A round is applied completely or not at all. A round that lost too many clients is repeated without them, and
after `clients.retries` repetitions the run stops. Everything up to the last complete round is on disk.
"""

import logging
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from fedsketch.conf import Config, to_json
from fedsketch.conf.schema import Randomness
from fedsketch.errors import ConfigError, RoundAborted, TooFewClients
from fedsketch.secagg import Aborted, Directory
from fedsketch.server.accounts import Accounts
from fedsketch.server.attempts import Attempt
from fedsketch.server.checkpoint import Checkpoint
from fedsketch.server.device_evaluations import DeviceEvaluations
from fedsketch.server.evaluation import evaluate
from fedsketch.server.grids.secagg_options import config_errors
from fedsketch.server.grids.stack import build_grids
from fedsketch.server.guarantee import adversaries, budget, guarantee, not_private
from fedsketch.server.observers.tracking import tracked
from fedsketch.server.report.model_card import model_card
from fedsketch.server.run_folder import RunFolder, versions
from fedsketch.server.validation import Validation
from fedsketch.strategies import make_strategy
from fedsketch.strategies.rounds.base import FederatedStrategy
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.data.tabular import is_table, resolved, schema_of
from fedsketch.tasks.workload import Workload

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Is told when a run begins, after each round, and when it ends."""

    def began(self, config: Config, done: int, guarantee: str) -> None: ...

    def round_done(self, row: dict[str, Any]) -> None: ...

    def ended(self, summary: dict[str, Any], report: Path) -> None: ...


class Rounds:
    """One run, from its configuration to its report."""

    def __init__(self, config: Config, path: Path, observer: Observer) -> None:
        # Everything is built and planned here, so that settings that do not fit fail before anything starts.
        config = resolved(config)
        self.config = config
        self.folder = RunFolder(path)
        self.observer = tracked(config, path, observer)
        self.job = Workload(config)
        self.model = self.job.model()
        self.test = self.job.test
        self.job.try_out(self.model)
        self.strategy = make_strategy(config, self.job, self.model, self._cohorts(None))
        self.accounts = Accounts(self.strategy)
        self.accounts.refuse_a_run_without_rounds()
        self.evaluations = DeviceEvaluations.of(self.strategy)
        self.sentence = guarantee(self.strategy, self.evaluations)
        self.not_private = not_private(config)
        self._metrics = [metric.name for metric in config.task.all_metrics]
        self.validation = Validation.of(config, self.job.validation, self.folder)
        self.traffic = (0.0, 0.0)  # bytes up and down per client, summed over rounds

    def play(self, grid: Grid, roster: Directory | None = None) -> None:
        """Execute all remaining rounds. With a `roster`, a node with a wrong signature is dropped alone. A finished run
        is not changed."""
        with self.folder.locked():
            self.folder.begin(self.config)
            summary = self.folder.read_summary()
            if summary is None:
                self.folder.write_interface(self.job.interface)
                if is_table(self.config.data):
                    self.folder.schema.write_text(schema_of(self.config.data).to_yaml())
                try:
                    self._play(grid, roster)
                except BaseException:
                    with suppress(
                        Exception
                    ):  # an error in the card must not hide why the run was interrupted
                        self._card_of_an_interrupted_run()
                    raise
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
        self._log_start(done)
        self.observer.began(self.config, done, self.sentence)
        self.meter, self.grid = build_grids(grid, strategy, roster)
        strategy.identify_clients(self.grid)
        if self.evaluations is not None:
            self.evaluations.begin()
        self.meter.take()
        row = self.folder.read_metrics()[-1] if done else {}
        while not self._finished(done):
            done += 1
            row = self._round(done, strategy)
            self.folder.append_metrics(row)
            if self._due(done, self.config.checkpoint_every):
                elapsed = before + time.monotonic() - started
                self.folder.sync_metrics()
                self._checkpoint(done, strategy, elapsed).save(self.folder.checkpoints)
            self.observer.round_done(row)
        best = None
        if self.validation is not None:
            best = self.validation.chosen(strategy.model, self.test)
        stopped = self._reason_for_stopping(done, strategy)
        summary = self._summary(row, stopped, before + time.monotonic() - started, best)
        self.folder.write_card(model_card(self.config, summary))
        report = self.folder.finish(strategy.model, summary)
        log.info("The run ended after round %d. %s", done, stopped or "All its rounds were played.")
        self.observer.ended(summary, report)

    def _reason_for_stopping(self, done: int, strategy: FederatedStrategy) -> str | None:
        """Why the run stopped, as a sentence; None if all rounds were executed."""
        if done == self.config.rounds:
            return None
        if self.validation is not None and self.validation.stopped is not None:
            return (
                f"Stopped after round {done}: {self.validation.stopped}. Epsilon is that of all rounds that were "
                "planned: the models decided when to stop, so the epsilon of fewer rounds would not hold."
            )
        return f"Stopped after round {done}: another would exceed {budget(strategy)}."

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

    def _cohorts(self, key: int | None) -> CohortSampler:
        """The cohorts of a new run, or of a resumed one with its key."""
        if key is None:
            seeded = self.config.privacy.randomness is Randomness.SEEDED
            key = self.config.seed if seeded else secrets.randbits(128)
        return CohortSampler(self.config.clients, key)

    def _resumed(self, checkpoint: Checkpoint | None) -> FederatedStrategy:
        """The strategy in the state of the checkpoint."""
        strategy = self.strategy
        if checkpoint is not None:
            strategy.cohorts = self._cohorts(checkpoint.cohort_key)
            strategy.model.load(checkpoint.model)
            strategy.resume(checkpoint.strategy)
            self.accounts.load_json(checkpoint.accounts)
            if self.evaluations is not None:
                self.evaluations.accounts.load_json(checkpoint.evaluations)
        if self.validation is not None:
            if checkpoint is not None:
                self.validation.load_state_dict(checkpoint.validation)
            self.validation.restore(strategy.model)
        if (
            self.config.privacy.randomness is not Randomness.SEEDED
        ):  # seeded noise is the same when it is drawn again
            lost = self.folder.attempts_since(checkpoint.attempts if checkpoint else 0)
            self.accounts.charge_lost(lost)
            if self.evaluations is not None:
                self.evaluations.accounts.charge_lost_evaluations(lost)
        return strategy

    def _finished(self, done: int) -> bool:
        if done == self.config.rounds or self._no_improvement:
            return True
        return not self.accounts.affordable(done + 1)

    @property
    def _no_improvement(self) -> bool:
        """Whether the validation examples show no further improvement."""
        return self.validation is not None and self.validation.stopped is not None

    def _due(self, done: int, every: int) -> bool:
        """Whether something that is done every few rounds is done after this one. It is always done after the last."""
        return done % every == 0 or self._finished(done)

    def _round(self, current: int, strategy: FederatedStrategy) -> dict[str, Any]:
        start = time.monotonic()
        evaluates = self.evaluations is not None and self.evaluations.may_follow(current)
        following = current + 1 if current < self.config.rounds and not evaluates else None
        clients_seconds = self._exchange(current, strategy, self.accounts, following)
        update_seconds = time.monotonic() - start - clients_seconds
        up, down = (total / max(strategy.cohort_size, 1) for total in self.meter.take())
        self.traffic = (self.traffic[0] + up, self.traffic[1] + down)
        validated: dict[str, Any] = {}
        if self.validation is not None:
            looks = self._due(current, self.config.evaluate_every)
            validated["validation"] = (
                self.validation.look(current, strategy.model) if looks else None
            )
        metrics: dict[str, float | None] = dict.fromkeys(self._metrics)
        if self._due(current, self.config.evaluate_every):
            metrics |= evaluate(strategy.model, self.test)
        return {
            "round": current,
            **metrics,
            **validated,
            **self._evaluated_by_devices(current),
            "epsilon": self._epsilon(current),
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
            **strategy.all_metrics(),
        }

    def _evaluated_by_devices(self, current: int) -> dict[str, Any]:
        """Evaluate this round's model on devices, if it is due. If the evaluation fails, its values are empty and the
        run continues."""
        evaluations = self.evaluations
        if evaluations is None:
            return {}
        evaluations.strategy.means = {}
        if evaluations.due(current, last=self._finished(current)):
            try:
                self._exchange(current, evaluations.strategy, evaluations.accounts, None)
            except (TooFewClients, ConfigError) as failed:
                log.warning("No evaluation on devices after round %d: %s", current, failed)
        up, down = (total / max(evaluations.strategy.cohort_size, 1) for total in self.meter.take())
        self.traffic = (self.traffic[0] + up, self.traffic[1] + down)
        return evaluations.row()

    def _epsilon(self, done: int) -> dict[str, float | None]:
        """Epsilon of training and evaluations together after this many rounds; if the models have ended the run, that
        of all planned rounds (`server.validation` says why)."""
        evaluations = self.evaluations
        if self._no_improvement:
            last, accounts = self.accounts.as_planned(done)
            beside = None if evaluations is None else evaluations.as_planned(done, last)
            return accounts.epsilon(beside)
        return self.accounts.epsilon(None if evaluations is None else evaluations.accounts)

    def _exchange(
        self,
        current: int,
        strategy: FederatedStrategy,
        accounts: Accounts,
        following: int | None,
    ) -> float:
        """Execute one round, with as many attempts as allowed; returns the seconds spent waiting for clients.
        `following` is the next round, if it has the same strategy."""
        waited = 0.0
        problem: Exception | None = None
        strategy.lost.clear()
        for attempt in range(self.config.clients.retries + 1):
            if attempt and not accounts.affordable(current):
                raise TooFewClients(
                    f"Round {current} failed because {problem}, and another attempt would exceed the budget."
                )
            messages = strategy.configure_train(
                current, strategy.arrays(), ConfigRecord(), self.grid
            )
            if not messages:  # the draw is too small to be asked
                log.warning("Round %d: the draw is too small, nobody is asked.", current)
                strategy.skip_round(current)
                # If sizes are hidden, such a round looks like all others and costs the same. In a pass it adds no cost,
                # but is recorded all the same, because the accountant counts the rounds of a pass to know where the
                # next pass begins.
                settings = strategy.config.clients
                if strategy.noise.draw_is_secret or settings.sampling.in_passes:
                    accounts.charge_applied(current, settings.per_round)
                return waited
            evaluation = strategy is not self.strategy
            self.folder.announce(Attempt(current, strategy.cohort_size, evaluation))
            self.grid.expect(None if following is None else strategy.nodes_of(following))
            start = time.monotonic()
            try:
                with config_errors():
                    timeout = self.config.clients.timeout
                    replies = self.grid.send_and_receive(messages, timeout=timeout)
                waited += time.monotonic() - start
                strategy.aggregate_train(current, replies)
            except (RoundAborted, Aborted) as aborted:
                problem = aborted
                log.warning("Round %d, attempt %d: %s", current, attempt + 1, aborted)
                accounts.charge_attempt(current, strategy.cohort_size)
                strategy.leave_out(getattr(aborted, "missing", ()))
                continue
            strategy.explain_dropouts(self.grid.dropouts)
            for client, reason in strategy.dropped.items():
                log.warning("Round %d: client %d dropped out: %s", current, client, reason)
            accounts.charge_attempt(current, strategy.cohort_size, strategy.arrived)
            # If the draw counts although sizes are visible, it counts for the first attempt only.
            known = attempt > 0 and not strategy.noise.draw_is_secret
            accounts.charge_applied(
                current, strategy.cohort_size, strategy.arrived, known_cohort=known
            )
            return waited
        raise TooFewClients(
            f"Round {current} failed {attempt + 1} times, the last time because {problem}; "
            f"look after these clients and resume with resume={self.folder.path}, or start a new run with more "
            "clients.tolerated_dropouts."
        )

    def _checkpoint(self, current: int, strategy: FederatedStrategy, seconds: float) -> Checkpoint:
        return Checkpoint(
            config=to_json(self.config),
            round=current,
            model=strategy.model.vector,
            strategy=strategy.checkpoint_state(),
            accounts=self.accounts.to_json(),
            evaluations=self.evaluations.accounts.to_json() if self.evaluations else "",
            cohort_key=strategy.cohorts.key,
            seconds=seconds,
            traffic=self.traffic,
            attempts=len(self.folder.attempts_since(0)),
            validation=self.validation.state_dict() if self.validation is not None else {},
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
            **{
                name: row.get(name) for name in (self.evaluations.row() if self.evaluations else ())
            },
            "epsilon": epsilon,
            "delta": self.config.privacy.delta,
            "budget_against": self.strategy.bound,
            "noise_multiplier": self.strategy.noise_multiplier,
            "guarantee": self.sentence,
            "private": self.not_private is None,
            "not_private": self.not_private,
            "adversaries": adversaries(self.strategy, epsilon),
            "stopped": stopped,
            "uplink_bytes": self.traffic[0],
            "downlink_bytes": self.traffic[1],
            "seconds": seconds,
            "seed": self.config.seed,
            "parameters": self.model.size,
            "frozen": self.model.frozen_size,
            "versions": versions(),
            "partition": {"histogram": self.job.histogram().tolist()},
        }
