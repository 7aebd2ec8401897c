"""The sizes of a cohort, from the configuration alone."""

import math

import pytest

from fedsketch.conf import compose
from fedsketch.strategies.noise.sizes import CohortSizes


@pytest.mark.parametrize("groups", [1, 2, 5])
@pytest.mark.parametrize(("dropouts", "colluders"), [(0.0, 0.0), (0.29, 0.1), (0.07, 0.57)])
def test_sizes_are_shares_rounded_down(dropouts: float, colluders: float, groups: int) -> None:
    config = compose(
        [f"clients.tolerated_dropouts={dropouts}", f"secagg.colluders={colluders}"],
    )
    sizes = CohortSizes(config, groups)
    for cohort in range(1, 250):
        members, drops = -(-cohort // groups), math.floor(cohort // groups * dropouts)
        assert sizes.members(cohort) == members
        assert sizes.drops(cohort) == drops
        assert sizes.survivors(cohort) == max(1, cohort // groups - drops)
        assert sizes.colluders(cohort) == math.floor(cohort * colluders)
        assert sizes.colluding_clients(cohort) == max(1, math.floor(cohort * colluders))
        assert sizes.needed(cohort) == (members + math.floor(cohort * colluders)) // 2 + 1


def test_without_masks_nobody_colludes() -> None:
    sizes = CohortSizes(compose(["secagg=none", "privacy.against=model"]))
    assert not sizes.masked
    assert (sizes.smallest, sizes.colluders(100), sizes.colluding_clients(100)) == (1, 0, 1)


def test_a_number_of_colluders_does_not_depend_on_the_cohort() -> None:
    sizes = CohortSizes(
        compose(["clients.total=80", "clients.per_round=40", "secagg.colluders=10"])
    )
    assert [sizes.colluders(cohort) for cohort in (12, 40, 80)] == [10, 10, 10]
    assert sizes.colluding_share == 0.25
