"""Builders shared by the privacy tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    NoiseLaw,
    NoSampling,
    Release,
    SecretDraw,
    Unit,
)

MakeRelease = Callable[..., Release]


@pytest.fixture(scope="session")
def make_release() -> MakeRelease:
    def build(
        mechanism: NoiseLaw,
        sampling: SecretDraw | None = None,
        adjacency: Adjacency = Adjacency.ZERO_OUT,
        unit: Unit = Unit.CLIENT,
        adversary: Adversary = Adversary.MODEL,
    ) -> Release:
        return Release(mechanism, sampling or NoSampling(), adjacency, unit, adversary)

    return build
