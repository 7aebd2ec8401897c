"""Shares of clients become numbers of clients in one place, by the same rules for the server, the plan and the
device."""

from __future__ import annotations

import itertools
import math

import pytest

from fedsketch.secagg import SecAggOptions, Sizes

# Some of them give products just below and just above a whole number.
SHARES = (0.0, 0.01, 0.05, 0.07, 0.1, 0.29, 0.3, 1 / 3, 0.5, 0.57, 0.7, 0.99, 1 - 2**-53)


@pytest.mark.parametrize("groups", [1, 2, 3, 7])
@pytest.mark.parametrize("share", SHARES)
def test_shares_are_rounded_down(share: float, groups: int) -> None:
    """The formulas are those that the options, the plan of the noise and the device's guard had of their own."""
    for n in (*range(1, 400), 1000, 1024, 99_999, 100_000):
        for sizes in (
            Sizes.of(n, share, share, groups),
            SecAggOptions(drops=share, colluders=share, groups=groups).sizes(n),
        ):
            drops, colluders = math.floor(n // groups * share), math.floor(n * share)
            assert (sizes.n, sizes.groups) == (n, groups)
            assert (sizes.drops, sizes.colluders) == (drops, colluders)
            assert (sizes.fewest, sizes.most) == (n // groups, math.ceil(n / groups))
            assert sizes.least == n // groups - drops
            assert sizes.needed == (sizes.most + colluders) // 2 + 1


@pytest.mark.parametrize("share", SHARES)
def test_a_round_has_more_drops_than_a_share_allows_if_it_has_more_than_the_number(
    share: float,
) -> None:
    for n, drops in itertools.product(range(1, 120), repeat=2):
        assert (drops > share * n) == (drops > Sizes.of(n, share, 0).drops)


def test_whole_numbers_stay_as_they_are() -> None:
    sizes = Sizes.of(20, 3, 7, 4)
    assert sizes == Sizes(20, 3, 7, 4)
    assert (sizes.fewest, sizes.least, sizes.most, sizes.needed) == (5, 2, 5, 7)


def test_groups_of_different_sizes_count_by_the_worse_one() -> None:
    sizes = Sizes.of(11, 0.2, 0.1, 2)
    assert (sizes.fewest, sizes.most) == (5, 6)
    assert (sizes.drops, sizes.colluders) == (1, 1)
    assert (sizes.least, sizes.needed) == (4, 4)
