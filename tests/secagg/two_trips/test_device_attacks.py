"""A server that deviates: each of its attempts is refused by the device's own code, or gives it nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedsketch.secagg.errors import Aborted, Malformed, Refusal, SecAggError, SettingsError
from fedsketch.secagg.guard import SimulationGuard, simulated_identity
from fedsketch.secagg.identity import Roster
from fedsketch.secagg.node import Node
from fedsketch.secagg.server_session import RoundStage
from fedsketch.secagg.settings import RoundSettings
from fedsketch.secagg.two_trips import device, messages
from fedsketch.secagg.two_trips.keys import key_statement, moved_on
from fedsketch.secagg.two_trips.messages import SharingRequest
from fedsketch.secagg.two_trips.settings import Cohort, Terms, TwoTripsSettings, static_digest
from fedsketch.secagg.two_trips.state import Memory
from fedsketch.secagg.two_trips.stream import share_input
from fedsketch.secagg.wire import MessageKind, Writer
from tests.secagg.two_trips.fleet import MODEL, RUN, Fleet

ME = 1000


class Booked(SimulationGuard):
    """A guard whose book outlives every state, as a ledger does."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.charged: list[TwoTripsSettings] = []
        self.answered: dict[bytes, tuple[int, ...]] = {}

    def charge(self, settings: RoundSettings) -> None:
        assert isinstance(settings, TwoTripsSettings)
        if any(one.round >= settings.round for one in self.charged):
            raise Refusal("The round is over.")
        self.charged.append(settings)

    def answer(self, settings: TwoTripsSettings, survivors: tuple[int, ...]) -> None:
        if self.answered.setdefault(settings.digest, survivors) != survivors:
            raise Refusal("Another list was answered.")

    def last_charge(self, run: int) -> bytes | None:
        return self.charged[-1].digest if self.charged else b""


def fleet_of(n: int = 10, **options: Any) -> Fleet:
    """A fleet in which the first device has a book."""
    fleet = Fleet(n, **{"drops": 2, **options})
    fleet.nodes[ME] = Node(ME, RUN, Booked(ME))
    return fleet


def until(step: RoundStage, fleet: Fleet | None = None, **options: Any) -> Fleet:
    """A fleet in which the first round has come to this step."""
    fleet = fleet or fleet_of(**options)
    fleet.run(until=step)
    return fleet


def asked(fleet: Fleet) -> SharingRequest:
    """The request for a vector that the first device has got in the first round."""
    return SharingRequest.decode(fleet.requests[RoundStage.MASK, ME])


def changed(request: SharingRequest, **changes: Any) -> bytes:
    """The request with other terms, or another cohort, or both, and their right name."""
    cohort, terms = Cohort.decode(request.cohort), Terms.decode(request.terms)
    ours = {name: value for name, value in changes.items() if hasattr(cohort, name)}
    cohort = replace(cohort, **ours)
    terms = replace(terms, **{name: value for name, value in changes.items() if name not in ours})
    static = static_digest(cohort, terms)
    return replace(request, static=static, cohort=cohort.encoded, terms=terms.encoded).encode()


def before_mask(fleet: Fleet | None = None, **options: Any) -> tuple[Fleet, SharingRequest]:
    """A fleet whose devices have keys, and what an honest server would ask the first for."""
    fleet = fleet or fleet_of(**options)
    session = fleet.begin()
    fleet.step(session)
    return fleet, SharingRequest.decode(session.requests()[ME])


def refused(fleet: Fleet, step: RoundStage, request: bytes, *sentences: str) -> None:
    """The first device refuses, and its state stays as it was."""
    before = fleet.states[ME]
    with pytest.raises(SecAggError) as caught:
        fleet.answer(step, ME, request)
    assert any(sentence in str(caught.value) for sentence in sentences), caught.value
    assert fleet.states[ME] == before


# ------------------------------------------------------------------------------------------------ one answer, one list
def lists(fleet: Fleet) -> tuple[bytes, bytes]:
    """The requests for an answer with everybody, and without one."""
    opened = Memory.decode(fleet.states[ME]).open
    assert opened is not None
    whole = messages.answer_request(opened.settings, range(10))
    return whole, messages.answer_request(opened.settings, range(9))


def test_a_second_list_is_refused_and_the_same_is_answered_the_same() -> None:
    fleet = until(RoundStage.ANSWER)
    whole, other = lists(fleet)
    first = fleet.answer(RoundStage.ANSWER, ME, whole)
    assert fleet.answer(RoundStage.ANSWER, ME, whole) == first
    refused(fleet, RoundStage.ANSWER, other, "another list")


