"""The sentences name epsilon, unit and adversary; a sketched run shows both readings, each with whom it holds
against."""

import re
from collections.abc import Callable

import pytest

from fedsketch.server.guarantee import guarantee
from fedsketch.strategies.algorithm import Strategy

Sentence = Callable[..., str]
NINE = [
    "secagg=pairwise",
    "privacy.against=server",
    "data.shape=[1,4,4]",
    "clients.total=9",
    "clients.per_round=9",
    "rounds=20",
    "privacy.epsilon=4",
]
SGM = ["strategy=fed_sgm", "secagg=none"]
SECRET = ["rounds=1", "strategy.clip=before", "strategy.accounting=r_secret"]


@pytest.fixture
def sentence_of(make_strategy: Callable[..., Strategy]) -> Sentence:
    return lambda *overrides: guarantee(make_strategy(*NINE, *overrides))


def _numbers(sentence: str) -> dict[str, float]:
    """Epsilon by the words that follow or precede it."""
    found = {
        who: float(value)
        for value, who in re.findall(r"epsilon ([\d.]+) against (model|client|server)", sentence)
    }
    overheard = re.search(
        r"r_secret, which holds only against [^.]*? is epsilon ([\d.]+)", sentence
    )
    if overheard:
        found["eavesdropper"] = float(overheard[1].rstrip("."))
    return found


@pytest.mark.parametrize("strategy", ["dp_fedavg", "dome"])
def test_strategies_without_a_random_sketch_have_one_reading(
    sentence_of: Sentence, strategy: str
) -> None:
    sentence = sentence_of(f"strategy={strategy}")
    assert "epsilon 4 at delta 1e-05, per client" in sentence
    assert (
        "a server that may lie and works with none of 9 clients (10% of a cohort, rounded down)"
        in sentence
    )
    assert "r_" not in sentence


def test_a_draw_that_memory_shows_is_told(sentence_of: Sentence) -> None:
    drawn = ("strategy=dome", "privacy.against=model", "clients.per_round=3")
    feedback = "strategy.error_feedback=0.5"
    told = "Devices remember when they took part"
    assert told in sentence_of(*drawn, feedback)
    assert told not in sentence_of(*drawn)
    assert told not in sentence_of(*drawn, feedback, "clients.sampling=poisson")


def test_a_sketched_run_is_calibrated_for_those_who_know_the_sketch(sentence_of: Sentence) -> None:
    sentence = sentence_of(*SGM, "privacy.against=model")
    assert _numbers(sentence)["model"] == pytest.approx(4, abs=0.01)
    assert "r_public, which holds even against those who know the sketch" in sentence
    assert "no theorem covers (it needs rounds=1, strategy.clip=before)" in sentence


def test_under_masks_the_missing_theorem_is_told(sentence_of: Sentence) -> None:
    sentence = sentence_of("strategy=fed_sgm", "strategy.seed_per=run")
    for need in ("strategy.clip=before", "secagg=none", "strategy.seed_per=round"):
        assert need in sentence


def test_where_both_readings_hold_both_numbers_stand_side_by_side(sentence_of: Sentence) -> None:
    covered = ("rounds=1", "strategy.clip=before", "privacy.against=model")
    numbers = _numbers(sentence_of(*SGM, *covered))
    assert set(numbers) == {"model", "client", "server", "eavesdropper"}
    assert numbers["model"] == pytest.approx(4, abs=0.01)
    assert numbers["server"] > numbers["model"]


def test_a_budget_for_the_eavesdropper_is_labelled_and_the_honest_numbers_stand_beside_it(
    sentence_of: Sentence,
) -> None:
    sentence = sentence_of(*SGM, *SECRET)
    assert "epsilon 4 against the eavesdropper (r_secret) at delta 1e-05" in sentence
    assert (
        "against an eavesdropper who sees the noisy sums, and neither the sketch's seed" in sentence
    )
    numbers = _numbers(sentence)
    assert numbers["model"] > 4
    assert numbers["server"] > numbers["model"]


def test_only_a_gaussian_sketch_has_a_second_reading(sentence_of: Sentence) -> None:
    assert "r_secret" not in sentence_of(*SGM, "strategy.sketch=hadamard", "privacy.against=model")


def test_a_reproducible_run_says_that_it_is_not_private(sentence_of: Sentence) -> None:
    assert "NOT PRIVATE" in sentence_of(*SGM, "privacy.randomness=seeded", "privacy.against=model")


def test_who_holds_public_data_is_said(sentence_of: Sentence) -> None:
    assert "public" not in sentence_of("strategy=dome")
    held_out = sentence_of("strategy=dome", "data.public=5")
    assert "5 public examples of the training set, which no client has" in held_out
    named = sentence_of("strategy=dome", "data.public_root=elsewhere")
    assert "the public examples in elsewhere, which no device reads" in named
    for sentence in (held_out, named):
        assert "nothing about them counts as private" in sentence


def test_who_chooses_the_best_model_by_which_examples_is_said(sentence_of: Sentence) -> None:
    assert "validation" not in sentence_of("strategy=dome")
    chosen = sentence_of("strategy=dome", "validation.examples=5")
    assert "by 5 validation examples of the training set, which no client has" in chosen
    assert "end the run early" not in chosen
    stops = sentence_of("strategy=dome", "validation.examples=5", "validation.patience=3")
    assert "its epsilon is that of all planned rounds, whenever it ends" in stops
