"""The ring's parameters follow Bell et al.'s formula, and the ring is regular and symmetric."""

from __future__ import annotations

import pytest

from fedsketch.secagg.errors import SettingsError
from fedsketch.secagg.pairwise.graph import neighbours, ring_parameters, threshold_range


@pytest.mark.parametrize(
    ("n", "degree", "threshold"), [(100, 26, 20), (1000, 52, 37), (10_000, 62, 44)]
)
def test_published_parameters(n: int, degree: int, threshold: int) -> None:
    """5 % drops, 20 % corrupt, security 2^-40, failure 2^-20."""
    assert ring_parameters(n, n // 5, n // 20) == (degree, threshold)


def test_threshold_is_at_least_a_majority_of_the_holders() -> None:
    low, high = threshold_range(1000, 52, 0, 0)
    assert low == 27
    assert high == 52


def test_hopeless_rings_are_refused() -> None:
    with pytest.raises(SettingsError, match="complete graph"):
        ring_parameters(1000, 900, 40)


@pytest.mark.parametrize(("n", "degree"), [(130, 24), (131, 6), (10, 9), (1000, 52)])
def test_graph_is_regular_and_symmetric(n: int, degree: int) -> None:
    around = [set(neighbours(n, degree, b"seed", i)) for i in range(n)]
    for i, peers in enumerate(around):
        assert len(peers) == degree
        assert i not in peers
        assert all(i in around[j] for j in peers)


def test_order_depends_on_the_seed() -> None:
    assert neighbours(200, 10, b"a", 0) != neighbours(200, 10, b"b", 0)
