"""Whether a round sums by a protocol, and over clients, as the owner of a device allows."""

from __future__ import annotations

from fedsketch.client.guard.policy import Policy
from fedsketch.secagg import ProtocolName, Refusal, RoundSettings, Sizes, TwoTripsSettings

_WORDS = {
    ProtocolName.PAIRWISE: "pairwise masks",
    ProtocolName.TWO_TRIPS: "sums in two round trips",
}


def check_protocol(settings: RoundSettings, policy: Policy) -> None:
    """Refuse a protocol that the owner does not allow."""
    asked = ProtocolName.PAIRWISE
    if isinstance(settings, TwoTripsSettings):
        asked = ProtocolName.TWO_TRIPS
    cure = f"run with secagg={' or '.join(policy.protocols)}"
    if asked not in policy.protocols:
        raise Refusal(
            f"This device's owner does not allow {_WORDS[asked]}: {cure} (protocols in the policy)."
        )
    if not settings.withstands_lies and not policy.allow_semi_honest:
        raise Refusal(
            "This device takes part only in rounds that hold against a server that lies: "
            f"{cure} (its owner can set allow_semi_honest)."
        )


def check_clients(settings: RoundSettings, policy: Policy) -> None:
    """Refuse a sum over too few clients, or one that tolerates more drops or losses, or assumes fewer colluders, than
    the owner allows."""
    sizes = settings.sizes
    allowed = Sizes.of(sizes.n, policy.largest_drops, policy.colluders, sizes.groups)
    if sizes.least < policy.smallest_cohort:
        raise Refusal(
            f"A sum over {sizes.least} clients is too small for this device, and the round would release one if all "
            f"tolerated dropouts happen: its owner asks for {policy.smallest_cohort}."
        )
    if sizes.drops > allowed.drops:
        raise Refusal(
            f"The round tolerates {sizes.drops} dropouts of {sizes.fewest} clients, this device's owner "
            f"{allowed.drops}: set clients.tolerated_dropouts to {policy.largest_drops:g} at most."
        )
    if sizes.colluders < allowed.colluders:
        raise Refusal(
            f"The round assumes {sizes.colluders} clients who work with the server, this device's owner "
            f"{allowed.colluders} of {sizes.n}: set secagg.colluders to {policy.assumed_colluders:g}."
        )
    if isinstance(settings, TwoTripsSettings):
        _check_losses(settings, policy)


def _check_losses(settings: TwoTripsSettings, policy: Policy) -> None:
    allowed = int(policy.largest_losses * settings.sizes.fewest)
    if settings.losses > allowed:
        raise Refusal(
            f"The round tolerates {settings.losses} losses of {settings.sizes.fewest} clients, this device's owner "
            f"{allowed}: set clients.tolerated_losses to {policy.largest_losses:g} at most."
        )
