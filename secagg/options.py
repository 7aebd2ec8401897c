"""The server's choices, from which the settings of each round follow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .codec import VectorFormat
from .errors import SettingsError
from .names import ProtocolName
from .settings import Sizes, count_of
from .two_trips.settings import LONGEST_EPOCH
from .wrapped_grid import POLL_INTERVAL


@dataclass(frozen=True)
class SecAggOptions:
    """The server's choices about all rounds.

    `protocol` says how vectors are summed; None stands for the one that sends fewer bytes. `drops` are the
    dropouts that a sum tolerates, `losses` those after a vector was sent that a sum of two trips tolerates
    besides, and `colluders` the clients that may work with the server; a float below 1 is a fraction (of a
    group, of the cohort), an int a count. `stage_timeout` bounds the stages around training, `train_timeout`
    training itself. When enough clients for a sum have answered, the others get `patience` times as long
    again, at least 10 s.

    In sums of two trips, devices have new keys every `epoch_rounds` rounds. `closed` promises that all rounds
    ask the same nodes, so that they can erase what they need for meeting others.

    With pairwise masks and `consistency` a round has at most 1,024 clients (in each group), who all exchange
    masks. Without, it takes 4 round trips instead of 5, more than 128 clients exchange masks with their
    neighbours in a ring, and it is private against a semi-honest server only. With `merged` the keys and
    shares of the next round are sent with the last messages of this one (3 round trips), if the next round
    has the same cohort or the one told to `SecAggGrid.expect`.
    """

    drops: int | float = 0.1
    losses: int | float = 0.05
    colluders: int | float = 0
    consistency: bool = True
    groups: int = 1
    protocol: ProtocolName | None = ProtocolName.PAIRWISE
    merged: bool = False
    closed: bool = False
    epoch_rounds: int = 32
    stage_timeout: float = 120.0
    train_timeout: float = 3600.0
    patience: float = 3.0
    poll_interval: float = POLL_INTERVAL

    def __post_init__(self) -> None:
        for name, value in (
            ("drops", self.drops),
            ("losses", self.losses),
            ("colluders", self.colluders),
        ):
            if value < 0 or (isinstance(value, float) and value >= 1):
                raise SettingsError(f"{name} is a fraction below 1 or a count, not {value}.")
        if not 1 <= self.epoch_rounds <= LONGEST_EPOCH:
            raise SettingsError(
                f"An epoch has 1 to {LONGEST_EPOCH} rounds, not {self.epoch_rounds}."
            )
        if self.groups < 1:
            raise SettingsError("A round has at least one group.")
        if min(self.stage_timeout, self.train_timeout, self.poll_interval) <= 0:
            raise SettingsError("Timeouts and the poll interval are positive.")
        if self.patience < 0:
            raise SettingsError("The patience with late nodes is not negative.")

    def sizes(self, n: int) -> Sizes:
        """Return the numbers of a round with n clients."""
        return Sizes.of(n, self.drops, self.colluders, self.groups)

    def losses_of(self, sizes: Sizes) -> int:
        """Return the losses that a sum of two trips tolerates in each group."""
        return count_of(self.losses, sizes.fewest)

    def for_vector(self, vector: VectorFormat) -> SecAggOptions:
        """Return these options with the groups and the protocol that the vector asks for, if it asks for any."""
        return replace(
            self,
            groups=self.groups if vector.groups is None else vector.groups,
            protocol=vector.protocol or self.protocol,
        )
