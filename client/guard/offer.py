"""What the settings of a round offer a device, as far as privacy goes: read back from the settings, checked, and priced.

The server writes these numbers, so nothing about them is believed: the mechanism must be sound, and agree with what the protocol
itself enforces (length, ring, cohort, drops, colluders). The device then does what this very record says: there is no second copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsketch.privacy.accounting.releases import Adversary, NoSampling, Release, Unit
from fedsketch.privacy.mechanisms.mechanism import Mechanism, RingShape, UnsoundMechanismError
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.secagg import Refusal, RoundSettings


@dataclass(frozen=True)
class Offer:
    """One round's mechanism; a sum is over at least `least` clients, `colluders` of whom work with the server."""

    mechanism: Mechanism
    least: int
    colluders: int

    def noise_multiplier(self, protected: Unit) -> float:
        """Of the honest survivors in the worst case, over what one protected unit can change."""
        return self.mechanism.noise_multiplier(self._unknown(self.least), protected)

    def release(self, survivors: int, protected: Unit) -> Release:
        """What a sum over so many shows to the server and the assumed colluders, whose noise does not count.

        The adversary is stated without their number, which differs from round to round, so that all rounds of a life compose.
        """
        return self.mechanism.seen(
            self._unknown(survivors), protected, NoSampling(), Adversary.SERVER
        )

    def _unknown(self, survivors: int) -> float:
        """Variance of the noise of those among so many who do not work with the server."""
        return (survivors - self.colluders) * self.mechanism.share


def offer_of(settings: RoundSettings) -> Offer:
    """Raises `Refusal` unless the settings are those of a sound mechanism made for this round."""
    sizes = settings.sizes
    try:
        mechanism = mechanism_from_record(settings.application)
        ring = RingShape(settings.dim, settings.bits)
        mechanism.check_round(ring, sizes.most, sizes.drops, sizes.colluders)
    except UnsoundMechanismError as error:
        raise Refusal(str(error)) from error
    if sizes.least <= sizes.colluders:
        raise Refusal("The round's drops and colluders leave no honest noise.")
    return Offer(mechanism, sizes.least, sizes.colluders)
