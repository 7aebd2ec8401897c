"""Every epsilon says in words whom it is about, with numbers of clients and not shares."""

import pytest

from fedsketch.conf import compose
from fedsketch.strategies.noise.adversaries import in_words


def _words(adversary: str, cohort: int, *overrides: str) -> str:
    sizes = ("clients.total=100", f"clients.per_round={cohort}")
    return in_words(compose(["data=synthetic", *sizes, *overrides]), adversary)


@pytest.mark.parametrize(("cohort", "number"), [(9, "none"), (10, "1"), (39, "3"), (100, "10")])
def test_the_server_works_with_a_number_of_clients(cohort: int, number: str) -> None:
    assert f"a server that may lie and works with {number} of {cohort} clients" in _words(
        "server", cohort
    )


def test_what_the_server_sees_and_does_follows_from_secure_aggregation() -> None:
    assert _words("server", 10, "secagg=none") == "the server, which sees every upload"
    assert "follows the protocol" in _words("server", 10, "secagg=semi_honest")


@pytest.mark.parametrize(
    ("cohort", "who"), [(9, "1 fellow participant,"), (19, "1 "), (39, "3 fellow participants,")]
)
def test_there_is_always_a_fellow_client(cohort: int, who: str) -> None:
    assert _words("client", cohort).startswith(who)
    assert _words("client", cohort, "secagg=none").startswith("1 fellow participant,")


def test_only_masks_need_a_list_of_the_cohort() -> None:
    listed = "and who else is in the cohort"
    assert listed in _words("client", 20)
    assert listed not in _words("client", 20, "secagg=none")


def test_those_who_see_models_take_part_in_none() -> None:
    assert "see the models of all rounds, but take part in none" in _words("model", 20)


def test_an_adversary_of_one_strategy_goes_by_its_name() -> None:
    assert _words("eavesdropper", 20) == "eavesdropper"


def test_a_number_of_colluders_is_the_same_in_every_cohort() -> None:
    for cohort in (10, 39):
        words = _words("server", cohort, "secagg.colluders=3")
        assert f"works with 3 of {cohort} clients (whatever the cohort)" in words


@pytest.mark.parametrize("protocol", ["auto", "pairwise", "two_trips"])
def test_whatever_the_protocol_the_server_may_lie(protocol: str) -> None:
    assert "a server that may lie" in _words("server", 10, f"secagg={protocol}")
