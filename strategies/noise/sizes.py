"""The sizes of a cohort: the largest and the smallest, how many clients may drop out or collude with the server, and
how many are needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fedsketch.conf import Config
from fedsketch.conf.schema import ClientsConfig, CohortSampling, NoSecAggConfig
from fedsketch.secagg import Sizes

_NEVER = 1e-12  # the probability that a Poisson draw is larger than the largest accepted cohort


@dataclass(frozen=True)
class CohortSizes:
    """Computes these sizes for any cohort from the configuration alone. A cohort may be split into `groups`, with a
    sum for each."""

    config: Config
    groups: int = 1

    @property
    def masked(self) -> bool:
        """Whether secure aggregation is on, so that the server sees only sums."""
        return not isinstance(self.config.secagg, NoSecAggConfig)

    @property
    def smallest(self) -> int:
        """The smallest cohort that is asked. Secure aggregation needs two clients: the sum of one would be its
        upload."""
        return 2 if self.masked else 1

    @property
    def largest(self) -> int:
        """The largest cohort that is asked. A Poisson draw can have any size, and a run is planned for a size that is
        almost never exceeded."""
        return _largest(self.config.clients)

    def members(self, cohort: int) -> int:
        """Return the largest number of clients in one sum."""
        return self._of(cohort).most

    def drops(self, cohort: int) -> int:
        """Return how many clients of one sum may drop out."""
        return self._of(cohort).drops

    def survivors(self, cohort: int) -> int:
        """Return the smallest number of clients in a sum. With fewer, a round is not applied."""
        return max(1, self._of(cohort).least)

    def colluders(self, cohort: int) -> int:
        """Return how many clients are assumed to tell the server their noise. A share is one of the whole cohort,
        because they may all be in one group."""
        return self._of(cohort).colluders

    def needed(self, cohort: int) -> int:
        """Return how many clients of one sum secure aggregation needs to the end."""
        return self._of(cohort).needed

    @property
    def colluding_share(self) -> float:
        """The assumed colluders of a usual cohort as a share of it, without rounding."""
        colluders = self.config.secagg.colluders
        return colluders if colluders < 1 else colluders / self.config.clients.per_round

    def colluding_clients(self, cohort: int) -> int:
        """Return how many clients are assumed to collude with each other as the adversary `client`: as many as collude
        with the server, and at least one."""
        return max(1, self.colluders(cohort))

    def _of(self, cohort: int) -> Sizes:
        config = self.config
        return Sizes.of(
            cohort, config.clients.tolerated_dropouts, config.secagg.colluders, self.groups
        )


@lru_cache(maxsize=64)
def _largest(clients: ClientsConfig) -> int:
    if clients.sampling is not CohortSampling.POISSON or clients.per_round == clients.total:
        return clients.per_round
    from scipy import stats  # imported here, because it takes half a second

    rate = clients.per_round / clients.total
    return min(clients.total, int(stats.binom.isf(_NEVER, clients.total, rate)))
