"""How much noise a run needs, who adds which share of it, and what each round releases to whom.

Every device adds its share of the noise such that the sum over the fewest survivors with which a round is applied, less those who
may collude with the server, carries what the budget asks for. More survivors bring more noise, never less.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from fedsketch.conf import Config
from fedsketch.conf.schema import Accounting, Against, Noise, Sampling
from fedsketch.conf.strategy.fed_sgm import FedSgmConfig, r_secret_needs
from fedsketch.privacy.accounting import releases as release
from fedsketch.privacy.accounting.calibration import calibrate, calibrate_skellam
from fedsketch.privacy.accounting.dome_theorem import paper_noise_multiplier
from fedsketch.privacy.accounting.releases import Adversary, Release
from fedsketch.privacy.mechanisms.encoding_plan import plan_encoding
from fedsketch.strategies.shared.terms import GaussianTerms, RingTerms, Terms


@dataclass(frozen=True)
class NoisePlan:
    """The noise of a run whose uploads have at most `dim` numbers, with at most `units` privacy units per client, each of whose rows
    leaves with a norm of at most `stretch` times privacy.clip."""

    config: Config
    dim: int
    units: int
    stretch: float = 1.0

    @property
    def clip(self) -> float | None:
        """The bound of a unit's row as it leaves the device: the sensitivity of every sum."""
        clip = self.config.privacy.clip
        return None if clip is None else clip * self.stretch

    def survivors(self, cohort: int) -> int:
        """With fewer than this many a round is not applied."""
        return max(1, cohort - self._drops(cohort))

    def terms(self, cohort: int, dim: int | None = None) -> Terms:
        """What each device of a cohort of this size must do with an upload of `dim` numbers (the longest, if not given)."""
        return _terms(self, cohort, self.dim if dim is None else dim)

    def releases(self, cohort: int, clients: int) -> dict[Against, Release]:
        """What a round of the longest upload shows to each adversary when `clients` of a cohort of this size arrived.

        Unit: `privacy.unit`. Adjacency: zero-out (the unit's contribution is replaced by zero; its device still adds noise).
        - `model`: sees the models, so of each round only the noisy sum; who was in the cohort is the server's secret.
        - `server`: picks the cohort. Under secure aggregation it sees the noisy sum, and up to `secagg.colluders` clients tell it
          their noise; without, it sees each device's upload under that device's noise alone.
        """
        terms, unit = self.terms(cohort), release.Unit(self.config.privacy.unit.value)
        unknown = clients - self._colluders(cohort) if self.masked else 1
        return {
            Against.model: terms.release(clients, self.sampling(cohort), unit, Adversary.MODEL),
            Against.server: terms.release(unknown, release.NoSampling(), unit, Adversary.SERVER),
        }

    def overheard(self, cohort: int, clients: int) -> Release | None:
        """What a round shows to an eavesdropper who sees the noisy sum of Gaussian sketches, and neither R, nor a model made with it,
        nor a single upload (`r_secret`); None where no theorem covers the run. Unit and adjacency as in `releases`."""
        if not isinstance(self.config.strategy, FedSgmConfig) or r_secret_needs(self.config):
            return None
        terms = self.terms(cohort)
        assert isinstance(terms, GaussianTerms)
        # Over privacy.clip, which bounds the update before it is sketched.
        return self._secret(terms.noise_multiplier * math.sqrt(clients) * self.stretch, cohort)

    @property
    def r_secret(self) -> bool:
        """Whether the budget binds that eavesdropper only."""
        strategy = self.config.strategy
        return isinstance(strategy, FedSgmConfig) and strategy.accounting == "r_secret"

    def worst_release(self) -> Release:
        """What a round of the usual size costs at most, against the adversary whom the budget binds."""
        cohort = self.config.clients.per_round
        if self.r_secret:
            overheard = self.overheard(cohort, self.survivors(cohort))
            assert overheard is not None  # or the config would not have passed
            return overheard
        return self.releases(cohort, self.survivors(cohort))[self.config.privacy.against]

    @cached_property
    def given_multiplier(self) -> float | None:
        """The noise multiplier of the sum, where it is not for the accountant to find."""
        privacy = self.config.privacy
        exact = privacy.accounting is Accounting.exact and not self.r_secret
        if privacy.noise_multiplier is not None or exact:
            return privacy.noise_multiplier
        assert privacy.epsilon is not None
        if self.r_secret:
            cohort = self.config.clients.per_round
            return self._calibrated(lambda z: self._secret(z, cohort)) / self.stretch
        return paper_noise_multiplier(
            epsilon=privacy.epsilon, delta=privacy.delta, compositions=self.config.rounds
        )

    @property
    def smallest_cohort(self) -> int:
        """One client's sum is its upload, so masks need two."""
        return 2 if self.masked else 1

    @property
    def alone(self) -> bool:
        """Whether each device's noise must hide its upload alone, whatever the others do."""
        return self.config.privacy.against is Against.server and not self.masked

    @property
    def masked(self) -> bool:
        return self.config.secagg.name != "none"

    @cached_property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise of the sum, as far as colluders do not know it, over the sensitivity; worst case."""
        if self.given_multiplier is not None:
            return self.given_multiplier
        terms = self.terms(self.config.clients.per_round)
        survivors = self.survivors(self.config.clients.per_round)
        if isinstance(terms, GaussianTerms):
            return terms.noise_multiplier * math.sqrt(survivors)
        honest = terms.plan.noise_variance(survivors, terms.plan.colluders)
        return math.sqrt(honest) / terms.plan.l2_sensitivity

    def sampling(self, cohort: int) -> release.Sampling:
        """The secret draw of a cohort that came out with this size, as far as a theorem covers it."""
        clients = self.config.clients
        if clients.per_round == clients.total:
            return release.NoSampling()
        if clients.sampling is Sampling.passes:
            return release.FullPasses(-(-clients.total // clients.per_round))
        constant = clients.tolerated_dropouts == 0 and not self.alone
        if clients.sampling is Sampling.poisson and constant:
            return release.Poisson(clients.per_round / clients.total)
        # Where the noise of the sum grows with a Poisson cohort it tells its size; given its size, the cohort is a fixed-size draw.
        return release.WithoutReplacement(cohort, clients.total)

    def _secret(self, multiplier: float, cohort: int) -> Release:
        # Down to 12 digits, so that what is booked is what was calibrated.
        rounded = float(f"{multiplier * (1 - 1e-11):.11e}")
        mechanism = release.SketchedGaussian(
            rounded, self.dim, cohort * self.units, release.SketchKnowledge.SECRET
        )
        return Release(
            mechanism,
            release.NoSampling(),
            release.Adjacency.ZERO_OUT,
            release.Unit(self.config.privacy.unit.value),
            Adversary.EAVESDROPPER,
        )

    def _calibrated(self, template: Callable[[float], Release]) -> float:
        """The smallest noise multiplier with which all rounds fit the budget."""
        privacy = self.config.privacy
        assert privacy.epsilon is not None  # or the config would not have passed
        return calibrate(
            template, rounds=self.config.rounds, epsilon=privacy.epsilon, delta=privacy.delta
        )

    def _drops(self, cohort: int) -> int:
        return math.floor(cohort * self.config.clients.tolerated_dropouts)

    def _colluders(self, cohort: int) -> int:
        return math.floor(cohort * self.config.secagg.colluders)


@lru_cache(maxsize=256)
def _terms(plan: NoisePlan, cohort: int, dim: int) -> Terms:
    if plan.config.secagg.noise is Noise.gaussian:
        multiplier = _gaussian_multiplier(plan)
        share = multiplier if plan.alone else multiplier / math.sqrt(plan.survivors(cohort))
        return GaussianTerms(plan.clip, share)
    return _ring_terms(plan, cohort, dim)


@lru_cache(maxsize=8)
def _gaussian_multiplier(plan: NoisePlan) -> float:
    """z of the sum, from the budget unless it is given; of one device, if its noise must do alone."""
    config = plan.config
    privacy, cohort = config.privacy, config.clients.per_round
    if plan.given_multiplier is not None:
        return plan.given_multiplier / (math.sqrt(plan.survivors(cohort)) if plan.alone else 1.0)
    unit = release.Unit(privacy.unit.value)

    def template(z: float) -> Release:
        terms = GaussianTerms(plan.clip, z)
        if plan.alone:
            return terms.release(1, release.NoSampling(), unit, Adversary.SERVER)
        return terms.release(1, plan.sampling(cohort), unit, Adversary.MODEL)

    return plan._calibrated(template)


def _ring_terms(plan: NoisePlan, cohort: int, dim: int) -> RingTerms:
    """The ring, its scale and the devices' integer noise for a cohort of this size and uploads of this length."""
    if dim < plan.dim:
        # The same scale and noise as for the longest: both sensitivities are smaller, so it costs no more than is booked.
        longest = plan.terms(cohort)
        assert isinstance(longest, RingTerms)
        return replace(longest, plan=replace(longest.plan, dim=dim))
    config, privacy = plan.config, plan.config.privacy
    assert plan.clip is not None
    unit = release.Unit(privacy.unit.value)
    drops, colluders = plan._drops(cohort), plan._colluders(cohort)
    sampling, adversary = plan.sampling(config.clients.per_round), Adversary.MODEL
    if privacy.against is Against.server:
        sampling, adversary = release.NoSampling(), Adversary.SERVER
    if plan.alone:
        drops = cohort - 1  # the noise of one is enough

    def variance(l2: float, l1: float) -> float:
        if plan.given_multiplier is not None:
            return (plan.given_multiplier * l2) ** 2
        assert privacy.epsilon is not None
        return calibrate_skellam(
            lambda mechanism: Release(
                mechanism, sampling, release.Adjacency.ZERO_OUT, unit, adversary
            ),
            l2_sensitivity=l2,
            l1_sensitivity=l1,
            rounds=config.rounds,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
        )

    encoding = plan_encoding(
        dim=dim,
        clients=cohort,
        units=plan.units,
        clip=plan.clip,
        noise=variance,
        bits=config.secagg.bits,
        drops=drops,
        colluders=colluders,
    )
    return RingTerms(encoding, unit)
