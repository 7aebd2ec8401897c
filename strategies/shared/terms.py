"""The terms of a round: how a device must bound and blur what it sends. Made by the server, judged and kept by the device.

Without integers (`GaussianTerms`) for servers that are trusted with real numbers; with them (`RingTerms`) wherever vectors are
summed under masks. Both say how much noise a sum of so many devices carries, and what seeing it releases.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from fedsketch.privacy.accounting import releases as release
from fedsketch.privacy.accounting.releases import Adversary, Release
from fedsketch.privacy.mechanisms.encoding_plan import EncodingPlan

Scalar = bool | int | float | str | bytes


@dataclass(frozen=True)
class GaussianTerms:
    """L2 clip per unit (None: no bound), and this device's own noise: its standard deviation per coordinate, over the clip."""

    clip: float | None
    noise_multiplier: float

    @property
    def noise_std(self) -> float:
        return 0.0 if self.clip is None else self.clip * self.noise_multiplier

    def sum_std(self, clients: int) -> float:
        """Standard deviation of the noise in each coordinate of a sum over so many devices."""
        return self.noise_std * math.sqrt(clients)

    def release(
        self, clients: int, sampling: release.Sampling, unit: release.Unit, adversary: Adversary
    ) -> Release:
        """What is shown under the noise of so many devices: of a sum's survivors, less colluders; or of one, by its own upload."""
        total = self.noise_multiplier * math.sqrt(clients)
        # Down to 12 digits, so that cohorts of different sizes whose noise is meant to be equal are one kind of release.
        mechanism = release.Gaussian(float(f"{total * (1 - 1e-11):.11e}"))
        return Release(mechanism, sampling, release.Adjacency.ZERO_OUT, unit, adversary)

    def to_record(self) -> dict[str, Scalar]:
        record: dict[str, Scalar] = {
            "noise": "gaussian",
            "noise-multiplier": self.noise_multiplier,
        }
        return record if self.clip is None else {**record, "clip": self.clip}


@dataclass(frozen=True)
class RingTerms:
    """Clip every unit's row, round, exact Skellam noise, reduce modulo 2^b, as the encoding plan says."""

    plan: EncodingPlan
    unit: release.Unit

    def sum_std(self, clients: int) -> float:
        return self.plan.noise_std(clients)

    def release(
        self, clients: int, sampling: release.Sampling, unit: release.Unit, adversary: Adversary
    ) -> Release:
        variance = float(self.plan.noise_variance(clients))
        mechanism = release.Skellam(variance, self.plan.l2_sensitivity, self.plan.l1_sensitivity)
        return Release(mechanism, sampling, release.Adjacency.ZERO_OUT, unit, adversary)

    def to_record(self) -> dict[str, Scalar]:
        return {"noise": "skellam", "unit": self.unit.value, **asdict(self.plan)}


Terms = GaussianTerms | RingTerms


def terms_from_record(record: Mapping[str, Scalar]) -> Terms:
    """The inverse of `to_record`."""
    if record["noise"] == "gaussian":
        return GaussianTerms(
            record.get("clip"),  # type: ignore[arg-type]
            float(record["noise-multiplier"]),
        )
    fields = {key: value for key, value in record.items() if key not in ("noise", "unit")}
    return RingTerms(EncodingPlan(**fields), release.Unit(record["unit"]))  # type: ignore[arg-type]
