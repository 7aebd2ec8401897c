"""CohortSampler: a function of key and round, with the law that the accountant books; and how nodes become clients."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from scipy import stats

from fedsketch.conf.schema import ClientsConfig, CohortSampling
from fedsketch.errors import TooFewClients
from fedsketch.runtime.local import LocalGrid
from fedsketch.strategies.rounds.sampling import CohortSampler, identify_clients

FALSE_ALARM = 1e-6
SCHEMES = ["fixed", "poisson", "passes", "cycle"]


def _cohorts(scheme: str, total: int = 20, per_round: int = 8, key: int = 1) -> CohortSampler:
    settings = ClientsConfig(
        total=total,
        per_round=per_round,
        sampling=CohortSampling(scheme),
        tolerated_dropouts=0.0,
        retries=0,
        timeout=1.0,
    )
    return CohortSampler(settings, key)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_draws_are_a_function_of_key_and_round(scheme: str) -> None:
    first = [_cohorts(scheme).draw(r) for r in range(1, 6)]
    again = _cohorts(scheme)
    later_rounds_first = [again.draw(r) for r in range(5, 0, -1)]
    assert first == later_rounds_first[::-1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_other_keys_and_other_rounds_draw_others(scheme: str) -> None:
    # Equal by chance: below 20 choose 8 to the power of minus one per pair, so 1e-4 for one pair and 1e-16 for four.
    rounds = range(1, 5)
    here = [_cohorts(scheme, key=1).draw(r) for r in rounds]
    there = [_cohorts(scheme, key=2).draw(r) for r in rounds]
    assert here != there
    assert len({tuple(cohort) for cohort in here}) > 1


def test_large_secret_keys_are_used_whole() -> None:
    assert _cohorts("fixed", key=1).draw(1) != _cohorts("fixed", key=1 + (1 << 100)).draw(1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cohorts_are_sorted_distinct_clients(scheme: str) -> None:
    cohorts = _cohorts(scheme)
    for round in range(1, 30):
        cohort = cohorts.draw(round)
        assert cohort == sorted(set(cohort))
        assert set(cohort) <= set(range(20))


def test_fixed_cohorts_have_the_size_and_take_everybody_alike() -> None:
    cohorts, rounds = _cohorts("fixed"), 2000
    draws = [cohorts.draw(round) for round in range(1, rounds + 1)]
    assert {len(draw) for draw in draws} == {8}
    counts = Counter(itertools.chain.from_iterable(draws))
    # Each count is binomial(2000, 0.4); a bound for 20 of them.
    low, high = stats.binom.interval(1 - FALSE_ALARM / 20, rounds, 8 / 20)
    assert all(low <= counts[client] <= high for client in range(20))


def test_poisson_cohorts_take_each_client_on_its_own() -> None:
    cohorts, rounds, total = _cohorts("poisson"), 2000, 20
    draws = [cohorts.draw(round) for round in range(1, rounds + 1)]
    sizes = [len(draw) for draw in draws]
    low, high = stats.binom.interval(1 - FALSE_ALARM / 2, rounds * total, 0.4)
    assert low <= sum(sizes) <= high
    # Independent clients: the sizes vary like a binomial(20, 0.4), whose variance is 4.8.
    variance = sum((size - 8) ** 2 for size in sizes)
    fourth = sum(stats.binom.pmf(k, total, 0.4) * (k - 8) ** 4 for k in range(total + 1))
    deviation = (rounds * (fourth - 4.8**2)) ** 0.5
    assert abs(variance - rounds * 4.8) < stats.norm.isf(FALSE_ALARM / 4) * deviation


@pytest.mark.parametrize(("total", "per_round"), [(20, 8), (21, 7), (10, 10), (5, 4), (7, 1)])
def test_a_pass_takes_everybody_exactly_once(total: int, per_round: int) -> None:
    cohorts = _cohorts("passes", total, per_round)
    length = cohorts.settings.rounds_per_pass
    assert length == -(-total // per_round)
    for first in range(1, 3 * length, length):
        draws = [cohorts.draw(round) for round in range(first, first + length)]
        assert max(map(len, draws)) <= per_round
        assert sorted(itertools.chain.from_iterable(draws)) == list(range(total))


def test_a_cycle_has_every_client_once_a_pass_and_always_in_the_same_round() -> None:
    cohorts = _cohorts("cycle", 20, 4)
    drawn = [cohorts.draw(round) for round in range(1, 11)]
    assert sorted(client for cohort in drawn[:5] for client in cohort) == list(range(20))
    assert drawn[:5] == drawn[5:]


def test_passes_are_shuffled_anew() -> None:
    cohorts = _cohorts("passes", 20, 4)
    assert [cohorts.draw(r) for r in range(1, 6)] != [cohorts.draw(r) for r in range(6, 11)]


def _introducing(number: Callable[[Context], int]) -> ClientApp:
    app = ClientApp()

    @app.query("introduce")
    def introduce(message: Message, context: Context) -> Message:
        records = RecordDict({"self": ConfigRecord({"client": number(context)})})
        return Message(records, reply_to=message)

    return app


def test_meet_numbers_clients_from_zero_by_who_they_are() -> None:
    # Node 2 is client 900, node 3 client 800, ...: as in a deployment, where clients are no consecutive numbers.
    grid = LocalGrid(_introducing(lambda context: 1100 - 100 * context.node_id), 4)
    assert identify_clients(grid, total=4, timeout=1) == {3: 2, 2: 3, 1: 4, 0: 5}


def test_meet_takes_no_more_than_asked_for() -> None:
    grid = LocalGrid(_introducing(lambda context: context.node_id), 6)
    assert identify_clients(grid, total=4, timeout=1) == {0: 2, 1: 3, 2: 4, 3: 5}


class _LateGrid(LocalGrid):
    """A grid to which one node more comes every time somebody looks."""

    looks = 0

    def get_node_ids(self) -> Iterable[int]:
        self.looks += 1
        return list(super().get_node_ids())[: self.looks]


def test_meet_waits_for_late_nodes() -> None:
    grid = _LateGrid(_introducing(lambda context: context.node_id), 3)
    assert identify_clients(grid, total=3, timeout=5) == {0: 2, 1: 3, 2: 4}
    assert grid.looks == 3


def test_meet_waits_for_a_node_that_failed_at_first() -> None:
    failures = iter([True, False])

    def number(context: Context) -> int:
        if context.node_id == 3 and next(failures):
            raise RuntimeError("still starting")
        return context.node_id

    assert identify_clients(LocalGrid(_introducing(number), 3), total=3, timeout=5) == {
        0: 2,
        1: 3,
        2: 4,
    }


def test_meet_gives_up_with_a_sentence() -> None:
    grid = LocalGrid(_introducing(lambda context: context.node_id), 3)
    with pytest.raises(TooFewClients, match=r"3 of 5 clients answered .* clients\.total\."):
        identify_clients(grid, total=5, timeout=0.2)


def test_meet_asks_for_numbers_where_the_data_are_shared_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that was started without a partition-id calls itself by its id."""
    monkeypatch.setattr("fedsketch.strategies.rounds.sampling._GRACE", 0.1)
    grid = LocalGrid(_introducing(lambda context: context.node_id + 2**60), 3)
    with pytest.raises(TooFewClients, match=r"3 of 3 nodes do not say.*partition-id from 0 to 2"):
        identify_clients(grid, total=3, timeout=60, numbered=True)


