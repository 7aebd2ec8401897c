"""Noise that devices bring themselves: how much a run needs, who adds which share of it, and what each round releases to whom.

Every device adds its share of the noise such that the sum over the fewest survivors with which a round is applied, less those who
may collude with the server, carries what the budget asks for. More survivors bring more noise, never less.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from fedsketch.conf import Config
from fedsketch.conf.schema import Accounting, Against, Noise, Sampling
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


@dataclass(frozen=True)
class DeviceNoise:
    """The noise of a run whose uploads have at most `dim` numbers, with at most `rows` rows per client, each of which leaves with a norm
    of at most `clip`: the sensitivity of every sum. `multiplier` is the noise multiplier of the sum where somebody gives it; where it is
    None, the accountant finds it from the budget.

    Where more than one sum is shown, of `groups` of a cohort or of each client by itself (`single`), every one of them carries that noise.
    With `known_cohort` nothing rests on who was drawn being a secret.
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
        """What each device of a cohort of this size must do with an upload of `dim` numbers (the longest, if not given)."""
        return _mechanism(self, cohort, self.dim if dim is None else dim)

    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        """What a round of the longest upload shows to each adversary when `clients` of a cohort of this size are in a sum.

        Unit: `privacy.unit`. Adjacency: zero-out (the unit's contribution is replaced by zero; its device still adds noise).
        - `model`: sees the models, so of each round only the noisy sum; who was in the cohort is the server's secret.
        - `server`: picks the cohort. Under secure aggregation it sees the noisy sum, and up to `secagg.colluders` clients tell it
          their noise; without, it sees each device's upload under that device's noise alone.
        """
        mechanism = self.mechanism(cohort)
        unknown = self.sizes.unknown(cohort, clients)
        return {
            Against.model: mechanism.seen(
                clients, self.unit, self.sampling(cohort), Adversary.MODEL
            ),
            Against.server: mechanism.seen(unknown, self.unit, NoSampling(), Adversary.SERVER),
        }

    @cached_property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise of the sum, as far as colluders do not know it, over the sensitivity; worst case."""
        if self.multiplier is not None:
            return self.multiplier
        cohort = self.config.clients.per_round
        honest = self.sizes.survivors(cohort) - self.sizes.colluders(cohort)
        return self.mechanism(cohort).noise_multiplier(honest, self.unit)

    @property
    def unit(self) -> Unit:
        return self.config.privacy.unit

    @property
    def alone(self) -> bool:
        """Whether each device's noise must hide its upload alone, whatever the others do."""
        server = self.config.privacy.against is Against.server
        return self.single or (server and not self.sizes.masked)

    def sampling(self, cohort: int) -> SecretDraw:
        """The secret draw of a cohort that came out with this size, as far as a theorem covers it."""
        clients = self.config.clients
        if clients.per_round == clients.total or self.known_cohort:
            return NoSampling()
        if clients.sampling is Sampling.passes:
            return FullPasses(-(-clients.total // clients.per_round))
        constant = clients.tolerated_dropouts == 0 and not self.alone
        if clients.sampling is Sampling.poisson and constant:
            return Poisson(clients.per_round / clients.total)
        # Where the noise of the sum grows with a Poisson cohort it tells its size; given its size, the cohort is a fixed-size draw.
        return WithoutReplacement(cohort, clients.total)


def given_multiplier(config: Config) -> float | None:
    """The noise multiplier of the sum, where it is not for the accountant to find."""
    privacy = config.privacy
    if privacy.noise_multiplier is not None or privacy.accounting is Accounting.exact:
        return privacy.noise_multiplier
    assert privacy.epsilon is not None  # or the config would not have passed
    return paper_noise_multiplier(
        epsilon=privacy.epsilon, delta=privacy.delta, compositions=config.rounds
    )


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
    if noise.config.secagg.noise is Noise.skellam:
        return _skellam_ring(noise, cohort, dim)
    share = _gaussian_multiplier(noise)
    if not noise.alone:
        share /= math.sqrt(noise.sizes.survivors(cohort))
    return _gaussian_noise(noise, share)


@lru_cache(maxsize=8)
def _gaussian_multiplier(noise: DeviceNoise) -> float:
    """z of the sum, from the budget unless it is given; of one device, if its noise must do alone."""
    cohort = noise.config.clients.per_round
    if noise.multiplier is not None:
        return noise.multiplier / (math.sqrt(noise.sizes.survivors(cohort)) if noise.alone else 1.0)
    sampling, adversary = _bound(noise)

    def template(z: float) -> Release:
        return _gaussian_noise(noise, z).seen(1, noise.unit, sampling, adversary)

    return calibrated(noise.config, template)


def _gaussian_noise(noise: DeviceNoise, share: float) -> GaussianNoise:
    return GaussianNoise(unit=noise.unit, rows=noise.rows, local_multiplier=share, clip=noise.clip)


def _skellam_ring(noise: DeviceNoise, cohort: int, dim: int) -> SkellamRing:
    """The ring, its scale and the devices' integer noise for a cohort of this size and uploads of this length."""
    if dim < noise.dim:
        # The same scale and noise as for the longest: both sensitivities are smaller, so it costs no more than is booked.
        return replace(_skellam_ring(noise, cohort, noise.dim), dim=dim)
    privacy = noise.config.privacy
    assert noise.clip is not None
    sampling, adversary = _bound(noise)

    def variance(l2: float, l1: float) -> float:
        if noise.multiplier is not None:
            return (noise.multiplier * l2) ** 2
        assert privacy.epsilon is not None
        return calibrate_skellam(
            lambda law: Release(law, sampling, Adjacency.ZERO_OUT, noise.unit, adversary),
            l2_sensitivity=l2,
            l1_sensitivity=l1,
            rounds=noise.config.rounds,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
        )

    return choose_ring(
        dim=dim,
        clients=noise.sizes.members(cohort),
        unit=noise.unit,
        rows=noise.rows,
        clip=noise.clip,
        noise=variance,
        bits=noise.config.secagg.bits,
        drops=cohort - 1
        if noise.alone
        else noise.sizes.drops(cohort),  # alone: the noise of one is enough
        colluders=noise.sizes.colluders(cohort),
    )


def _bound(noise: DeviceNoise) -> tuple[SecretDraw, Adversary]:
    """Whom the budget binds, and the draw that is a secret from it."""
    if noise.config.privacy.against is Against.server:
        return NoSampling(), Adversary.SERVER
    return noise.sampling(noise.config.clients.per_round), Adversary.MODEL
