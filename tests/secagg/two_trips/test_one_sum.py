"""Against a lying server: whatever lists it shows, what follows from the answers is one sum with at most
D honest devices missing. Counted for every strategy of small cohorts, and for chosen ones of larger."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedsketch.secagg.two_trips.shape import Shape
from tests.secagg.two_trips.finite_fields import Binary64
from tests.secagg.two_trips.lying_server import (
    Lists,
    Sharing,
    judge,
    learnt,
    random_lists,
    small_subsets,
    tried,
)


def of(shape: Shape, colluders: int | None = None) -> Sharing:
    """The sharing that devices compute, with a number of colluders that may be another than assumed."""
    taking_part = shape.colluders if colluders is None else colluders
    return Sharing(shape.n, shape.drops, shape.losses, shape.secrets, taking_part)


def two_groups(honest: int, first: int, missing: tuple[list[int], list[int]]) -> Lists:
    """The first holders are shown one list, the others another."""
    lists = np.ones((1, honest, honest), np.bool_)
    lists[0, :first, missing[0]] = False
    lists[0, first:, missing[1]] = False
    return lists


def assert_at_most_one_sum(sharing: Sharing, lists: Lists) -> int:
    """Return how many of the strategies learn anything."""
    verdict = judge(learnt(sharing, np.arange(lists.shape[1]), lists))
    assert not verdict.breaks.any()
    assert verdict.fewest.min() >= lists.shape[2] - sharing.drops
    return int(verdict.learns.sum())


# (n, D, E, P, A); the rule holds with equality in those that end with "border".
SMALL = {
    "4": Sharing(4, 1, 0, 1),
    "4 of 5": Sharing(5, 1, 0, 1, 1),
    "4 of 6": Sharing(6, 1, 0, 1, 2),
    "5": Sharing(5, 1, 0, 1),
    "5 border": Sharing(5, 1, 0, 2),
    "5 with losses border": Sharing(5, 1, 1, 1),
    "5 of 6 border": Sharing(6, 1, 0, 2, 1),
    "5 of 6 with losses border": Sharing(6, 1, 1, 1, 1),
    "5 of 7 border": Sharing(7, 1, 0, 2, 2),
}
SIX = {
    "6": Sharing(6, 1, 0, 2),
    "6 with losses": Sharing(6, 1, 1, 1),
    "6 of 7": Sharing(7, 1, 0, 2, 1),
}


def _no_strategy_learns_more_than_one_sum(sharing: Sharing) -> None:
    assert sharing.doubled_threshold > sharing.honest >= 4 * sharing.drops
    strategies, learn, broken, fewest = tried(sharing)
    assert strategies == (sharing.honest + 1) ** sharing.honest
    assert learn > sharing.honest  # at least those that show everybody the same list
    assert broken == 0
    assert fewest == sharing.honest - sharing.drops


@pytest.mark.parametrize("sharing", SMALL.values(), ids=SMALL)
def test_no_strategy_of_a_small_cohort_learns_more_than_one_sum(sharing: Sharing) -> None:
    """All of them: every list with at most D missing for every honest holder."""
    _no_strategy_learns_more_than_one_sum(sharing)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", SIX.values(), ids=SIX)
def test_no_strategy_of_a_cohort_of_six_learns_more_than_one_sum(sharing: Sharing) -> None:
    _no_strategy_learns_more_than_one_sum(sharing)


@pytest.mark.parametrize(
    ("sharing", "fewest"),
    [(Sharing(4, 1, 1, 1), 1), (Sharing(4, 1, 0, 2), 3), (Sharing(5, 1, 1, 1, 1), 1)],
    ids=["one secret", "two secrets", "a colluder"],
)
def test_where_twice_the_threshold_is_the_cohort_the_server_learns_more(
    sharing: Sharing, fewest: int
) -> None:
    """The control: one step beyond the rule the same search finds leaks, single vectors among them."""
    assert sharing.doubled_threshold == sharing.honest
    _, _, broken, found = tried(sharing)
    assert broken > 0
    assert found == fewest


def test_lists_that_form_a_fano_plane_break_a_cohort_that_is_too_small_for_its_drops() -> None:
    """Over 64 elements, with n = 7 and D = 3: twice the threshold is above n, but n is below 4 D."""
    field = Binary64()
    subfield = [
        int(field.powers[9 * i]) for i in range(7)
    ]  # the eight elements of a smaller field, but 0
    publics = [z for z in range(1, 64) if z not in subfield][:3]
    lines = [set(line) for line in combinations(range(7), 3) if _adds_up_to_zero(subfield, line)]
    assert len(lines) == 7
    sharing = Sharing(7, 3, 0, 1, field=field, points=(*subfield, *publics, 0))
    assert sharing.doubled_threshold > sharing.honest
    lists = np.array([[[holder not in line for line in lines] for holder in range(7)]])
    assert (lists.sum(axis=2) == 7 - sharing.drops).all()
    found = learnt(sharing, np.arange(7), lists)
    assert judge(found).breaks.all()
    [combination] = found[0][found[0].any(axis=(1, 2))]
    assert len(set(combination[:, 0].tolist())) == 7  # seven devices, seven coefficients


def _adds_up_to_zero(elements: list[int], line: tuple[int, ...]) -> bool:
    a, b, c = (elements[i] for i in line)
    return a ^ b ^ c == 0


@pytest.mark.parametrize("sharing", [*SMALL.values(), *SIX.values()], ids=[*SMALL, *SIX])
def test_the_bound_is_reached(sharing: Sharing) -> None:
    """Everybody is shown the same list with D missing: the sum of the others comes out, whole."""
    lists = np.ones((1, sharing.honest, sharing.honest), np.bool_)
    lists[:, :, : sharing.drops] = False
    found = learnt(sharing, np.arange(sharing.honest), lists)[0]
    sums = found[found.any(axis=(1, 2))]
    assert len(sums) == sharing.secrets
    assert not sums[:, : sharing.drops].any()
    assert (sums[:, sharing.drops :] == np.eye(sharing.secrets, dtype=int)[:, None]).all()


@pytest.mark.parametrize(
    "shape",
    [
        Shape(12, 1, 1, 1, 40, 16),
        Shape(12, 2, 1, 1, 40, 16),
        Shape(20, 3, 1, 2, 60, 16),
        Shape(31, 4, 2, 3, 99, 16),
    ],
    ids=str,
)
def test_random_strategies_of_larger_cohorts_learn_at_most_one_sum(shape: Shape) -> None:
    sharing = of(shape)
    rng = np.random.default_rng(20)
    lists = random_lists(rng, 200, sharing.honest, sharing.honest, sharing.drops)
    assert assert_at_most_one_sum(sharing, lists) > 20


def _halves(sharing: Sharing, first: int) -> Lists:
    """The second half is told that device 0 dropped out, and the first that some others did."""
    others = list(range(1, sharing.drops))
    return two_groups(sharing.honest, first, (others, [0, *others]))


@pytest.mark.parametrize("secrets", [1, 30, 35])
def test_two_lists_in_a_cohort_of_100_give_at_most_one_sum(secrets: int) -> None:
    sharing = Sharing(100, 5, 5, secrets, 10)
    threshold = sharing.doubled_threshold // 2
    for first in {45, 90 - threshold, threshold - 1, threshold, 90}:
        learns = assert_at_most_one_sum(sharing, _halves(sharing, first))
        assert learns == (max(first, 90 - first) >= threshold)


def test_two_lists_in_a_cohort_of_100_break_it_with_one_secret_more() -> None:
    sharing = Sharing(100, 5, 5, 36, 10)
    assert sharing.doubled_threshold == 90
    assert judge(learnt(sharing, np.arange(90), _halves(sharing, 45))).breaks.all()


def limit(shape: Shape) -> int:
    """How many colluders and devices that answer twice a sharing withstands together."""
    return shape.n - 2 * (shape.publics + shape.secrets - 1) - 1


ROLLED_BACK = [
    Shape(10, 1, 1, 0, 2, 16),
    Shape(12, 1, 1, 1, 40, 16),
    Shape(16, 1, 2, 1, 30, 16),
    Shape(20, 2, 1, 2, 60, 16),
    Shape(23, 5, 0, 3, 40, 16),  # fewer holders that answer once than 4 D
]


@pytest.mark.parametrize("shape", ROLLED_BACK, ids=str)
def test_devices_that_answer_twice_do_no_harm_up_to_the_limit(shape: Shape) -> None:
    """They are taken to have answered every list there is, one device at a time. Their own vectors are
    protected like those of others."""
    sharing = of(shape, limit(shape))
    assert sharing.colluders >= 2 * shape.colluders  # the margin that devices leave
    dealers, rng = shape.n - shape.colluders, np.random.default_rng(21)
    lists = random_lists(rng, 200, sharing.honest, dealers, shape.drops)
    assert assert_at_most_one_sum(sharing, lists) > 20


@pytest.mark.parametrize("shape", ROLLED_BACK, ids=str)
def test_one_device_more_that_answers_twice_breaks_the_sum(shape: Shape) -> None:
    """Each of them answers a list with device 0 and one without. The others answer once, half of them either."""
    sharing, dealers = of(shape), shape.n - shape.colluders
    twice = limit(shape) + 1 - shape.colluders
    holders = np.concatenate([np.arange(dealers), np.arange(twice)])
    lists = np.ones((1, len(holders), dealers), np.bool_)
    lists[0, : twice + (dealers - twice) // 2, 0] = False
    lists[0, dealers:, 0] = True
    assert judge(learnt(sharing, holders, lists)).breaks.all()


def test_lists_of_a_strategy_leave_out_no_more_than_the_drops() -> None:
    lists = small_subsets(5, 2)
    assert len(lists) == 1 + 5 + 10
    assert lists.sum(axis=1).min() == 3
