"""Whatever a hostile server sends to real devices, the linear combinations of honest vectors that its
transcript determines are one sum at most, with equal coefficients, and with D honest devices missing at
most. By elimination over F_q, from the numbers that the devices really drew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fedsketch.secagg.errors import SecAggError
from fedsketch.secagg.server_session import RoundStage
from fedsketch.secagg.settings import NONCE_BYTES
from fedsketch.secagg.two_trips import device, messages
from fedsketch.secagg.two_trips.messages import SharingRequest
from fedsketch.secagg.two_trips.settings import Cohort, Terms, static_digest
from fedsketch.secagg.two_trips.shape import Shape
from fedsketch.secagg.two_trips.stream import share_input
from tests.secagg.two_trips.fleet import MODEL, RUN, Fleet
from tests.secagg.two_trips.lying_server import judge, random_lists
from tests.secagg.two_trips.transcript import Transcript

SHAPES = [
    Shape(7, 1, 0, 1, 4, 16),
    Shape(9, 1, 1, 1, 4, 16),
    Shape(10, 2, 0, 1, 4, 16),
    Shape(11, 2, 1, 0, 8, 16),
    Shape(13, 2, 1, 2, 3, 16),
]
OTHER_MODEL = b"\x22" * 32


@dataclass
class Attack:
    """A hostile server, and devices of which the last work with it."""

    shape: Shape
    monkeypatch: pytest.MonkeyPatch
    seed: int = 0
    absent: frozenset[int] = frozenset()
    round: int = 1
    refusals: int = 0
    adverts: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.shape
        self.fleet = Fleet(shape.n, dim=shape.dim, bits=shape.bits)
        self.fleet.draw(self.seed)
        self.rng = np.random.default_rng(self.seed)
        self.transcript = Transcript(self.fleet, self.monkeypatch)
        self.ids = self.fleet.ids
        self.cohort = Cohort(RUN, 1, False, tuple(self.ids))
        counts = shape.drops, shape.losses, shape.colluders
        self.terms = Terms(shape.n, 1, *counts, shape.dim, shape.bits)
        for node in self.present:
            self.adverts[node] = self.advert(node)

    @property
    def colluders(self) -> list[int]:
        return self.ids[self.shape.n - self.shape.colluders :]

    @property
    def honest(self) -> list[int]:
        return self.ids[: self.shape.n - self.shape.colluders]

    @property
    def present(self) -> list[int]:
        return [node for place, node in enumerate(self.ids) if place not in self.absent]

    def advert(self, node: int) -> bytes:
        request = messages.hello_request(RUN, 1)
        return messages.read_hello_reply(self.fleet.answer(RoundStage.HELLO, node, request))

    def mask(
        self,
        node: int,
        *,
        nonce: bytes = bytes(NONCE_BYTES),
        model: bytes = MODEL,
        adverts: Mapping[int, bytes] | None = None,
    ) -> None:
        shown = self.adverts if adverts is None else adverts
        known = {self.ids.index(peer): one for peer, one in shown.items() if peer != node}
        parts = self.cohort.encoded, self.terms.encoded, dict(sorted(known.items()))
        static = static_digest(self.cohort, self.terms)
        self.fleet.model = lambda _: model
        self._try(
            self.transcript.mask, node, SharingRequest(static, self.round, nonce, *parts).encode()
        )

    def ask(self, node: int, included: np.ndarray) -> None:
        self._try(self.transcript.ask, node, np.flatnonzero(included).tolist())

    def _try(self, step: Callable[..., None], node: int, request: Any) -> None:
        try:
            step(node, request)
        except SecAggError:
            self.refusals += 1

    def judged(self) -> tuple[bool, bool, set[int]]:
        """Whether the server learns anything, whether it is anything else than one sum of enough devices, and
        who is in it."""
        found = self.transcript.learnt(self.colluders, self.shape)
        verdict = judge(found)
        [union] = found.any(axis=(1, 3))
        few = verdict.fewest[0] < len(self.honest) - self.shape.drops
        members = {node for node, one in zip(self.honest, union, strict=True) if one}
        return bool(verdict.learns[0]), bool(verdict.breaks[0]) or bool(few), members

    def assert_at_most_one_sum(self) -> bool:
        learns, broken, members = self.judged()
        assert not broken
        assert len({self.transcript.masked[node] for node in members}) == learns
        return learns


def lists_of(attack: Attack, silent: Sequence[int]) -> np.ndarray:
    """A list for each device of the cohort: the true one for most, or any. None of those who gave no key is
    in any."""
    n, drops = attack.shape.n, attack.shape.drops
    lists: np.ndarray = random_lists(attack.rng, 1, n, n, drops)[0]
    if attack.rng.random() < 0.6:
        lists[attack.rng.random(n) < 0.8] = [node not in silent for node in attack.ids]
    lists[:, list(attack.absent)] = False
    return lists


def hostile_round(attack: Attack) -> None:
    """Some devices get other settings, broadcasts or keys than the rest. Lists are shown in between, named
    devices mask later or never, and everybody is asked again with another list."""
    rng = attack.rng
    nonce = rng.bytes(NONCE_BYTES)
    share = rng.choice(
        [0, 0, 0.1, 0.5]
    )  # of devices that are treated differently, in one of three ways
    way = rng.integers(3)
    hidden = attack.present[int(rng.integers(len(attack.present)))]
    fewer = {node: one for node, one in attack.adverts.items() if node != hidden}
    most = attack.shape.drops - len(attack.absent)
    silent = [int(node) for node in rng.permutation(attack.present)[: rng.integers(0, most + 1)]]
    lists = lists_of(attack, silent)
    lists[rng.integers(attack.shape.n)] = False  # a list that is too small
    for node in rng.permutation(attack.present).tolist():
        other = rng.random() < share
        if node not in silent:
            attack.mask(
                node,
                nonce=nonce if other and way == 0 else bytes(NONCE_BYTES),
                model=OTHER_MODEL if other and way == 1 else MODEL,
                adverts=fewer if other and way == 2 else attack.adverts,
            )
            attack.mask(node, nonce=nonce)  # a second vector: refused
        if node in attack.honest and node not in silent and rng.random() < 0.5:
            attack.ask(node, lists[attack.ids.index(node)])
    _ask_everybody(attack, lists)
    _ask_everybody(attack, lists_of(attack, silent))


def _ask_everybody(attack: Attack, lists: np.ndarray) -> None:
    for node in attack.honest:
        if node in attack.transcript.masked:
            attack.ask(node, lists[attack.ids.index(node)])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_hostile_server_learns_one_sum_at_most(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt = refusals = 0
    for seed in range(40):
        absent = range(seed % (shape.drops + 1)) if seed % 3 == 0 else ()
        attack = Attack(shape, monkeypatch, seed, frozenset(absent))
        hostile_round(attack)
        learnt += attack.assert_at_most_one_sum()
        refusals += attack.refusals
    assert learnt >= 8
    assert refusals > 100


def _all_but(attack: Attack, *places: int) -> np.ndarray:
    included = np.ones(attack.shape.n, np.bool_)
    included[list(places)] = False
    return included


def _ask_same(attack: Attack, nodes: Iterable[int], included: np.ndarray) -> None:
    for node in nodes:
        attack.ask(node, included)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_bound_is_reached_by_real_devices(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = Attack(shape, monkeypatch)
    for node in attack.present:
        attack.mask(node)
    gone = range(shape.drops)
    _ask_same(attack, attack.honest[shape.drops :], _all_but(attack, *gone))
    learns, broken, members = attack.judged()
    assert learns
    assert not broken
    assert members == set(attack.honest[shape.drops :])


def _half(nodes: Sequence[int]) -> Sequence[int]:
    return nodes[: len(nodes) // 2]


@pytest.mark.parametrize("what", ["nonce", "model", "adverts"])
def test_halves_with_different_views_give_no_sum(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing at all comes out, although everybody masks, and answers the full list."""
    attack = Attack(SHAPES[3], monkeypatch)
    fewer = dict(list(attack.adverts.items())[1:])
    other: dict[str, Any] = {
        "nonce": b"\x33" * NONCE_BYTES,
        "model": OTHER_MODEL,
        "adverts": fewer,
    }
    for node in attack.ids:
        attack.mask(node, **({what: other[what]} if node not in _half(attack.ids) else {}))
    assert len(attack.transcript.masked) == attack.shape.n
    for node in attack.honest:
        absent = [0] if what == "adverts" and node not in _half(attack.ids) else []
        attack.ask(node, _all_but(attack, *absent))
    assert attack.refusals == 0
    assert attack.judged() == (False, False, set())