def test_a_second_list_is_refused_after_a_rollback_of_the_state() -> None:
    fleet = until(RoundStage.ANSWER)
    whole, other = lists(fleet)
    old = fleet.states[ME]
    first = fleet.answer(RoundStage.ANSWER, ME, whole)
    fleet.states[ME] = old
    refused(fleet, RoundStage.ANSWER, other, "Another list")
    assert fleet.answer(RoundStage.ANSWER, ME, whole) == first


def test_without_a_book_a_rolled_back_device_answers_twice() -> None:
    """The test above can fail: the defence is the book."""
    fleet = until(RoundStage.ANSWER)
    fleet.nodes[ME] = Node(ME, RUN, SimulationGuard(ME))
    whole, other = lists(fleet)
    old = fleet.states[ME]
    fleet.answer(RoundStage.ANSWER, ME, whole)
    fleet.states[ME] = old
    fleet.answer(RoundStage.ANSWER, ME, other)


def test_a_second_vector_is_refused_in_every_order() -> None:
    fleet, request = before_mask()
    old = fleet.states[ME]
    ticket = device.open_mask(fleet.nodes[ME], old, request.encode(), MODEL)
    twin = device.open_mask(fleet.nodes[ME], old, request.encode(), b"\x22" * 32)
    fleet.answer(RoundStage.MASK, ME, request.encode())
    refused(fleet, RoundStage.MASK, request.encode(), "seen before")
    with pytest.raises(Refusal, match="over"):  # a second process that had opened the round too
        device.spend(fleet.nodes[ME], ticket)
    with pytest.raises(Refusal, match="over"):
        device.spend(fleet.nodes[ME], twin)
    fleet.states[ME] = old  # a rollback: the keys are gone
    with pytest.raises(Refusal, match="no keys"):
        fleet.answer(RoundStage.MASK, ME, replace(request, round=2).encode())
    assert not Memory.decode(fleet.states[ME]).epochs


def test_only_the_round_that_was_charged_is_answered() -> None:
    """Two contexts of one round: the other one is unknown, and so is an earlier round."""
    fleet = until(RoundStage.ANSWER)
    whole, _ = lists(fleet)
    opened = Memory.decode(fleet.states[ME]).open
    assert opened is not None
    other = replace(opened.settings, nonce=b"n" * 16)
    refused(fleet, RoundStage.ANSWER, messages.answer_request(other, range(10)), "does not know")
    fleet.run()
    refused(fleet, RoundStage.ANSWER, whole, "does not know")


def test_lists_that_are_too_small_or_outside_are_refused() -> None:
    fleet = until(RoundStage.ANSWER)
    opened = Memory.decode(fleet.states[ME]).open
    assert opened is not None
    settings = opened.settings
    refused(fleet, RoundStage.ANSWER, messages.answer_request(settings, range(7)), "Fewer than 8")
    refused(fleet, RoundStage.ANSWER, messages.answer_request(settings, range(1, 10)), "missing")
    name = settings.digest[: messages.NAME_BYTES]
    for bits in (b"\xff\xff", b"\xff", b"\xff\x03\x00"):  # beyond the cohort, too short, too long
        request = Writer(MessageKind.ANSWER_REQUEST, name).raw(bits).done()
        refused(fleet, RoundStage.ANSWER, request, "outside", "too short", "too long")
    fleet.answer(RoundStage.ANSWER, ME, messages.answer_request(settings, range(8)))


def test_nobody_survives_who_gave_no_key() -> None:
    fleet = fleet_of()
    fleet.run({RoundStage.HELLO: fleet.ids[9:]}, until=RoundStage.ANSWER)
    whole, _ = lists(fleet)
    refused(fleet, RoundStage.ANSWER, whole, "gave no key")


def test_no_answer_before_the_vector_has_left() -> None:
    fleet, request = before_mask()
    ticket = device.open_mask(fleet.nodes[ME], fleet.states[ME], request.encode(), MODEL)
    fleet.states[ME] = device.spend(fleet.nodes[ME], ticket)
    whole, _ = lists(fleet)
    refused(fleet, RoundStage.ANSWER, whole, "is charged on this device")


# ------------------------------------------------------------------------------------------------------- the settings
@pytest.mark.parametrize(
    "changes",
    [
        {"drops": 3},  # N >= 4 D fails
        {"losses": 3},  # no secret point is left
        {"losses": 2, "drops": 3},
        {"colluders": 4},
        {"bits": 15},
        {"bits": 33},
        {"dim": 0},
        {"groups": 2},
        {"groups": 0},
        {"total": 11},
        {"ids": (1000,)},
        {"ids": (1007, 1000, 1014)},
        {"ids": (1000, 1000, 1007)},
        {"epoch": 2},
        {"run": 8},
        {"ids": tuple(1007 + 7 * place for place in range(10))},
    ],
)
def test_settings_that_break_a_rule_are_refused(changes: dict[str, Any]) -> None:
    fleet, request = before_mask(colluders=1)
    before = fleet.states[ME]
    with pytest.raises((SettingsError, Refusal, Malformed)):
        fleet.answer(RoundStage.MASK, ME, changed(request, **changes))
    assert fleet.states[ME] == before
    fleet.answer(RoundStage.MASK, ME, request.encode())


