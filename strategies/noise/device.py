"""Noise that the devices add: how much of it a run needs, which share each device adds, and what a round reveals to
whom.

Every device adds a share of the noise. The shares are large enough that the budget is met in the worst case: only the
fewest survivors with which a round is still applied are in the sum, and the noise of those who may collude with the
adversary of the budget does not count. More survivors mean more noise, never less.

The random draw of a cohort may count as a secret (`draw_is_secret`), which amplifies privacy. Then nobody but the
server may see anything that depends on the draw. The size of a Poisson cohort depends on it, and so does the number of
clients that delivered: whoever knows which clients are offline can infer from it how many of the others were drawn.
Therefore, if the draw is hidden:
- the server adds noise of its own to every sum, which brings it to exactly one nominal variance;
- it divides sums by the expected number of units;
- the ring has the same scale for the whole run;
- a draw for which no client is asked is applied as noise alone.

This trusts the server, as does every guarantee that rests on its draw. None of it counts against the server.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from fedsketch.conf import Config
from fedsketch.conf.schema import Accounting, Against, CohortSampling, Noise
from fedsketch.errors import ConfigError
from fedsketch.privacy.accounting import poisson
from fedsketch.privacy.accounting.calibration import Price, calibrate, calibrate_skellam
from fedsketch.privacy.accounting.dome_theorem import paper_noise_multiplier
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    FullPasses,
    NoSampling,
    Poisson,
    Release,
    SecretDraw,
    Unit,
    WithoutReplacement,
)
from fedsketch.privacy.mechanisms.gaussian import GaussianNoise
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.strategies.noise.sizes import CohortSizes

_ROUNDING = 1e-12  # relative rounding error of products of shares


@dataclass(frozen=True)
class DeviceNoise:
    """The noise of a run.

    An upload has at most `dim` numbers. A client has at most `rows` rows, each with a norm of at most `clip`, which is
    the sensitivity of every sum. `multiplier` is the noise multiplier of the sum if the user sets it. If it is None,
    the accountant computes it from the budget.

    A round may reveal more than one sum: one for each of the `groups` of a cohort, or each client's upload by itself
    (`single`). Then each of them has that much noise. With `known_cohort` the draw of the cohort does not count as a
    secret.
    """

    config: Config
    dim: int
    rows: int
    clip: float | None
    multiplier: float | None
    groups: int = field(default=1, kw_only=True)
    single: bool = field(default=False, kw_only=True)
    known_cohort: bool = field(default=False, kw_only=True)

    @property
    def sizes(self) -> CohortSizes:
        return CohortSizes(self.config, self.groups)

    def mechanism(self, cohort: int, dim: int | None = None) -> Mechanism:
        """Return the mechanism that each device of a cohort of this size applies to an upload of `dim` numbers
        (default: the longest upload)."""
        return _mechanism(self, cohort, self.dim if dim is None else dim)

    # ------------------------------------------------------------------ the noise of a sum
    def variance(self, cohort: int, clients: int) -> float:
        """Return the variance of the noise in a sum over this many clients of a cohort, including the server's
        noise."""
        return (
            self._fixed_variance
            if self.draw_is_secret
            else clients * self.mechanism(cohort).variance_per_device
        )

    def accepts(self, cohort: int) -> bool:
        """Whether a cohort of this size is asked to train. Secure aggregation needs two clients. If the draw is
        hidden, no cohort may add more than the nominal noise by itself."""
        if not self.sizes.smallest <= cohort <= self.sizes.largest:
            return False
        least = (
            cohort * self._contributing_fraction * (1.0 - _ROUNDING) if self.draw_is_secret else 1
        )
        return self._contributors(cohort) >= max(least, 1)

    @property
    def draw_is_secret(self) -> bool:
        """Whether the draw of a cohort counts as a secret, so that nothing others see may depend on the cohort's
        size."""
        clients = self.config.clients
        drawn = not clients.sampling.in_passes and clients.per_round < clients.total
        private = self.config.privacy.private
        return private and drawn and not self.known_cohort and not self.own_noise_suffices

    # ------------------------------------------------------------------ what a round reveals
    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        """Return what a round reveals to each adversary, if `clients` of a cohort of this size are in a sum. The
        upload is the longest of the run.

        Unit: `privacy.unit`. Adjacency: zero-out (the unit's contribution is replaced by zero; its device still adds
        noise).
        - `model`: sees the models, so of each round only the noisy sum. Who was in the cohort is known to the server
          only.
        - `client`: other clients that collude, as many as `CohortSizes.colluding_clients`. They see the models too and
          know their own noise. With secure aggregation they also know who is in the cohort. Without, the share of the
          noise that they have to add tells them how large the cohort is, and they know whether they are in it. So for
          them it is a fixed-size draw among the others.
        - `server`: chooses the cohort. With secure aggregation it sees the noisy sum, and up to `secagg.colluders`
          clients tell it their noise. Without, it sees each device's upload, protected by that device's noise alone.
        """
        mechanism, sizes = self.mechanism(cohort), self.sizes
        every, share = self.variance(cohort, clients), mechanism.variance_per_device
        colluding_clients = sizes.colluding_clients(cohort)
        server = (clients - sizes.colluders(cohort)) * share if sizes.masked else share
        return {
            Against.MODEL: mechanism.release_to(
                every, self.unit, self._draw(cohort, clients), Adversary.MODEL
            ),
            Against.CLIENT: mechanism.release_to(
                every - min(colluding_clients, clients - 1) * share,
                self.unit,
                self._draw_without(colluding_clients, cohort, clients),
                Adversary.CLIENT,
            ),
            Against.SERVER: mechanism.release_to(server, self.unit, NoSampling(), Adversary.SERVER),
        }

    def worst(self) -> Release:
        """Return the most that a round can reveal to the adversary of the budget, for any size of the cohort and any
        dropouts."""
        sampling, adversary = _bound(self)
        largest = self.mechanism(self.sizes.largest)
        least = largest.variance_per_device if self.own_noise_suffices else _needed_variance(self)
        return largest.release_to(least, self.unit, sampling, adversary)

    @cached_property
    def noise_multiplier(self) -> float:
        """The standard deviation of the sum's noise divided by the sensitivity, in the worst case. Noise that the
        adversary of the budget knows does not count."""
        if self.multiplier is not None:
            return self.multiplier
        cohort = self.config.clients.per_round
        mechanism, fewest = self.mechanism(cohort), self.sizes.survivors(cohort)
        devices = fewest * mechanism.variance_per_device
        noise = self.variance(cohort, fewest) if self._server_noise_counts else devices
        unknown = noise - self._known(cohort) * mechanism.variance_per_device
        return mechanism.noise_multiplier(unknown, self.unit)

    @property
    def unit(self) -> Unit:
        return self.config.privacy.unit

    @property
    def own_noise_suffices(self) -> bool:
        """Whether the noise of each device must be enough for its upload alone, without that of the others."""
        server = self.config.privacy.against is Against.SERVER
        return self.single or (server and not self.sizes.masked)

    @property
    def trusted(self) -> bool:
        """Whether the server is trusted with every upload, so that there is no guarantee against it."""
        return False

    # ------------------------------------------------------------------ inside
    def _draw(self, cohort: int, clients: int) -> SecretDraw:
        """Return the draw of a cohort that has turned out to have this size, as far as it is a secret from those who
        see only models and a theorem covers it."""
        settings = self.config.clients
        if settings.per_round == settings.total or self.known_cohort:
            return NoSampling()
        if settings.sampling.in_passes:
            return FullPasses(-(-settings.total // settings.per_round))
        if self.draw_is_secret and settings.sampling is CohortSampling.POISSON:
            return Poisson(settings.per_round / settings.total, missed=_missed(self))
        if self.draw_is_secret:
            return WithoutReplacement(settings.per_round, settings.total)
        # The amount of noise reveals the size of the cohort. Given its size, it is a fixed-size draw. If some clients
        # dropped out, those who know which clients are offline can infer more.
        complete = clients == cohort and not settings.tolerated_dropouts
        return WithoutReplacement(cohort, settings.total) if complete else NoSampling()

    def _draw_without(self, colluding_clients: int, cohort: int, clients: int) -> SecretDraw:
        """Return the draw as colluding clients see it. A client that was not drawn is not told the size of the cohort,
        and sees only the models. So a cohort that is smaller than expected is treated as one of the expected size."""
        draw = self._draw(cohort, clients)
        if not isinstance(draw, Poisson | WithoutReplacement):
            return draw
        others = self.config.clients.total - colluding_clients
        size = max(cohort, self.config.clients.per_round) if self.draw_is_secret else cohort
        if self.sizes.masked or size > others:
            return NoSampling()
        return WithoutReplacement(size, others)

    def _known(self, cohort: int) -> int:
        """Return the number of clients whose noise the adversary of the budget knows."""
        if self.config.privacy.against is Against.CLIENT:
            return min(self.sizes.colluding_clients(cohort), cohort - 1)
        server = self.config.privacy.against is Against.SERVER
        return self.sizes.colluders(cohort) if server else 0

    def _contributors(self, cohort: int) -> int:
        """Return how many devices add the noise that is needed, in the worst case. If the server's noise counts, it
        replaces that of clients that dropped out."""
        if self.own_noise_suffices and self.multiplier is None:
            return 1
        there = cohort if self._server_noise_counts else self.sizes.survivors(cohort)
        return there - self._known(cohort)

    @property
    def _server_noise_counts(self) -> bool:
        """Whether the server's own noise counts against the adversary of the budget."""
        return self.draw_is_secret and self.config.privacy.against is not Against.SERVER

    @property
    def _contributing_fraction(self) -> float:
        """A lower bound on the contributors divided by the members, for cohorts of about the planned size, without
        rounding."""
        settings, privacy = self.config.clients, self.config.privacy
        known = 0.0 if privacy.against is Against.MODEL else self.config.secagg.colluders
        if privacy.against is Against.CLIENT:
            known = max(known, 1.0 / max(2, settings.per_round // 2))
        return 1.0 - known - (0.0 if self._server_noise_counts else settings.tolerated_dropouts)

    @property
    def _fixed_variance(self) -> float:
        """The variance of the noise in every sum if the draw is hidden. No cohort that is asked adds more by
        itself."""
        if self.config.secagg.noise is Noise.SKELLAM:
            ring, _ = _ring(self, self.sizes.largest)
            return ring.clients * ring.local_variance
        return _needed_variance(self) / self._contributing_fraction


def calibrated(
    config: Config, template: Callable[[float], Release], price: Price | None = None
) -> float:
    """Return the smallest noise multiplier with which all rounds of a run fit its budget. For `price` see
    `calibrate`."""
    privacy = config.privacy
    assert privacy.epsilon is not None  # or the config would not have passed
    return calibrate(
        template,
        rounds=config.rounds,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        price=price,
    )


@lru_cache(maxsize=256)
def _mechanism(noise: DeviceNoise, cohort: int, dim: int) -> Mechanism:
    contributors = noise._contributors(cohort)
    if contributors < 1:
        raise ConfigError(
            f"{cohort} clients with {noise.sizes.drops(cohort)} drops and {noise._known(cohort)} colluders leave no "
            "honest noise: raise clients.per_round, or lower clients.tolerated_dropouts or secagg.colluders."
        )
    if noise.config.secagg.noise is not Noise.SKELLAM:
        return _gaussian_noise(noise, math.sqrt(_needed_variance(noise) / contributors))
    ring, needed = _ring(noise, noise.sizes.largest if noise.draw_is_secret else cohort)
    # For an upload shorter than the longest both sensitivities are smaller, so it costs no more than the accountant
    # books.
    return replace(
        ring,
        dim=dim,
        clients=noise.sizes.members(cohort),
        drops=noise.sizes.drops(cohort),
        colluders=noise.sizes.colluders(cohort),
        local_variance=math.ceil(needed / contributors),
    )


def _needed_variance(noise: DeviceNoise) -> float:
    """Return the variance of the noise that the contributors to a sum must add together, in the mechanism's units."""
    if noise.config.secagg.noise is Noise.SKELLAM:
        return _ring(
            noise, noise.sizes.largest if noise.draw_is_secret else noise.config.clients.per_round
        )[1]
    return _gaussian_multiplier(noise) ** 2


@lru_cache(maxsize=8)
def _gaussian_multiplier(noise: DeviceNoise) -> float:
    """Return the noise multiplier z of the sum over all contributors: from the budget, unless it is given."""
    given = _given(noise)
    if given is not None:
        return given
    sampling, adversary = _bound(noise)

    def template(z: float) -> Release:
        return _gaussian_noise(noise, z).release_to(z**2, noise.unit, sampling, adversary)

    return calibrated(noise.config, template)


def _given(noise: DeviceNoise) -> float | None:
    """Return the noise multiplier if the user or a paper's theorem gives it. None if the accountant computes it."""
    privacy = noise.config.privacy
    if noise.multiplier is not None or privacy.accounting is Accounting.EXACT:
        return noise.multiplier
    assert privacy.epsilon is not None  # or the config would not have passed
    return paper_noise_multiplier(
        epsilon=privacy.epsilon, delta=privacy.delta, compositions=noise.config.rounds
    )


def _gaussian_noise(noise: DeviceNoise, share: float) -> GaussianNoise:
    return GaussianNoise(unit=noise.unit, rows=noise.rows, local_multiplier=share, clip=noise.clip)


@lru_cache(maxsize=64)
def _ring(noise: DeviceNoise, cohort: int) -> tuple[SkellamRing, float]:
    """Return the ring with its scale, for cohorts of up to this size and the longest upload, and the variance that the
    contributors to a sum must add together.

    If the draw is hidden, each device's share in the returned ring is such that this cohort would add the nominal
    noise, the most that any accepted cohort adds.
    """
    privacy, sizes = noise.config.privacy, noise.sizes
    assert noise.clip is not None
    sampling, adversary = _bound(noise)
    given = _given(noise)

    @lru_cache(maxsize=1)
    def needed(l2: float, l1: float) -> float:
        if given is not None:
            return (given * l2) ** 2
        assert privacy.epsilon is not None
        return calibrate_skellam(
            lambda law: Release(law, sampling, Adjacency.ZERO_OUT, noise.unit, adversary),
            l2_sensitivity=l2,
            l1_sensitivity=l1,
            rounds=noise.config.rounds,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
        )

    members = sizes.members(cohort)
    honest = (
        members * noise._contributing_fraction
        if noise.draw_is_secret
        else noise._contributors(cohort)
    )
    # A share is rounded up to an integer, so a cohort adds up to one unit more for each of its members.
    rounding = members if noise.draw_is_secret else 0
    ring = choose_ring(
        dim=noise.dim,
        clients=members,
        unit=noise.unit,
        rows=noise.rows,
        clip=noise.clip,
        noise=lambda l2, l1: needed(l2, l1) + rounding,
        bits=noise.config.secagg.bits,
        drops=sizes.drops(cohort),
        colluders=sizes.colluders(cohort),
        honest=honest,
    )
    return ring, needed(ring.l2_sensitivity, ring.l1_sensitivity)


def _bound(noise: DeviceNoise) -> tuple[SecretDraw, Adversary]:
    """Return the draw that is secret from the adversary of the budget, in the worst case, and that adversary."""
    against, cohort = noise.config.privacy.against, noise.sizes.largest
    if against is Against.SERVER:
        return NoSampling(), Adversary.SERVER
    fewest = noise.sizes.survivors(cohort)
    if against is Against.MODEL:
        return noise._draw(cohort, fewest), Adversary.MODEL
    colluding_clients = noise.sizes.colluding_clients(cohort)
    return noise._draw_without(colluding_clients, cohort, fewest), Adversary.CLIENT


@lru_cache(maxsize=64)
def _missed(noise: DeviceNoise) -> float:
    """Return the probability that one unit decides whether a cohort is asked at all: without it those drawn are too
    few, with it they are enough. The fewer clients are online, the larger it is, so as many are assumed offline as a
    round tolerates dropouts."""
    settings, sizes = noise.config.clients, noise.sizes
    rate = settings.per_round / settings.total
    there = CohortSizes(noise.config).survivors(settings.total)
    decided = [n for n in range(1, sizes.largest) if not noise.accepts(n) and noise.accepts(n + 1)]
    return sum(
        max(poisson.missed(rate, population, n + 1) for population in (there, settings.total))
        for n in decided
    )
