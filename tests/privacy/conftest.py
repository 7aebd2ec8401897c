"""Builders shared by the privacy tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Mechanism,
    NoSampling,
    Release,
    Sampling,
    Unit,
)

MakeRelease = Callable[..., Release]


@pytest.fixture(scope="session")
def make_release() -> MakeRelease:
    def build(
        mechanism: Mechanism,
        sampling: Sampling | None = None,
        adjacency: Adjacency = Adjacency.ZERO_OUT,
        unit: Unit = Unit.CLIENT,
        adversary: Adversary = Adversary.MODEL,
    ) -> Release:
        return Release(mechanism, sampling or NoSampling(), adjacency, unit, adversary)

    return build