def test_settings_at_the_border_are_accepted() -> None:
    """n = 10, A = 1: N = 9 >= 4 D for D = 2, and D + E + P <= (n - 2 A + 1) / 2 = 4."""
    for drops, losses in [(2, 1), (0, 3), (1, 2), (2, 0)]:
        fleet, request = before_mask(colluders=1)
        fleet.answer(RoundStage.MASK, ME, changed(request, drops=drops, losses=losses))
    fleet, request = before_mask(colluders=1)
    refused(fleet, RoundStage.MASK, changed(request, drops=2, losses=2), "too few")


def test_settings_under_another_name_are_refused() -> None:
    fleet, request = before_mask()
    refused(fleet, RoundStage.MASK, replace(request, static=b"x" * 32).encode(), "does not have")


@pytest.mark.parametrize("round", [0, 1, 256])
def test_a_round_outside_of_its_epoch_is_refused(round: int) -> None:
    fleet = fleet_of()
    fleet.numbers.next = 2
    fleet, request = before_mask(fleet)
    refused(
        fleet, RoundStage.MASK, replace(request, round=round + 2 * (round == 256)).encode(), "epoch"
    )


def test_peers_outside_of_the_roster_are_refused() -> None:
    fleet, request = before_mask()
    guard = fleet.nodes[ME].guard
    assert isinstance(guard, Booked)
    known = {node: simulated_identity(node).public for node in fleet.ids[:9]}
    guard.roster = Roster(known)  # type: ignore[assignment]
    refused(fleet, RoundStage.MASK, request.encode(), "not in the roster")


# ----------------------------------------------------------------------------------------------------------- the keys
def swapped(place: int, advert: bytes) -> Callable[[SharingRequest], SharingRequest]:
    """Put another key in a place."""
    return lambda request: replace(request, adverts={**request.adverts, place: advert})


def advert(node: int, public: bytes, *, run: int = RUN, epoch: int = 1, signer: int = 0) -> bytes:
    """A key that says that it is of a node, signed."""
    statement = key_statement(run, epoch, node, public)
    return public + simulated_identity(signer or node).sign(statement)


FRESH = b"\x42" * 32


@pytest.mark.parametrize(
    ("name", "forged", "sentence"),
    [
        ("another run", advert(1021, FRESH, run=8), "not signed"),
        ("another epoch", advert(1021, FRESH, epoch=2), "not signed"),
        ("another node", advert(1028, FRESH), "not signed"),
        ("another signer", advert(1021, FRESH, signer=1028), "not signed"),
        ("a low-order point", advert(1021, bytes([1]) + bytes(31)), "not a valid"),
        ("all zeros", advert(1021, bytes(32)), "not a valid"),
    ],
)
def test_forged_keys_are_refused(name: str, forged: bytes, sentence: str) -> None:
    fleet, request = before_mask()
    refused(fleet, RoundStage.MASK, swapped(3, forged)(request).encode(), sentence)


def test_one_key_of_two_nodes_is_refused() -> None:
    fleet, request = before_mask()
    double = advert(1021, request.adverts[4][:32])
    refused(fleet, RoundStage.MASK, swapped(3, double)(request).encode(), "same key")


def test_a_peer_has_one_key_in_an_epoch_and_so_has_the_device() -> None:
    fleet = until(RoundStage.DONE)
    again = replace(asked(fleet), round=2)
    for place, node in ((3, 1021), (0, ME)):
        other = swapped(place, advert(node, FRESH))(again)
        refused(fleet, RoundStage.MASK, other.encode(), "another key")


def test_devices_that_were_shown_other_keys_have_other_contexts() -> None:
    """The server shows half of the devices another key of one: no vector of both halves is in one sum."""
    fleet, request = before_mask()
    fleet.answer(RoundStage.MASK, ME, request.encode())
    shown = Memory.decode(fleet.states[ME]).charged
    fleet, request = before_mask()
    fleet.answer(RoundStage.MASK, ME, swapped(3, advert(1021, FRESH))(request).encode())
    assert Memory.decode(fleet.states[ME]).charged != shown


