"""How many clients of a cohort may vanish, how many may work with the server, and with how many a round still counts."""

import math
from dataclasses import dataclass

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig


@dataclass(frozen=True)
class CohortSizes:
    """Answers for a cohort of any size, from the configuration alone."""

    config: Config

    @property
    def masked(self) -> bool:
        """Whether the server sees sums only."""
        return not isinstance(self.config.secagg, NoSecAggConfig)

    @property
    def smallest(self) -> int:
        """A smaller cohort is not asked: one client's sum is its upload, so masks need two."""
        return 2 if self.masked else 1

    def drops(self, cohort: int) -> int:
        return math.floor(cohort * self.config.clients.tolerated_dropouts)

    def survivors(self, cohort: int) -> int:
        """With fewer than this many a round is not applied."""
        return max(1, cohort - self.drops(cohort))

    def colluders(self, cohort: int) -> int:
        """Clients who are assumed to tell the server their noise."""
        return math.floor(cohort * self.config.secagg.colluders)

    def unknown(self, cohort: int, clients: int) -> int:
        """Of so many in a sum, those whose noise the server does not know; without masks it sees each upload under its own."""
        return clients - self.colluders(cohort) if self.masked else 1
