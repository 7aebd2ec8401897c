"""Releases as plain JSON and back, for checkpoints and for people who read them."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import Any

from fedsketch.privacy.accounting import releases as data
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Release,
    SketchKnowledge,
    Unit,
)

_TAGGED = {
    kind.__name__: kind
    for kind in (
        data.NoSampling,
        data.Poisson,
        data.WithoutReplacement,
        data.FullPasses,
        data.Gaussian,
        data.Skellam,
        data.CoordinateSampledGaussian,
        data.MatrixGaussian,
        data.SketchedGaussian,
    )
}


def _tagged(value: Any) -> dict[str, Any]:
    fields = {k: v.value if isinstance(v, Enum) else v for k, v in asdict(value).items()}
    return {"type": type(value).__name__, **fields}


def _untagged(state: dict[str, Any]) -> Any:
    fields = dict(state)
    kind = _TAGGED.get(fields.pop("type"))
    if kind is None:
        raise ValueError(f"{state['type']!r} is not a mechanism or sampling known here.")
    if "of" in fields:
        fields["of"] = Unit(fields["of"])
    if "knowledge" in fields:
        fields["knowledge"] = SketchKnowledge(fields["knowledge"])
    return kind(**fields)


def release_to_json(release: Release) -> dict[str, Any]:
    return {
        "mechanism": _tagged(release.mechanism),
        "sampling": _tagged(release.sampling),
        "adjacency": release.adjacency.value,
        "unit": release.unit.value,
        "adversary": str(release.adversary),
    }


def release_from_json(state: dict[str, Any]) -> Release:
    return Release(
        mechanism=_untagged(state["mechanism"]),
        sampling=_untagged(state["sampling"]),
        adjacency=Adjacency(state["adjacency"]),
        unit=Unit(state["unit"]),
        adversary=Adversary.parse(state["adversary"]),
    )