def test_meet_passes_over_nodes_without_a_part_if_there_are_enough_others() -> None:
    grid = LocalGrid(_introducing(lambda context: 9 - context.node_id), 6)  # clients 7 to 2
    assert identify_clients(grid, total=5, timeout=1) == {4: 3, 3: 4, 2: 5, 1: 6, 0: 7}
    numbers = [5, 0, -1, 2, 1]
    grid = LocalGrid(_introducing(lambda context: numbers[context.node_id - 2]), 5)
    assert identify_clients(grid, total=3, timeout=1, numbered=True) == {0: 3, 1: 6, 2: 5}


HOSTILE: dict[str, Callable[[int], RecordDict]] = {
    "no record": lambda node: RecordDict(),
    "no number": lambda node: RecordDict({"self": ConfigRecord({"client": "no\n\x1b[2J"})}),
    "a list": lambda node: RecordDict({"self": ConfigRecord({"client": [0, 1]})}),
    "a truth": lambda node: RecordDict({"self": ConfigRecord({"client": True})}),
    "another kind of record": lambda node: RecordDict({"self": ArrayRecord()}),
    "the number of another": lambda node: RecordDict({"self": ConfigRecord({"client": 2})}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_node_that_lies_about_itself_is_left_out(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither does it end the run, nor is it asked again, nor does it take the place of another."""
    asked: list[int] = []
    app = ClientApp()

    @app.query("introduce")
    def introduce(message: Message, context: Context) -> Message:
        asked.append(context.node_id)
        honest = RecordDict({"self": ConfigRecord({"client": context.node_id})})
        return Message(HOSTILE[kind](5) if context.node_id == 5 else honest, reply_to=message)

    grid = _LateGrid(app, 5)
    assert identify_clients(grid, total=3, timeout=5) == {0: 2, 1: 3, 2: 4}
    grid.looks = 5
    with pytest.raises(
        TooFewClients, match=r"4 of 5 clients answered .*\(1 other nodes are left out"
    ):
        identify_clients(grid, total=5, timeout=0.3)
    assert asked.count(5) == 1
    assert "left out" in caplog.text
