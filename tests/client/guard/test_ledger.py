"""The ledger of a device: the order of steps, the budget, and agreement with a model in memory."""

import math
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedsketch.client.guard.ledger
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.ledger_state import Budget
from fedsketch.privacy.accounting.releases import (
    Release,
    Unit,
)
from fedsketch.secagg import Refusal
from tests.client.guard.charges import DELTA, ENDLESS, charged, epsilon, release, this

# ---------------------------------------------------------------------------- the course of a round


def test_a_round_is_charged_at_its_worst_case_and_settled_at_what_it_was(ledger: Ledger) -> None:
    charged(ledger, 1)
    assert ledger.state().spent(DELTA) == pytest.approx(epsilon(release(10)))
    ledger.endorse(this(1), "list")
    ledger.settle(this(1), "list", release(14), signed=True)
    assert ledger.state().spent(DELTA) == pytest.approx(epsilon(release(14)))
    assert epsilon(release(14)) < epsilon(release(10))


def test_a_charge_that_is_never_settled_stays_at_its_worst_case(ledger: Ledger) -> None:
    for number in range(1, 6):
        charged(ledger, number)
    ledger.settle(this(5), "list", release(14), signed=False)
    expected = epsilon(*[release(10)] * 4, release(14))
    assert Ledger(ledger.path).state().spent(DELTA) == pytest.approx(expected)


