"""Noise that devices bring themselves: how much a run needs, who adds which share of it, and what each round releases
to whom.

Every device adds its share of the noise such that the sum over the fewest survivors with which a round is applied, less
those who may collude with the adversary whom the budget binds, carries what the budget asks for. More survivors bring
more noise, never less.

Where the draw of a cohort counts as a secret (`hidden`), nothing that anybody but the server can see may tell how the
draw came out. A Poisson cohort's size is part of the draw, and so is the number of those who delivered: whoever knows
which clients are dead learns from it how many of the others were drawn. So the server adds noise of its own to every
sum, exactly as much as brings it to one nominal variance; it divides by the expected number of units; the ring's scale
is one for the whole run; and a draw that cannot be asked passes as noise alone. All this trusts the server, as every
claim does that rests on its draw. Against the server none of it counts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from fedsketch.conf import Config, ConfigError
from fedsketch.conf.schema import Accounting, Against, Noise, Sampling
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
    Unit,
    WithoutReplacement,
)
from fedsketch.privacy.accounting.releases import Sampling as SecretDraw
from fedsketch.privacy.mechanisms.gaussian import GaussianNoise
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.strategies.shared.cohort_sizes import CohortSizes

_ROUNDING = 1e-12  # of products of shares


@dataclass(frozen=True)
class DeviceNoise:
    """The noise of a run whose uploads have at most `dim` numbers, with at most `rows` rows per client, each of which
    leaves with a norm of at most `clip`: the sensitivity of every sum. `multiplier` is the noise multiplier of the sum
    where somebody gives it; where it is None, the accountant finds it from the budget.

    Where more than one sum is shown, of `groups` of a cohort or of each client by itself (`single`), every one of them
    carries that noise. With `known_cohort` nothing rests on who was drawn being a secret.
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
        """The mechanism that each device of a cohort of this size applies to an upload of `dim` numbers (the longest,
        if not given)."""
        return _mechanism(self, cohort, self.dim if dim is None else dim)

    # ------------------------------------------------------------------ the noise of a sum
    def variance(self, cohort: int, clients: int) -> float:
        """The variance of the noise in a sum over this many clients of a cohort, including the server's."""
        return self._nominal if self.hidden else clients * self.mechanism(cohort).share

    def asked(self, cohort: int) -> bool:
        """Whether a cohort of this size is asked. Masks need two; and where sizes are hidden, no cohort may bring more
        than the nominal noise by itself."""
        if not self.sizes.smallest <= cohort <= self.sizes.largest:
            return False
        least = cohort * self._reserve * (1.0 - _ROUNDING) if self.hidden else 1
        return self._contributors(cohort) >= max(least, 1)

    @property
    def hidden(self) -> bool:
        """Whether the draw of a cohort counts as a secret, so that everything must follow from nominal numbers."""
        clients = self.config.clients
        drawn = not clients.sampling.in_passes and clients.per_round < clients.total
        private = self.config.privacy.private
        return private and drawn and not self.known_cohort and not self.alone

    # ------------------------------------------------------------------ what a round shows
    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        """What a round of the longest upload shows to each adversary when `clients` of a cohort of this size are in a
        sum.

        Unit: `privacy.unit`. Adjacency: zero-out (the unit's contribution is replaced by zero; its device still adds
        noise).
        - `model`: sees the models, so of each round only the noisy sum; who was in the cohort is the server's secret.
        - `client`: fellow participants, as many as `CohortSizes.fellows`. They see the models too, know their own
          noise, and under secure aggregation who is in the cohort. Without masks the share of the noise that they are
          told says how large the cohort is, and they know whether they are in it themselves, so that it is a fixed-size
          draw among the others.
        - `server`: picks the cohort. Under secure aggregation it sees the noisy sum, and up to `secagg.colluders`
          clients tell it their noise; without, it sees each device's upload under that device's noise alone.
        """
        mechanism, sizes = self.mechanism(cohort), self.sizes
        every, share = self.variance(cohort, clients), mechanism.share
        fellows = sizes.fellows(cohort)
        server = (clients - sizes.colluders(cohort)) * share if sizes.masked else share
        return {
            Against.model: mechanism.seen(
                every, self.unit, self._draw(cohort, clients), Adversary.MODEL
            ),
            Against.client: mechanism.seen(
                every - min(fellows, clients - 1) * share,
                self.unit,
                self._draw_without(fellows, cohort, clients),
                Adversary.CLIENT,
            ),
            Against.server: mechanism.seen(server, self.unit, NoSampling(), Adversary.SERVER),
        }

    def worst(self) -> Release:
        """The most that a round reveals to the adversary of the budget, whatever the size of its cohort and whoever
        drops out."""
        sampling, adversary = _bound(self)
        largest = self.mechanism(self.sizes.largest)
        least = largest.share if self.alone else _wanted(self)
        return largest.seen(least, self.unit, sampling, adversary)

    @cached_property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise of the sum, as far as those do not know it whom the budget binds, over the
        sensitivity; worst case."""
        if self.multiplier is not None:
            return self.multiplier
        cohort = self.config.clients.per_round
        mechanism, fewest = self.mechanism(cohort), self.sizes.survivors(cohort)
        unknown = self.variance(cohort, fewest) if self._made_up else fewest * mechanism.share
        unknown -= self._known(cohort) * mechanism.share
        return mechanism.noise_multiplier(unknown, self.unit)

    @property
    def unit(self) -> Unit:
        return self.config.privacy.unit

    @property
    def alone(self) -> bool:
        """Whether each device's noise must hide its upload alone, whatever the others do."""
        server = self.config.privacy.against is Against.server
        return self.single or (server and not self.sizes.masked)

    @property
    def trusted(self) -> bool:
        """Whether the server is trusted with every upload, so that nothing is said about it."""
        return False

    # ------------------------------------------------------------------ inside
    def _draw(self, cohort: int, clients: int) -> SecretDraw:
        """The secret draw of a cohort that came out with this size, as far as a theorem covers it, from those who see
        models only."""
        settings = self.config.clients
        if settings.per_round == settings.total or self.known_cohort:
            return NoSampling()
        if settings.sampling.in_passes:
            return FullPasses(-(-settings.total // settings.per_round))
        if self.hidden and settings.sampling is Sampling.poisson:
            return Poisson(settings.per_round / settings.total, missed=_missed(self))
        if self.hidden:
            return WithoutReplacement(settings.per_round, settings.total)
        # The noise tells the size of the cohort; given its size it is a fixed-size draw. If some vanished, who knows
        # which clients are dead can tell more.
        complete = clients == cohort and not settings.tolerated_dropouts
        return WithoutReplacement(cohort, settings.total) if complete else NoSampling()

    def _draw_without(self, fellows: int, cohort: int, clients: int) -> SecretDraw:
        """The draw as fellow participants see it. A client that was not drawn has not been told the size of the cohort,
        and sees only what everybody sees who sees the models. So a small cohort hides no better than one of the
        expected size."""
        draw = self._draw(cohort, clients)
        if not isinstance(draw, Poisson | WithoutReplacement):
            return draw
        others = self.config.clients.total - fellows
        size = max(cohort, self.config.clients.per_round) if self.hidden else cohort
        if self.sizes.masked or size > others:
            return NoSampling()
        return WithoutReplacement(size, others)

    def _known(self, cohort: int) -> int:
        """The number of clients whose noise the adversary of the budget knows."""
        if self.config.privacy.against is Against.client:
            return min(self.sizes.fellows(cohort), cohort - 1)
        server = self.config.privacy.against is Against.server
        return self.sizes.colluders(cohort) if server else 0

    def _contributors(self, cohort: int) -> int:
        """How many devices bring the noise that is wanted, in the worst case. For those who are lost a server that is
        trusted makes up."""
        if self.alone and self.multiplier is None:
            return 1
        there = cohort if self._made_up else self.sizes.survivors(cohort)
        return there - self._known(cohort)

    @property
    def _made_up(self) -> bool:
        """Whether the server's noise counts against the adversary of the budget."""
        return self.hidden and self.config.privacy.against is not Against.server

    @property
    def _reserve(self) -> float:
        """A lower bound on contributors over members, for cohorts of about the planned size, and without rounding."""
        settings, privacy = self.config.clients, self.config.privacy
        known = 0.0 if privacy.against is Against.model else self.config.secagg.colluders
        if privacy.against is Against.client:
            known = max(known, 1.0 / max(2, settings.per_round // 2))
        return 1.0 - known - (0.0 if self._made_up else settings.tolerated_dropouts)

    @property
    def _nominal(self) -> float:
        """The variance of every sum's noise where sizes are hidden: no cohort that is asked brings more."""
        if self.config.secagg.noise is Noise.skellam:
            ring, _ = _ring(self, self.sizes.largest)
            return ring.clients * ring.local_variance
        return _wanted(self) / self._reserve


def calibrated(
    config: Config, template: Callable[[float], Release], price: Price | None = None
) -> float:
    """The smallest noise multiplier with which all rounds of a run fit its budget; `price` as in `calibrate`."""
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
    if noise.config.secagg.noise is not Noise.skellam:
        return _gaussian_noise(noise, math.sqrt(_wanted(noise) / contributors))
    ring, wanted = _ring(noise, noise.sizes.largest if noise.hidden else cohort)
    # For an upload shorter than the longest both sensitivities are smaller, so it costs no more than is booked.
    return replace(
        ring,
        dim=dim,
        clients=noise.sizes.members(cohort),
        drops=noise.sizes.drops(cohort),
        colluders=noise.sizes.colluders(cohort),
        local_variance=math.ceil(wanted / contributors),
    )


def _wanted(noise: DeviceNoise) -> float:
    """The variance that the contributors to a sum bring together, in the mechanism's units."""
    if noise.config.secagg.noise is Noise.skellam:
        return _ring(
            noise, noise.sizes.largest if noise.hidden else noise.config.clients.per_round
        )[1]
    return _gaussian_multiplier(noise) ** 2


@lru_cache(maxsize=8)
def _gaussian_multiplier(noise: DeviceNoise) -> float:
    """z of the sum of all contributors, from the budget unless it is given."""
    given = _given(noise)
    if given is not None:
        return given
    sampling, adversary = _bound(noise)

    def template(z: float) -> Release:
        return _gaussian_noise(noise, z).seen(z**2, noise.unit, sampling, adversary)

    return calibrated(noise.config, template)


def _given(noise: DeviceNoise) -> float | None:
    """The noise multiplier where it is not for the accountant to find: somebody gives it, or a paper's theorem."""
    privacy = noise.config.privacy
    if noise.multiplier is not None or privacy.accounting is Accounting.exact:
        return noise.multiplier
    assert privacy.epsilon is not None  # or the config would not have passed
    return paper_noise_multiplier(
        epsilon=privacy.epsilon, delta=privacy.delta, compositions=noise.config.rounds
    )


def _gaussian_noise(noise: DeviceNoise, share: float) -> GaussianNoise:
    return GaussianNoise(unit=noise.unit, rows=noise.rows, local_multiplier=share, clip=noise.clip)


@lru_cache(maxsize=64)
def _ring(noise: DeviceNoise, cohort: int) -> tuple[SkellamRing, float]:
    """The ring and its scale for cohorts of up to this size and the longest upload; and the variance that the
    contributors to a sum bring together.

    Where sizes are hidden, the ring's own share is such that this cohort would bring the nominal noise: as much as any
    that is asked.
    """
    privacy, sizes = noise.config.privacy, noise.sizes
    assert noise.clip is not None
    sampling, adversary = _bound(noise)
    given = _given(noise)

    @lru_cache(maxsize=1)
    def wanted(l2: float, l1: float) -> float:
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
    honest = members * noise._reserve if noise.hidden else noise._contributors(cohort)
    # A share is rounded up to an integer, so a cohort brings up to one unit more for each of its members.
    rounding = members if noise.hidden else 0
    ring = choose_ring(
        dim=noise.dim,
        clients=members,
        unit=noise.unit,
        rows=noise.rows,
        clip=noise.clip,
        noise=lambda l2, l1: wanted(l2, l1) + rounding,
        bits=noise.config.secagg.bits,
        drops=sizes.drops(cohort),
        colluders=sizes.colluders(cohort),
        honest=honest,
    )
    return ring, wanted(ring.l2_sensitivity, ring.l1_sensitivity)


def _bound(noise: DeviceNoise) -> tuple[SecretDraw, Adversary]:
    """Whom the budget binds, and the draw that is a secret from it, in the worst case."""
    against, cohort = noise.config.privacy.against, noise.sizes.largest
    if against is Against.server:
        return NoSampling(), Adversary.SERVER
    fewest = noise.sizes.survivors(cohort)
    if against is Against.model:
        return noise._draw(cohort, fewest), Adversary.MODEL
    fellows = noise.sizes.fellows(cohort)
    return noise._draw_without(fellows, cohort, fewest), Adversary.CLIENT


@lru_cache(maxsize=64)
def _missed(noise: DeviceNoise) -> float:
    """The probability that one unit decides whether a round's sum is made at all: the others who were drawn are too few
    to be asked, and with it they are not. The fewer clients are there, the larger it is: as many may be away as a round
    tolerates."""
    settings, sizes = noise.config.clients, noise.sizes
    rate = settings.per_round / settings.total
    there = settings.total - math.floor(settings.total * settings.tolerated_dropouts)
    decided = [n for n in range(1, sizes.largest) if not noise.asked(n) and noise.asked(n + 1)]
    return sum(
        max(poisson.missed(rate, population, n + 1) for population in (there, settings.total))
        for n in decided
    )
