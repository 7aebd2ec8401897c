"""Releases as plain JSON and back, for checkpoints and for human readers."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import Any

from fedsketch.privacy.accounting import releases as data
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    DrawnBy,
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
_ENUMERATIONS: dict[str, type[Enum]] = {
    "of": Unit,
    "drawn_by": DrawnBy,
    "knowledge": SketchKnowledge,
}


# Fields that older versions do not have. They are left out if they have their default value, so that old and new files
# agree.
_NEWER_FIELDS = ("drawn_by", "missed", "column_norm", "with_memory")


def _tagged(value: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"type": type(value).__name__}
    for one in fields(value):
        stated = getattr(value, one.name)
        if one.name not in _NEWER_FIELDS or stated != one.default:
            state[one.name] = stated.value if isinstance(stated, Enum) else stated
    return state


def _untagged(state: dict[str, Any]) -> Any:
    values = dict(state)
    kind = _TAGGED.get(values.pop("type"))
    if kind is None:
        raise ValueError(f"{state['type']!r} is not a mechanism or sampling known here.")
    for name, enumeration in _ENUMERATIONS.items():
        if name in values:
            values[name] = enumeration(values[name])
    return kind(**values)


def release_to_json(release: Release) -> dict[str, Any]:
    """Return the release as plain JSON. Fields of newer versions are left out if they have their default value."""
    state = {
        "mechanism": _tagged(release.law),
        "sampling": _tagged(release.sampling),
        "adjacency": release.adjacency.value,
        "unit": release.unit.value,
        "adversary": str(release.adversary),
    }
    return state if release.times == 1 else {**state, "times": release.times}


def release_from_json(state: dict[str, Any]) -> Release:
    """Return the release that `release_to_json` wrote down, also by an older version."""
    return Release(
        law=_untagged(state["mechanism"]),
        sampling=_untagged(state["sampling"]),
        adjacency=Adjacency(state["adjacency"]),
        unit=Unit(state["unit"]),
        adversary=Adversary.parse(state["adversary"]),
        times=state.get("times", 1),
    )
