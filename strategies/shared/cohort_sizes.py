"""How large a cohort may be, how many of a sum may vanish, how many may work with the server, and with how many a round
still counts."""

import math
from dataclasses import dataclass
from functools import lru_cache

from fedsketch.conf import Config
from fedsketch.conf.schema import ClientsConfig, NoSecAggConfig, Sampling

_NEVER = 1e-12  # probability that a Poisson draw is larger than the largest that is asked


@dataclass(frozen=True)
class CohortSizes:
    """Answers for a cohort of any size, from the configuration alone; and for a cohort that is cut into `groups`, with
    a sum for each."""

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

    @property
    def largest(self) -> int:
        """A larger cohort is not asked: a Poisson draw has any size, and a run is planned for one that is hardly ever
        exceeded."""
        return _largest(self.config.clients)

    def members(self, cohort: int) -> int:
        """The most clients in one sum."""
        return -(-cohort // self.groups)

    def drops(self, cohort: int) -> int:
        return math.floor(cohort // self.groups * self.config.clients.tolerated_dropouts)

    def survivors(self, cohort: int) -> int:
        """The fewest clients in a sum: with fewer, a round is not applied."""
        return max(1, cohort // self.groups - self.drops(cohort))

    def colluders(self, cohort: int) -> int:
        """Clients who are assumed to tell the server their noise: of the whole cohort, because they may all be in one
        group."""
        return math.floor(cohort * self.config.secagg.colluders)

    def fellows(self, cohort: int) -> int:
        """Clients who are assumed to put together what they know: as many as work with the server, and at least one."""
        return max(1, self.colluders(cohort))


@lru_cache(maxsize=64)
def _largest(clients: ClientsConfig) -> int:
    if clients.sampling is not Sampling.poisson or clients.per_round == clients.total:
        return clients.per_round
    from scipy import stats  # half a second

    rate = clients.per_round / clients.total
    return min(clients.total, int(stats.binom.isf(_NEVER, clients.total, rate)))