def test_keys_do_not_go_back_and_not_too_far() -> None:
    fleet = until(RoundStage.DONE)
    request = replace(asked(fleet), round=1)
    refused(fleet, RoundStage.MASK, request.encode(), "seen before")
    refused(fleet, RoundStage.MASK, replace(request, round=257).encode(), "epoch")
    fleet.answer(RoundStage.MASK, ME, replace(request, round=256).encode())  # 255 steps at once


def test_an_offline_peer_catches_up() -> None:
    fleet = Fleet(10, drops=2)
    fleet.run()
    for _ in range(3):
        fleet.run(cohort=fleet.ids[1:])
    session = fleet.run()
    assert not session.lost


def test_an_earlier_epoch_does_not_come_back() -> None:
    fleet = until(RoundStage.DONE)
    fleet.answer(RoundStage.HELLO, ME, messages.hello_request(RUN, 5))
    fleet.answer(RoundStage.HELLO, ME, messages.hello_request(RUN, 1))  # it is still known
    refused(fleet, RoundStage.HELLO, messages.hello_request(RUN, 4), "later epoch")
    refused(fleet, RoundStage.HELLO, messages.hello_request(8, 6), "belongs to run 8")
    fleet.answer(RoundStage.HELLO, ME, messages.hello_request(RUN, 9))
    assert sorted(Memory.decode(fleet.states[ME]).epochs) == [1, 5, 9]


def test_keys_of_later_epochs_do_not_push_out_those_of_the_open_round() -> None:
    fleet = until(RoundStage.ANSWER)
    for epoch in (5, 6, 7):
        fleet.answer(RoundStage.HELLO, ME, messages.hello_request(RUN, epoch))
    assert sorted(Memory.decode(fleet.states[ME]).epochs) == [1, 6, 7]
    fleet.answer(RoundStage.ANSWER, ME, lists(fleet)[0])


# -------------------------------------------------------------------------------------------------- what is broadcast
@pytest.mark.parametrize("others", [1, 5])
def test_another_broadcast_spoils_the_sum_instead_of_showing_a_part_of_it(others: int) -> None:
    """For one device, and for half of them. Each share depends on what its holder and its dealer were sent."""

    def sent(node: int) -> bytes:
        return b"\x22" * 32 if node < ME + 7 * others else MODEL

    fleet = Fleet(10)
    fleet.model = sent
    assert fleet.run().sums[0].total.tolist() != fleet.expected(fleet.ids)
    fleet = Fleet(10, drops=2)  # two more answer than are needed
    fleet.model = sent
    with pytest.raises(Aborted, match="answered wrongly"):
        fleet.run()


def test_shares_have_a_direction() -> None:
    assert share_input(b"k" * 32, MODEL, 1, 2) != share_input(b"k" * 32, MODEL, 2, 1)


# ------------------------------------------------------------------------------------------------- what is remembered
def test_after_the_answer_the_secrets_of_the_round_are_gone() -> None:
    fleet = until(RoundStage.ANSWER)
    before = Memory.decode(fleet.states[ME]).epochs[1].peers
    whole, _ = lists(fleet)
    fleet.answer(RoundStage.ANSWER, ME, whole)
    after = fleet.states[ME]
    assert all(key not in after for _, key in before.values())
    assert Memory.decode(after).epochs[1].peers[1007][1] == moved_on(before[1007][1], 1)


def test_a_later_charge_erases_the_secrets_of_a_round_that_was_never_answered() -> None:
    fleet = until(RoundStage.ANSWER)
    before = Memory.decode(fleet.states[ME]).epochs[1].peers
    fleet.run(until=RoundStage.ANSWER)
    assert all(key not in fleet.states[ME] for _, key in before.values())


def test_an_epoch_is_forgotten_with_the_first_round_of_the_next() -> None:
    fleet = Fleet(6, epoch_rounds=1)
    for _ in range(3):
        fleet.run(expected=fleet.ids)
    assert sorted(Memory.decode(fleet.states[ME]).epochs) == [3, 4]  # the next keys came ahead


def test_the_book_names_the_key_of_the_epoch() -> None:
    fleet = until(RoundStage.DONE)
    guard = fleet.nodes[ME].guard
    assert isinstance(guard, Booked)
    assert len(guard.charged[0].key) == 32
    assert replace(guard.charged[0], key=b"").digest == guard.charged[0].digest


def test_two_devices_with_one_set_of_keys_are_noticed_by_the_book() -> None:
    """A copied folder: the twin's state is not that of the last line, so its keys are dropped."""
    fleet = until(RoundStage.DONE)
    copied = fleet.states[ME]
    fleet.run()
    fleet.states[ME] = copied
    fleet.answer(RoundStage.HELLO, ME, messages.hello_request(RUN, 9))
    assert list(Memory.decode(fleet.states[ME]).epochs) == [9]