def test_two_keys_of_one_device_give_one_sum_without_it_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device that starts again has another key, and signs it. Half of its peers are shown the older one."""
    attack = Attack(SHAPES[3], monkeypatch)
    older = dict(attack.adverts)
    restarted = attack.ids[0]
    attack.fleet.states[restarted] = b""
    attack.adverts[restarted] = attack.advert(restarted)
    assert attack.adverts[restarted] != older[restarted]
    for node in attack.ids:
        attack.mask(node, adverts=older if node in _half(attack.ids) else attack.adverts)
    _ask_same(attack, attack.honest, _all_but(attack))
    assert attack.judged() == (False, False, set())


def _rolled_back(attack: Attack, count: int) -> None:
    """So many devices are put back after their answer, and asked with another list."""
    for node in attack.ids:
        attack.mask(node)
    honest, rest = attack.honest, attack.honest[1:]
    before = dict(attack.fleet.states)
    twice, once = rest[:count], rest[count:]
    _ask_same(attack, [*twice, honest[0], *once[: len(once) // 2]], _all_but(attack))
    attack.fleet.states.update(before)
    _ask_same(attack, [*twice, *once[len(once) // 2 :]], _all_but(attack, 0))


ONE_SECRET = Shape(10, 1, 1, 1, 1, 16)


def _limit(shape: Shape) -> int:
    return shape.n - 2 * (shape.publics + shape.secrets - 1) - 1 - shape.colluders


def test_devices_that_are_put_back_do_no_harm_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attack = Attack(ONE_SECRET, monkeypatch)
    _rolled_back(attack, _limit(ONE_SECRET))
    assert attack.assert_at_most_one_sum()


def test_beyond_the_limit_the_transcript_has_one_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the equations of real devices find a leak when there is one."""
    attack = Attack(ONE_SECRET, monkeypatch)
    _rolled_back(attack, _limit(ONE_SECRET) + 1)
    assert attack.judged()[1]