def test_a_server_that_only_opens_rounds_leaves_the_ledger_as_it_was(ledger: Ledger) -> None:
    """10,000 rounds in 100 runs, none of which goes on: no byte on the disk, and nothing spent."""
    charged(ledger, 1)
    before = ledger.path.read_bytes()
    for number in range(10_000):
        ledger.admit(this(2 + number // 100, run=7 + number % 100), release(), ENDLESS)
    assert ledger.path.read_bytes() == before
    assert ledger.state().spent(DELTA) == pytest.approx(epsilon(release()))


def test_rounds_are_charged_in_ascending_order(ledger: Ledger) -> None:
    """So that one number per run tells all rounds that can never be charged again."""
    charged(ledger, 5)
    for number in (4, 5):
        with pytest.raises(
            Refusal, match=f"Round {number} of run 7 is over: the vector of round 5"
        ):
            ledger.charge(this(number), release(), ENDLESS)
    charged(ledger, 6)


@pytest.mark.parametrize(
    ("prepare", "step", "sentence"),
    [
        (
            "c",
            lambda x: x.admit(this(1), release(), ENDLESS),
            "Round 1 of run 7 is over: the vector of round 1 has left this device.",
        ),
        ("c", lambda x: x.admit(this(0), release(), ENDLESS), "is over"),
        ("c", lambda x: x.charge(this(1), release(), ENDLESS), "is over"),
        ("c", lambda x: x.charge(this(1, digest="e"), release(), ENDLESS), "is over"),
        ("cs", lambda x: x.charge(this(1), release(), ENDLESS), "is over"),
        ("", lambda x: x.endorse(this(1), "list"), "it has ended or was never charged."),
        ("c", lambda x: x.endorse(this(1, run=8), "list"), "Round 1 of run 8 is not open"),
        ("c", lambda x: x.endorse(this(1, digest="e"), "list"), "was charged with other settings."),
        ("ce", lambda x: x.endorse(this(1), "list"), "has signed a survivor list of Round 1 of run 7 before."),
        ("ce", lambda x: x.endorse(this(1), "other"), "has signed a survivor list"),
        ("", lambda x: x.settle(this(1), "list", release(), signed=False), "it has ended or was never charged."),
        ("c", lambda x: x.settle(this(1), "list", release(), signed=True), "signed no such survivor list"),
        ("ce", lambda x: x.settle(this(1), "other", release(), signed=True), "signed no such survivor list"),
        ("cs", lambda x: x.settle(this(1), "list", release(), signed=False), "it has ended or was never charged."),
        ("c", lambda x: x.settle(this(1), "l", release(unit=Unit.EXAMPLE), signed=False), "set unit back."),
        ("c", lambda x: x.admit(this(2), release(unit=Unit.EXAMPLE), ENDLESS), "its policy now asks for each example"),
    ],
)  # fmt: skip
def test_a_step_out_of_order_is_refused_and_changes_nothing(
    ledger: Ledger, prepare: str, step: Callable[[Ledger], None], sentence: str
) -> None:
    steps: dict[str, Callable[[], None]] = {
        "c": lambda: ledger.charge(this(1), release(), ENDLESS),
        "e": lambda: ledger.endorse(this(1), "list"),
        "s": lambda: ledger.settle(this(1), "list", release(), signed=False),
    }
    for letter in prepare:
        steps[letter]()
    before = ledger.path.read_bytes()
    with pytest.raises(Refusal) as caught:
        step(ledger)
    assert sentence in str(caught.value)
    assert ledger.path.read_bytes() == before


def test_only_the_last_round_whose_vector_left_can_still_be_settled(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        charged(ledger, number)
    with pytest.raises(Refusal, match="Round 1 of run 7 is not open"):
        ledger.settle(this(1), "list", release(99), signed=False)
    ledger.settle(this(2), "list", release(12), signed=False)
    assert ledger.state().rounds == 3


def test_runs_count_their_rounds_apart_and_spend_together(ledger: Ledger) -> None:
    charged(ledger, 5, run=1)
    charged(ledger, 2, run=2)
    assert ledger.state().spent(DELTA) == pytest.approx(epsilon(release(), release()))


# ---------------------------------------------------------------------------- the budget


def test_a_charge_beyond_the_budget_is_refused_with_what_is_left(ledger: Ledger) -> None:
    budget = Budget(epsilon(*[release()] * 3), DELTA, 100)
    for number in (1, 2, 3):
        charged(ledger, number, budget)
    refused: list[Callable[[], None]] = [
        lambda: ledger.charge(this(4), release(), budget),
        lambda: ledger.admit(this(5), release(), budget),
    ]
    for step in refused:
        before = ledger.path.read_bytes()
        with pytest.raises(Refusal) as caught:
            step()
        assert ledger.path.read_bytes() == before
        assert "does not cover this round: it would bring epsilon to" in str(caught.value)
        assert str(caught.value).endswith("of which 0 is left.")
    assert ledger.state().rounds == 3


def test_settling_gives_back_what_was_charged_too_much(ledger: Ledger) -> None:
    budget = Budget(epsilon(release(10), release(40)), DELTA, 100)
    charged(ledger, 1, budget)
    with pytest.raises(Refusal, match="does not cover"):
        ledger.admit(this(2), release(), budget)
    ledger.settle(this(1), "list", release(40), signed=False)
    charged(ledger, 2, budget)


def test_the_number_of_rounds_is_bounded(ledger: Ledger) -> None:
    budget = Budget(math.inf, DELTA, 2)
    charged(ledger, 1, budget)
    charged(ledger, 2, budget)
    with pytest.raises(Refusal, match=r"taken part in 2 rounds, and its owner allows 2\."):
        ledger.admit(this(3), release(), budget)


def test_after_an_unmasked_reply_no_finite_budget_is_left(ledger: Ledger) -> None:
    ledger.note_unmasked("train")
    assert Ledger(ledger.path).state().spent(DELTA) == math.inf
    with pytest.raises(Refusal, match=r"bring epsilon to inf .* of which 0 is left"):
        ledger.admit(this(1), release(), Budget(1e6, DELTA, 10))
    ledger.admit(this(1), release(), ENDLESS)


def test_of_processes_that_race_for_the_last_budget_exactly_as_many_win_as_it_covers(
    ledger: Ledger,
) -> None:
    budget = Budget(epsilon(*[release()] * 3), DELTA, 100)
    fork = multiprocessing.get_context("fork")
    barrier, wins = fork.Barrier(8), fork.Queue()

    def race(run: int) -> None:
        barrier.wait()
        try:
            Ledger(ledger.path).charge(this(1, run), release(), budget)
            wins.put(True)
        except Refusal as refusal:
            wins.put("does not cover" not in str(refusal))
        wins.close()
        wins.join_thread()
        os._exit(0)

    racers = [fork.Process(target=race, args=(run,)) for run in range(8)]
    for racer in racers:
        racer.start()
    results = [wins.get(timeout=20) for _ in racers]
    for racer in racers:
        racer.join(timeout=20)
    assert sorted(results) == [False] * 5 + [True] * 3
    state, _ = ledger.verified()
    assert state.rounds == 3
    assert state.spent(DELTA) == pytest.approx(budget.epsilon)


# ---------------------------------------------------------------------------- against a model

steps = st.tuples(
    st.sampled_from(
        [
            *(
                "several",
                "several",
                "two trips",
                "two trips",
                "admit",
                "charge",
                "endorse",
                "settle",
            ),
            *("mask", "answer", "torn", "verify"),
        ]
    ),
    st.integers(1, 2),  # run
    st.integers(1, 6),  # round
    st.integers(10, 13),  # survivors
)


SEVERAL = {
    "several": ("admit", "charge", "endorse", "settle"),
    "two trips": ("admit", "mask", "answer", "answer"),
}


class Model:
    """The same rules, said once more and without any file."""

    def __init__(self) -> None:
        self.last = {1: 0, 2: 0}
        self.stage: dict[tuple[int, int], str] = {}
        self.context = {1: "", 2: ""}
        self.answered: set[tuple[int, int]] = set()
        self.cost: dict[tuple[int, int], Release] = {}

    def step(self, what: str, run: int, round: int, survivors: int) -> bool:
        key, stage = (run, round), self.stage.get((run, round))
        if what == "admit":
            return round > self.last[run]
        if what in ("charge", "mask"):
            if round <= self.last[run]:
                return False
            mine = [k for k in sorted(self.stage) if k[0] == run and self.stage[k] != "ended"]
            for k in mine[:-1]:
                self.stage[k] = "ended"
            self.last[run], self.stage[key], self.cost[key] = round, what, release(10)
            if what == "mask":
                self.context[run] = f"{run}.{round}"
        elif what == "answer" and stage in ("mask", f"list {survivors}"):
            self.stage[key] = f"list {survivors}"
            self.answered.add(key)
        elif what == "endorse" and stage == "charge":
            self.stage[key] = "endorsed"
        elif what == "settle" and stage == "endorsed":
            self.stage[key], self.cost[key] = "ended", release(survivors)
        else:
            return False
        return True


def _take(path: Path, model: Model, what: str, run: int, round: int, survivors: int) -> None:
    """One step by a new process, of which model and ledger must say the same."""
    ledger, here = Ledger(path), this(round, run, f"{run}.{round}")
    call: dict[str, Callable[[], None]] = {
        "admit": lambda: ledger.admit(here, release(10), ENDLESS),
        "charge": lambda: ledger.charge(here, release(10), ENDLESS),
        "endorse": lambda: ledger.endorse(here, "list"),
        "settle": lambda: ledger.settle(here, "list", release(survivors), signed=True),
        "mask": lambda: ledger.charge(here, release(10), ENDLESS, "key"),
        "answer": lambda: ledger.answer(here, f"list {survivors}"),
    }
    try:
        call[what]()
        went = True
    except Refusal:
        went = False
    assert went == model.step(what, run, round, survivors)


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(script=st.lists(steps, max_size=25))
def test_any_sequence_of_steps_and_restarts_agrees_with_a_model_in_memory(
    script: list[tuple[str, int, int, int]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_LINES", 5)
    monkeypatch.setattr(fedsketch.client.guard.ledger, "_TAIL_FACTOR", 1)
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    Ledger(path).create()
    model = Model()
    for what, run, round, survivors in script:
        if what == "torn":
            with path.open("ab") as file:
                file.write(path.read_bytes()[-survivors - 100 : -survivors].replace(b"\n", b""))
        elif what == "verify":
            Ledger(path).verified()
        elif what in SEVERAL:
            next_round = model.last[run] + 1
            for one in SEVERAL[what][: survivors - 9]:
                _take(path, model, one, run, next_round, survivors)
        else:
            _take(path, model, what, run, round, survivors)
    state, _ = Ledger(path).verified()
    assert Ledger(path).state() == state
    assert state.rounds == len(model.cost)
    assert {run: state.last_context(run) for run in (1, 2)} == model.context
    assert state.answered == len(model.answered)
    assert state.spent(DELTA) == pytest.approx(epsilon(*model.cost.values()), rel=1e-12)
