"""Who evaluates the models of a run: only the server, or devices too, on their own held-out examples
(docs/how-to/evaluate_on_devices.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedsketch.conf.types import Count, Positive, frozen

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class ServerEvaluationConfig:
    """Only the server evaluates, on its test set."""

    name: Literal["server"]

    def check(self, config: Config) -> None:
        """Allow every other setting."""


@frozen
class FederatedEvaluationConfig:
    """Devices evaluate every few rounds, and after the last one."""

    name: Literal["federated"]
    epsilon: Positive | None
    every: Count | None
    clients: Count | None
    groups: Count
    held_out: Annotated[float, Field(gt=0, lt=1)]
    loss_bound: Positive

    def check(self, config: Config) -> None:
        """Raise ValueError if the rest of the configuration does not fit. The message names the keys to change."""
        asked = self.cohort(config)
        if self.epsilon is None and config.privacy.private:
            raise ValueError(
                "the results of evaluations on devices need noise too: set their budget, evaluation.epsilon"
            )
        if asked > config.clients.total:
            raise ValueError(
                f"evaluation.clients={asked} is more than clients.total={config.clients.total}: lower it"
            )
        if asked % self.groups or asked // self.groups < 2:
            raise ValueError(
                f"{asked} clients cannot form {self.groups} equal groups of at least two clients: change "
                "evaluation.groups or evaluation.clients"
            )
        partition = getattr(config.data, "partition", None)
        if partition is not None and partition.scheme == "one_example":
            raise ValueError(
                "a client with one example cannot hold any out: set another data.partition, or evaluation=server"
            )

    def cohort(self, config: Config) -> int:
        """Return how many clients an evaluation asks. It is the expected number where each client is drawn on its
        own."""
        return config.clients.per_round if self.clients is None else self.clients

    def times(self, rounds: int) -> int:
        """Return how many evaluations a run of this many rounds has."""
        return 1 if self.every is None else -(-rounds // self.every)

    def due(self, done: int) -> bool:
        """Return whether there is an evaluation after this round, even if it is not the last round."""
        return self.every is not None and done % self.every == 0
