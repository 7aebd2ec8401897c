"""Who evaluates the models of a run: the server alone, or devices too, on held-out examples (docs/how-to/evaluate_on_devices.md)."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedsketch.conf.types import Count, Positive, frozen

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class ServerEvaluationConfig:
    """The server's test set is all there is."""

    name: Literal["server"]

    def check(self, config: "Config") -> None:
        """It fits everything."""


@frozen
class FederatedEvaluationConfig:
    """Devices evaluate after every so many rounds and after the last one."""

    name: Literal["federated"]
    epsilon: Positive | None
    every: Count | None
    clients: Count | None
    groups: Count
    held_out: Annotated[float, Field(gt=0, lt=1)]
    loss_bound: Positive

    def check(self, config: "Config") -> None:
        """Raise ValueError, with a sentence that names the keys to change, if the rest of the configuration does not fit."""
        asked = self.cohort(config)
        if self.epsilon is None and config.privacy.private:
            raise ValueError(
                "what devices tell of an evaluation is noised too: set evaluation.epsilon, its budget"
            )
        if asked > config.clients.total:
            raise ValueError(
                f"evaluation.clients={asked} is more than clients.total={config.clients.total}: lower it"
            )
        if asked % self.groups or asked // self.groups < 2:
            raise ValueError(
                f"{asked} clients make no {self.groups} groups of one size with two clients at least in each: change evaluation.groups or "
                "evaluation.clients"
            )
        partition = getattr(config.data, "partition", None)
        if partition is not None and partition.scheme == "one_example":
            raise ValueError(
                "a client with one example has none to hold out: set another data.partition, or evaluation=server"
            )

    def cohort(self, config: "Config") -> int:
        """How many clients an evaluation asks (so many in the mean, where each is drawn on its own)."""
        return config.clients.per_round if self.clients is None else self.clients

    def times(self, rounds: int) -> int:
        """How many evaluations a run of so many rounds has."""
        return 1 if self.every is None else -(-rounds // self.every)

    def due(self, done: int) -> bool:
        """Whether there is one after this round, even if it is not the last."""
        return self.every is not None and done % self.every == 0
