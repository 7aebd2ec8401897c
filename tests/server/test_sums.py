"""A run says how its rounds are summed, what either protocol sends, and whose proof it relies on."""

from collections.abc import Callable

import pytest

from fedsketch.conf import compose
from fedsketch.server.guarantee import guarantee
from fedsketch.server.plan import Plan, make_plan
from fedsketch.server.sums import sums_facts
from fedsketch.strategies.algorithm import Strategy
from tests.small import small

PROOF = "a theorem of ours, which is not peer reviewed (docs/explanation/two_trips.md)."


def _plan(*overrides: str, clients: int = 20) -> Plan:
    return make_plan(compose(small("rounds=4 privacy.epsilon=8", *overrides, clients=clients)))


def test_a_plan_names_the_protocol_and_what_both_would_send() -> None:
    plan = _plan("secagg=auto")
    ((name, facts),) = plan.sums.items()
    assert name == "training"
    assert facts["protocol"] == "two_trips"
    assert 100 < facts["bytes"]["two_trips"] < facts["bytes"]["pairwise"] / 3
    assert PROOF in plan.guarantee
    words = sums_facts(plan.sums)["sums of training"]
    assert words.startswith("two_trips: ")
    assert " a client and round beside the broadcast; pairwise: " in words


def test_what_a_plan_says_of_a_protocol_is_what_its_plan_sends() -> None:
    """The two plans differ in what is sent by what the first one says; Flower's headers come on top."""
    sent = _plan("secagg=auto").sums["training"]["bytes"]
    short, long = (_plan(f"secagg={name}") for name in ("two_trips", "pairwise"))
    counted = sum(
        sign * (plan.uplink_bytes + plan.downlink_bytes) for sign, plan in ((1, long), (-1, short))
    )
    assert sent["pairwise"] - sent["two_trips"] < counted
    assert counted < 3 * (sent["pairwise"] - sent["two_trips"])


@pytest.mark.parametrize("name", ["pairwise", "two_trips"])
def test_a_protocol_that_is_named_is_what_the_plan_says(name: str) -> None:
    plan = _plan(f"secagg={name}")
    assert plan.sums["training"]["protocol"] == name
    assert set(plan.sums["training"]["bytes"]) == {"pairwise", "two_trips"}
    assert (PROOF in plan.guarantee) == (name == "two_trips")


def test_without_secure_aggregation_there_are_no_sums() -> None:
    plan = _plan("secagg=none privacy.against=model")
    assert plan.sums == {}
    assert "round trips" not in plan.guarantee


def test_a_protocol_that_is_not_possible_says_so_and_why() -> None:
    plan = _plan("secagg=auto clients.tolerated_dropouts=0.3")
    facts = plan.sums["training"]
    assert facts["protocol"] == "pairwise"
    assert "too few for a sum in two trips" in facts["bytes"]["two_trips"]
    assert sums_facts(plan.sums)["sums of training"].endswith("; two_trips: not possible")


def test_each_kind_of_round_has_its_own_protocol() -> None:
    """Long vectors in training, few numbers in evaluations."""
    plan = _plan(
        "secagg=auto evaluation=federated evaluation.groups=1 evaluation.epsilon=1 data.shape=[1,60,60] data.classes=9",
        clients=4,
    )
    assert plan.parameters > 10_000
    assert plan.sums["training"]["protocol"] == "pairwise"
    assert plan.sums["evaluation"]["protocol"] == "two_trips"
    assert (
        f" Sums (evaluation) are made in two round trips: that the server learns nothing else is {PROOF}"
        in (plan.guarantee)
    )


def test_groups_are_a_kind_of_their_own() -> None:
    plan = _plan(
        "secagg=auto strategy=fedceo strategy.every=2 strategy.start=slots strategy.groups=4"
    )
    assert list(plan.sums) == ["training", "training in 4 groups"]
    whole, groups = (facts["bytes"]["pairwise"] for facts in plan.sums.values())
    assert groups < whole / 3


def test_a_run_states_the_same_as_its_plan(make_strategy: Callable[..., Strategy]) -> None:
    for name in ("auto", "two_trips", "pairwise"):
        sentence = guarantee(make_strategy(f"secagg={name}", "privacy.against=server"))
        assert (PROOF in sentence) == (name != "pairwise")