def test_no_number_is_drawn_for_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one of the same key. So what the server has of two rounds are two systems of equations."""
    attack = Attack(SHAPES[0], monkeypatch)
    drawn, keys = [], []
    for attack.round in (1, 2, 5):
        attack.transcript.equations.clear()
        for node in attack.ids:
            attack.mask(node)
        drawn.append({one for equation in attack.transcript.equations for one in equation.drawn})
        keys.append({key for shared in attack.transcript.keys.values() for key in shared.values()})
    assert attack.refusals == 0
    assert [len(one) for one in drawn] == [attack.shape.n**2] * 3
    assert not (drawn[0] & drawn[1] | drawn[1] & drawn[2] | drawn[2] & drawn[0])
    assert not (keys[0] & keys[1] | keys[1] & keys[2] | keys[2] & keys[0])


def _two_lists(monkeypatch: pytest.MonkeyPatch) -> Attack:
    """Half of the devices are shown a list without the last of the other half."""
    attack = Attack(Shape(7, 1, 0, 0, 12, 16), monkeypatch)
    for node in attack.ids:
        attack.mask(node)
    _ask_same(attack, attack.ids[:3], _all_but(attack, 6))
    _ask_same(attack, attack.ids[3:], _all_but(attack))
    assert attack.refusals == 0
    return attack


def test_two_lists_at_the_border_of_the_rule_give_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    attack = _two_lists(monkeypatch)
    assert attack.shape.secrets == 3
    assert attack.assert_at_most_one_sum()


def test_devices_with_one_secret_more_than_the_rule_allows_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: the same lists."""
    monkeypatch.setattr(Shape, "_most_secrets", 4)
    attack = _two_lists(monkeypatch)
    assert attack.shape.secrets == 4
    assert attack.judged()[1]


@pytest.mark.parametrize("forgotten", ["broadcast", "context"])
def test_numbers_that_forget_what_they_are_for_are_found(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with one input of the hash left out, two halves make one sum."""
    inputs = {"broadcast": lambda context, model: context, "context": lambda context, model: model}
    monkeypatch.setattr(device, "moment_of", inputs[forgotten])
    attack = Attack(SHAPES[3], monkeypatch)
    for node in attack.ids:
        other = (
            {"model": OTHER_MODEL} if forgotten == "broadcast" else {"nonce": b"\x33" * NONCE_BYTES}
        )
        attack.mask(node, **({} if node in _half(attack.ids) else other))
    _ask_same(attack, attack.honest, _all_but(attack))
    with pytest.raises(AssertionError):
        attack.assert_at_most_one_sum()


def test_masked_vectors_without_an_answer_give_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _after_masking(monkeypatch) == (False, False, set())


def test_numbers_without_a_direction_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: if two devices deal the same to each other, masked vectors and published numbers alone give
    a combination of vectors. Nobody has to answer."""

    def without(key: bytes, moment: bytes, dealer: int, holder: int) -> bytes:
        return share_input(key, moment, min(dealer, holder), max(dealer, holder))

    monkeypatch.setattr(device, "share_input", without)
    assert _after_masking(monkeypatch)[:2] == (True, True)


def _after_masking(monkeypatch: pytest.MonkeyPatch) -> tuple[bool, bool, set[int]]:
    attack = Attack(ONE_SECRET, monkeypatch)
    for node in attack.ids:
        attack.mask(node)
    return attack.judged()
