"""What the settings of a round commit every device of it to, as far as privacy goes: read back from the settings, checked, and priced.

The server writes these numbers, so nothing about them is believed: every field must be there, of its type, in its range, and agree
with what the protocol itself enforces (length, ring, cohort, drops, colluders). What a device really does is compared with the same
numbers by the codec, before its vector is masked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from fedsketch.privacy.accounting import releases as release
from fedsketch.privacy.accounting.releases import Adversary, Release, Unit
from fedsketch.privacy.mechanisms.encoding_plan import EncodingPlan, required_half_ring
from fedsketch.secagg import Refusal, RoundSettings

_NOISE, _UNIT = "noise", "unit"
_LARGEST_SCALED_CLIP = 2.0**64  # beyond any ring; keeps the squares below from overflowing


@dataclass(frozen=True)
class Commitment:
    """One round's encoding, whose rows a run says are about `unit`; a sum is over at least `least` clients, `colluders` of them bad."""

    plan: EncodingPlan
    unit: Unit
    least: int
    colluders: int

    def weight(self, protected: Unit) -> int:
        """How many times the bound of one row a protected unit can change the sum.

        A client is all of its rows. An example is one row where rows are examples; where a row is a whole client's, an example can
        turn it into any other, which is two rows apart.
        """
        if protected is Unit.CLIENT:
            return self.plan.units
        return 1 if self.unit is Unit.EXAMPLE else 2 * self.plan.units

    def noise_multiplier(self, protected: Unit) -> float:
        """Of the honest survivors in the worst case, over what one protected unit can change."""
        variance = self.plan.noise_variance(self.least, self.colluders)
        return math.sqrt(variance) / (self.weight(protected) * self.plan.l2_sensitivity)

    def release(self, survivors: int, protected: Unit) -> Release:
        """What a sum over so many shows to the server and the assumed colluders, whose noise does not count.

        The adversary is stated without their number, which differs from round to round, so that all rounds of a life compose.
        """
        weight = self.weight(protected)
        mechanism = release.Skellam(
            float(self.plan.noise_variance(survivors, self.colluders)),
            weight * self.plan.l2_sensitivity,
            weight * self.plan.l1_sensitivity,
        )
        return Release(
            mechanism, release.NoSampling(), release.Adjacency.ZERO_OUT, protected, Adversary.SERVER
        )


def commitment_of(settings: RoundSettings) -> Commitment:
    """Raises `Refusal` unless the settings are those of a sound encoding with Skellam noise."""
    record: dict[str, Any] = dict(settings.application)
    if record.pop(_NOISE, None) != "skellam":
        raise Refusal(
            "The round does not commit to Skellam noise, the only noise that sums in a ring."
        )
    unit = record.pop(_UNIT, Unit.CLIENT.value)
    if unit not in list(Unit):
        raise Refusal("The round's unit is neither 'client' nor 'example'.")
    plan = _plan(record)
    sizes = settings.sizes
    agreed = {
        "dim": settings.dim,
        "bits": settings.bits,
        "clients": sizes.most,
        "drops": sizes.drops,
        "colluders": sizes.colluders,
    }
    for name, value in agreed.items():
        if getattr(plan, name) != value:
            raise Refusal(
                f"The round's encoding is for {name} = {getattr(plan, name)}, the round for {value}."
            )
    if sizes.least <= sizes.colluders:
        raise Refusal("The round's drops and colluders leave no honest noise.")
    _check_ring(plan)
    return Commitment(plan, Unit(unit), sizes.least, sizes.colluders)


def _plan(record: dict[str, Any]) -> EncodingPlan:
    wanted = {one.name: str(one.type) for one in fields(EncodingPlan)}
    for name in [*record, *wanted]:
        if name not in wanted or name not in record:
            problem = "lacks" if name in wanted else "holds an unknown"
            raise Refusal(f"The round's encoding {problem} {name!r}: use one version everywhere.")
    for name, kind in wanted.items():
        value = record[name]
        if kind == "bool":
            sound = isinstance(value, bool)
        elif kind == "int":
            sound = type(value) is int and value >= (0 if name in _MAY_BE_ZERO else 1)
        else:
            sound = type(value) in (int, float) and 0 < value < math.inf
        if not sound:
            raise Refusal(f"The round's encoding has no sound {name!r}.")
    return EncodingPlan(**record)


_MAY_BE_ZERO = ("drops", "colluders", "local_variance")


def _check_ring(plan: EncodingPlan) -> None:
    """A sum that does not fit is useless, and a sign that the numbers were not made together."""
    scaled = plan.scale * plan.clip
    fits = scaled <= _LARGEST_SCALED_CLIP and plan.wraparound_probability < 1
    if not fits or required_half_ring(
        dim=plan.dim,
        clients=plan.clients,
        units=plan.units,
        scaled_clip=scaled,
        local_variance=plan.local_variance,
        rotate=plan.rotate,
        probability=plan.wraparound_probability,
    ) > 2.0 ** (plan.bits - 1) * (1 + 1e-9):
        raise Refusal(f"The round's sum does not fit its ring of {plan.bits} bits.")
