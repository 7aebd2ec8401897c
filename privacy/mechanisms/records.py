"""Reads a mechanism from a record that the server sent. Only the mechanisms listed here are accepted, because a device
must know what each one costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsketch.errors import UnsoundMechanismError
from fedsketch.privacy.mechanisms.coordinate_sampling import CoordinateSampling
from fedsketch.privacy.mechanisms.gaussian import GaussianNoise
from fedsketch.privacy.mechanisms.mechanism import KIND, Mechanism
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing

_KINDS: Mapping[str, type[Mechanism]] = {
    kind.kind: kind for kind in (SkellamRing, GaussianNoise, NoisyTraining, CoordinateSampling)
}


def mechanism_from_record(record: Mapping[str, Any]) -> Mechanism:
    """Return the inverse of `Mechanism.to_record`; raises `UnsoundMechanismError` for anything else."""
    fields = dict(record)
    kind = _KINDS.get(str(fields.pop(KIND, None)))
    if kind is None:
        raise UnsoundMechanismError(f"The mechanism is none of {', '.join(_KINDS)}.")
    return kind.from_record(fields)
