"""What the settings of a round offer a device in terms of privacy: read from the settings, checked, and priced.

The server writes these numbers, so none of them is trusted. The mechanism must be sound, and agree with what the
protocol itself enforces (length, ring, cohort, drops, colluders). The device then does exactly what this record says:
there is no second copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsketch.errors import UnsoundMechanismError
from fedsketch.privacy.accounting.releases import Adversary, NoSampling, Release, Unit
from fedsketch.privacy.mechanisms.mechanism import Mechanism, RingShape
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.secagg import Refusal, RoundSettings


@dataclass(frozen=True)
class Offer:
    """The mechanism of one round. A sum is over at least `least` clients, of whom `colluders` work with the server."""

    mechanism: Mechanism
    least: int
    colluders: int

    def noise_multiplier(self, protected: Unit) -> float:
        """Return the noise multiplier of the honest survivors in the worst case, relative to what one protected unit
        can change."""
        return self.mechanism.noise_multiplier(self._unknown(self.least), protected)

    def release(self, survivors: int, protected: Unit) -> Release:
        """Return what a sum over this many clients reveals to the server and the assumed colluders, whose noise does
        not count.

        The adversary is stated without the number of colluders, which differs between rounds, so that all rounds
        compose.
        """
        return self.mechanism.release_to(
            self._unknown(survivors), protected, NoSampling(), Adversary.SERVER
        )

    def _unknown(self, survivors: int) -> float:
        """Return the variance of the noise of those survivors who do not work with the server."""
        return (survivors - self.colluders) * self.mechanism.variance_per_device


def offer_of(settings: RoundSettings) -> Offer:
    """Read the offer from the settings; raises `Refusal` unless they describe a sound mechanism made for this round."""
    sizes = settings.sizes
    try:
        mechanism = mechanism_from_record(settings.application)
        ring = RingShape(settings.dim, settings.bits, settings.modulus)
        mechanism.check_round(ring, sizes.most, sizes.drops, sizes.colluders)
    except UnsoundMechanismError as error:
        raise Refusal(str(error)) from error
    if sizes.least <= sizes.colluders:
        raise Refusal("The round's drops and colluders leave no honest noise.")
    return Offer(mechanism, sizes.least, sizes.colluders)
