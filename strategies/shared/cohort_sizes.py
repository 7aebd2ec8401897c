"""How many clients of a sum may vanish, how many may work with the server, and with how many a round still counts."""

import math
from dataclasses import dataclass

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig


@dataclass(frozen=True)
class CohortSizes:
    """Answers for a cohort of any size, from the configuration alone; and for a cohort that is cut into `groups`, with a sum for each."""

    config: Config
    groups: int = 1

    @property
    def masked(self) -> bool:
        """Whether the server sees sums only."""
        return not isinstance(self.config.secagg, NoSecAggConfig)

    @property
    def smallest(self) -> int:
        """A smaller cohort is not asked: one client's sum is its upload, so masks need two."""
        return 2 if self.masked else 1

    def members(self, cohort: int) -> int:
        """The most clients in one sum."""
        return -(-cohort // self.groups)

    def drops(self, cohort: int) -> int:
        return math.floor(cohort // self.groups * self.config.clients.tolerated_dropouts)

    def survivors(self, cohort: int) -> int:
        """With fewer than this many in a sum a round is not applied."""
        return max(1, cohort // self.groups - self.drops(cohort))

    def colluders(self, cohort: int) -> int:
        """Clients who are assumed to tell the server their noise: of the whole cohort, because they may all be in one group."""
        return math.floor(cohort * self.config.secagg.colluders)

    def unknown(self, cohort: int, clients: int) -> int:
        """Of so many in a sum, those whose noise the server does not know; without masks it sees each upload under its own."""
        return clients - self.colluders(cohort) if self.masked else 1
