"""Noise that the devices add: how much of it a run needs, how much each device adds, and what a round reveals to whom.

Every device adds a part of the noise. The parts are large enough that the budget is met in the worst case: only the
fewest survivors with which a round is still applied are in the sum, and the noise of those who may collude with the
adversary of the budget does not count. More survivors mean more noise, never less.

The random draw of a cohort may count as a secret (`NoisePlan.draw_is_secret`), which amplifies privacy. Then nobody
but the server may see anything that depends on the draw. The size of a Poisson cohort depends on it, and so does the
number of clients that delivered: whoever knows which clients are offline can infer from it how many of the others were
drawn. Therefore, if the draw is secret:
- the server adds noise of its own to every sum, which brings it to exactly one fixed variance;
- it divides sums by the expected number of units;
- the ring has the same scale for the whole run;
- a draw for which no client is asked is applied as noise alone.

This trusts the server, as does every guarantee that rests on its draw. None of it counts against the server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from fedsketch.conf.schema import Accounting, Against, CohortSampling
from fedsketch.privacy.accounting.dome_theorem import paper_noise_multiplier
from fedsketch.privacy.accounting.releases import (
    Adversary,
    NoSampling,
    Poisson,
    Release,
    SecretDraw,
    WithoutReplacement,
)
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.secagg import ProtocolName
from fedsketch.strategies.noise import device_mechanism
from fedsketch.strategies.noise.plan import NoisePlan
from fedsketch.strategies.noise.rings import bits_of
from fedsketch.strategies.noise.sizes import CohortSizes

_ROUNDING = 1e-12  # relative rounding error of products of fractions


@dataclass(frozen=True)
class DeviceNoise(NoisePlan):
    """The noise that devices add to their uploads. The clip is the sensitivity of every sum. `multiplier` is the noise
    multiplier of the sum if the user sets it. If it is None, the accountant computes it from the budget.

    A round may reveal more than one sum: one for each of the `groups` of a cohort, or each client's upload by itself
    (`single`). Then each of them has that much noise. A `fine` plan needs the full resolution of a ring that does not
    rotate.
    """

    multiplier: float | None
    groups: int = field(default=1, kw_only=True)
    single: bool = field(default=False, kw_only=True)
    fine: bool = field(default=False, kw_only=True)

    @property
    def sizes(self) -> CohortSizes:
        return CohortSizes(self.config, self.groups)

    @property
    def size_is_hidden(self) -> bool:
        """Whether no device learns how large a cohort is: each adds the same noise whatever the size, and the server
        adds the rest. Fellow clients then know nothing of a Poisson draw among the others, so that it counts against
        them.

        Only if the budget is against them, because the equal parts are those of the largest cohort: smaller than they
        could be, and all that there is against a server that sees single uploads. Under secure aggregation the members
        of a cohort know each other anyway.
        """
        against_clients = self.config.privacy.against is Against.CLIENT
        poisson = self.config.clients.sampling is CohortSampling.POISSON
        return self.draw_is_secret and poisson and against_clients and not self.sizes.masked

    def mechanism(self, cohort: int, dim: int | None = None) -> Mechanism:
        cohort = self.sizes.largest if self.size_is_hidden else cohort
        return device_mechanism.of_plan(self, cohort, self.dim if dim is None else dim)

    def variance(self, cohort: int, clients: int) -> float:
        if self.draw_is_secret:
            return device_mechanism.fixed_variance(self)
        return clients * self.mechanism(cohort).variance_per_device

    def accepts(self, cohort: int) -> bool:
        """Return whether a cohort of this size is asked to train. Secure aggregation needs two clients. If the draw is
        secret, no cohort may add more than the fixed variance by itself."""
        if self.size_is_hidden or not super().accepts(cohort):
            return super().accepts(cohort)
        least = cohort * self.contributing_fraction * (1.0 - _ROUNDING)
        return self.contributors(cohort) >= max(least if self.draw_is_secret else 1, 1)

    def bits_under(self, protocol: ProtocolName) -> int:
        """Return the size of the ring in which this protocol sums. Raises RingTooSmallError if it has none that
        serves."""
        return bits_of(self, protocol)

    @property
    def given_multiplier(self) -> float | None:
        """The noise multiplier if the user or a paper's theorem gives it. None if the accountant computes it."""
        privacy = self.config.privacy
        if self.multiplier is not None or privacy.accounting is Accounting.EXACT:
            return self.multiplier
        assert privacy.epsilon is not None  # or the config would not have passed
        return paper_noise_multiplier(
            epsilon=privacy.epsilon, delta=privacy.delta, compositions=self.config.rounds
        )

    @property
    def own_noise_suffices(self) -> bool:
        return self.single or super().own_noise_suffices

    # ------------------------------------------------------------------ what a round reveals
    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        """Return what a round reveals to each adversary, if `clients` of a cohort of this size are in a sum. The
        upload is the longest of the run.

        Unit: `privacy.unit`. Adjacency: zero-out (the unit's contribution is replaced by zero; its device still adds
        noise).
        - `model`: sees the models, so of each round only the noisy sum. Who was in the cohort is known to the server
          only.
        - `client`: other clients that collude, as many as `CohortSizes.colluding_clients`. They see the models too and
          know their own noise. With secure aggregation they also know who is in the cohort. Without, they know whether
          they are in it, and the part of the noise that they have to add tells them how large it is, unless
          `size_is_hidden`. So for them it is a fixed-size draw among the others, or a Poisson draw.
        - `server`: chooses the cohort. With secure aggregation it sees the noisy sum, and up to `secagg.colluders`
          clients tell it their noise. Without, it sees each device's upload, protected by that device's noise alone.
        """
        mechanism, sizes = self.mechanism(cohort), self.sizes
        every, own = self.variance(cohort, clients), mechanism.variance_per_device
        # Nothing that is booked may depend on a size that is hidden.
        most = sizes.largest if self.size_is_hidden else cohort
        colluding_clients = sizes.colluding_clients(most)
        known = min(colluding_clients, (most if self.size_is_hidden else clients) - 1)
        server = (clients - sizes.colluders(cohort)) * own if sizes.masked else own
        return {
            Against.MODEL: mechanism.release_to(
                every, self.unit, self.secret_draw(cohort, clients), Adversary.MODEL
            ),
            Against.CLIENT: mechanism.release_to(
                every - known * own,
                self.unit,
                self.draw_without(colluding_clients, cohort, clients),
                Adversary.CLIENT,
            ),
            Against.SERVER: mechanism.release_to(server, self.unit, NoSampling(), Adversary.SERVER),
        }

    def worst(self) -> Release:
        largest = self.mechanism(self.sizes.largest)
        least = largest.variance_per_device
        if not self.own_noise_suffices:
            least = device_mechanism.needed_variance(self)
        return largest.release_to(least, self.unit, *self.worst_draw())

    @cached_property
    def noise_multiplier(self) -> float:
        if self.multiplier is not None:
            return self.multiplier
        cohort = self.sizes.largest if self.size_is_hidden else self.config.clients.per_round
        mechanism, fewest = self.mechanism(cohort), self.sizes.survivors(cohort)
        devices = fewest * mechanism.variance_per_device
        noise = self.variance(cohort, fewest) if self._server_noise_counts else devices
        unknown = noise - self.known(cohort) * mechanism.variance_per_device
        return mechanism.noise_multiplier(unknown, self.unit)

    def draw_without(self, colluding_clients: int, cohort: int, clients: int) -> SecretDraw:
        """Return the draw as colluding clients see it. If its size is hidden, a Poisson draw among the other clients is
        unchanged. Otherwise a client that was not drawn is not told the size of the cohort,
        and sees only the models. So a cohort that is smaller than expected is treated as one of the expected size."""
        draw = self.secret_draw(cohort, clients)
        if self.size_is_hidden or not isinstance(draw, Poisson | WithoutReplacement):
            return draw
        others = self.config.clients.total - colluding_clients
        size = max(cohort, self.config.clients.per_round) if self.draw_is_secret else cohort
        if self.sizes.masked or size > others:
            return NoSampling()
        return self.fixed_draw(size, others)

    # ------------------------------------------------------------------ whose noise counts
    def known(self, cohort: int) -> int:
        """Return the number of clients whose noise the adversary of the budget knows."""
        if self.config.privacy.against is Against.CLIENT:
            return min(self.sizes.colluding_clients(cohort), cohort - 1)
        server = self.config.privacy.against is Against.SERVER
        return self.sizes.colluders(cohort) if server else 0

    def contributors(self, cohort: int) -> int:
        """Return how many devices add the noise that is needed, in the worst case. If the server's noise counts, it
        replaces that of clients that dropped out."""
        if self.own_noise_suffices and self.multiplier is None:
            return 1
        there = cohort if self._server_noise_counts else self.sizes.survivors(cohort)
        return there - self.known(cohort)

    @property
    def contributing_fraction(self) -> float:
        """A lower bound on the contributors divided by the members, for cohorts of about the planned size, without
        rounding."""
        settings, privacy, largest = self.config.clients, self.config.privacy, self.sizes.largest
        if self.size_is_hidden:
            return (largest - self.known(largest)) / largest
        known = 0.0 if privacy.against is Against.MODEL else self.sizes.colluding_share
        if privacy.against is Against.CLIENT:
            known = max(known, 1.0 / max(2, settings.per_round // 2))
        return 1.0 - known - (0.0 if self._server_noise_counts else settings.tolerated_dropouts)

    @property
    def _server_noise_counts(self) -> bool:
        """Whether the server's own noise counts against the adversary of the budget."""
        return self.draw_is_secret and self.config.privacy.against is not Against.SERVER
