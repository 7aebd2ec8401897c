"""Noise inside local training (DP-SGD): how much of it a run needs, and what the devices do in a round.

Only a device's own noise counts, against every adversary (`privacy.mechanisms.noisy_training`). A round of T local
steps is T releases. The budget holds for every example of every client, even for a client that takes part in every
round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from fedsketch.conf.schema import Accounting, Against, Noise
from fedsketch.errors import RingTooSmallError
from fedsketch.privacy.accounting.classic_conversion import classic_epsilon
from fedsketch.privacy.accounting.releases import Adversary, NoSampling, Release, SecretDraw
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.smallest_ring import LARGEST_COST
from fedsketch.secagg import ProtocolName, ring_sizes
from fedsketch.strategies.noise.plan import NoisePlan, calibrated
from fedsketch.strategies.noise.protocol import prime_of, protocol_of

_WITHOUT_NOISE = 32  # bits


@dataclass(frozen=True)
class TrainingNoise(NoisePlan):
    """Noise in every local step. `multiplier` is the noise multiplier of one step if the user sets it.
    `examples_per_client` is the mean number of examples of a client."""

    multiplier: float | None
    examples_per_client: float

    def mechanism(self, cohort: int, dim: int | None = None) -> NoisyTraining:
        mechanism = replace(_one_device(self), dim=self.dim if dim is None else dim, clients=cohort)
        if self.config.secagg.noise is not Noise.SKELLAM:
            return mechanism
        protocol = _protocol(self)
        return _in_ring(mechanism, self.bits_under(protocol), protocol)

    def bits_under(self, protocol: ProtocolName) -> int:
        """Return the size of the ring in which this protocol sums. Raises RingTooSmallError if it has none that
        serves."""
        return _bits(self, protocol)

    @property
    def draw_is_secret(self) -> bool:
        """False: the guarantee does not use the server's draw of the cohort."""
        return False

    def variance(self, cohort: int, clients: int) -> float:
        return clients * self.mechanism(cohort).variance_per_device

    @cached_property
    def noise_multiplier(self) -> float:
        """The standard deviation of a local step's noise divided by the sensitivity."""
        return _one_device(self).noise_multiplier(1.0, self.unit)

    def releases(self, cohort: int, clients: int) -> dict[str, Release]:
        """Return what a round reveals. It is the same to every adversary, and in all rounds."""
        one = _one_device(self)
        adversaries = {
            Against.MODEL: Adversary.MODEL,
            Against.CLIENT: Adversary.CLIENT,
            Against.SERVER: Adversary.SERVER,
        }
        return {
            against: one.release_to(1.0, self.unit, NoSampling(), adversary)
            for against, adversary in adversaries.items()
        }

    def worst(self) -> Release:
        return self.releases(1, 1)[self.config.privacy.against]

    def draw_without(self, colluding_clients: int, cohort: int, clients: int) -> SecretDraw:
        return NoSampling()

    def round_of(self, multiplier: float) -> NoisyTraining:
        """Return the mechanism of one device's round with this noise multiplier."""
        local, examples = self.config.strategy.local, self.examples_per_client
        assert self.clip is not None
        rate = min(1.0, local.batch / examples)
        return NoisyTraining(
            unit=self.unit,
            rows=self.rows,
            clip=self.clip,
            local_multiplier=multiplier,
            rate=rate,
            steps=local.steps,
            batch=rate * examples,
            lr=local.lr,
            momentum=local.momentum,
            dim=self.dim,
        )

    def paper_epsilon(self) -> float:
        """Return the epsilon of all rounds by the classic conversion from Renyi DP, which papers use."""
        privacy = self.config.privacy
        return classic_epsilon(
            _release(self, self.noise_multiplier), self.config.rounds, privacy.delta
        )


@lru_cache(maxsize=8)
def _one_device(plan: TrainingNoise) -> NoisyTraining:
    multiplier = plan.multiplier
    if multiplier is None:
        paper = plan.config.privacy.accounting is Accounting.PAPER
        multiplier = calibrated(
            plan.config, lambda z: _release(plan, z), classic_epsilon if paper else None
        )
    return plan.round_of(multiplier)


@lru_cache(maxsize=8)
def _protocol(plan: TrainingNoise) -> ProtocolName:
    return protocol_of(plan.config, 1, plan.dim, plan.bits_under)


@lru_cache(maxsize=8)
def _bits(plan: TrainingNoise, protocol: ProtocolName) -> int:
    """Return the size of the ring: the given one, or the smallest in which rounding adds at most 1 % to the noise. If
    there is no noise, it is 32 bits."""
    given, largest = plan.config.secagg.bits, replace(_one_device(plan), clients=plan.sizes.largest)
    if isinstance(given, int):
        return given
    if not largest.variance_per_device:
        return _WITHOUT_NOISE
    sizes = ring_sizes(protocol)
    for bits in sizes:
        if _in_ring(largest, bits, protocol).rounding_cost <= LARGEST_COST:
            return bits
    raise RingTooSmallError(
        f"no ring of up to {sizes[-1]} bits holds the sum of {largest.clients} clients at a cost below 1 % of noise: "
        "set its bits to a number, which accepts any cost, or take a protocol with larger rings."
    )


def _in_ring(mechanism: NoisyTraining, bits: int, protocol: ProtocolName) -> NoisyTraining:
    return replace(mechanism, bits=bits, prime=prime_of(protocol, bits))


def _release(plan: TrainingNoise, multiplier: float) -> Release:
    """Return what a round with this noise multiplier reveals, to any adversary."""
    return plan.round_of(multiplier).release_to(1, plan.unit, NoSampling(), Adversary.SERVER)
