"""Non-interference: what leaves a device does not depend on its data, but for the masked vector.

Two worlds of real devices (the real ClientApp, policy, card, ledger, roster) differ in nothing but their data. Both
draw the same randomness and get the same sequence of messages from a hostile server: rounds with crafted models and
configurations, whose messages are lost, repeated, reordered, cut, flipped, sent to others, replayed. Everything that
leaves is compared byte for byte, and so is what the devices keep; the vectors may differ by what clipped rows can
differ, and no more.

Where the unit is the example, the data of one device differ in one record: one more, one fewer, another one, or one
that cannot be read, in arrays, images, tables and texts. Then the vectors of all other devices are equal, and that of
this device differs by what one clipped row can.
"""

import hashlib
import logging
import math
import os
import random
import resource
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsketch.client.app import make_app
from fedsketch.client.enroll import enrol
from fedsketch.client.guard import ledger
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.policy import Policy
from fedsketch.errors import DataError
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms import randomness
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.secagg import Refusal, centred
from fedsketch.tasks.data.bad_records import BadRecords
from tests.client.hostile_server import (
    CARD,
    COMMON,
    EXAMPLE_POLICY,
    EXAMPLE_RUNS,
    NODES,
    POLICY,
    RUNS,
    SHAPED,
    Hostile,
    attack,
    data_pool,
)
from tests.client.neighbours import REPLACED, Kind, kinds
from tests.secagg.protocol import device, keys, packed_size, unpack


# ---------------------------------------------------------------------------- two worlds
class Dice:
    """The operating system's randomness, made repeatable: what is drawn follows from the sequence, the number of the
    message, who asks, and how often it has asked. So a device that draws once more in one place draws the same as
    before in all others."""

    def __init__(self) -> None:
        self._moment: tuple[int, int] = (0, 0)
        self._asked: dict[str, int] = {}

    def turn(self, seed: int, message: int) -> None:
        self._moment, self._asked = (seed, message), {}

    def draw(self, size: int) -> bytes:
        caller = sys._getframe(1)
        while caller.f_back is not None and caller.f_code.co_filename == __file__:
            caller = caller.f_back
        place = f"{caller.f_code.co_filename}:{caller.f_code.co_name}"
        self._asked[place] = self._asked.get(place, 0) + 1
        if caller.f_globals["__name__"] == randomness.__name__:
            # A device that fails late has drawn noise twice: let it be the same.
            self._asked[place] = 1
        label = f"{self._moment} {place} {self._asked[place]}".encode()
        return hashlib.shake_256(label).digest(size)

    def below(self, bound: int) -> int:
        return int.from_bytes(self.draw((bound.bit_length() + 7) // 8 + 16), "big") % bound


@dataclass
class World:
    """Devices that are put back to their first day before every sequence."""

    root: Path
    pristine: dict[Path, bytes]
    dice: Dice
    runs: Sequence[tuple[str, ...]] = RUNS
    common: tuple[str, ...] = tuple(COMMON)
    app: Any = field(default_factory=make_app)

    def play(self, seed: int, data: dict[int, Path | None], hostility: float) -> "Played":
        folders = {node: self.root / f"device{node}" for node in data}
        for path in [file for folder in folders.values() for file in folder.iterdir()]:
            path.unlink()
        for path, content in self.pristine.items():
            path.write_bytes(content)
            path.chmod(0o600)
        rng = random.Random(seed)
        grid = Hostile(self.app, folders, data, rng, lambda number: self.dice.turn(seed, number))
        self.dice.turn(seed, 0)
        announced = attack(grid, rng, hostility, self.runs, self.common)
        files = (path for path in sorted(self.root.rglob("*")) if path.is_file())
        kept = {str(path.relative_to(self.root)): path.read_bytes() for path in files}
        return Played(grid, kept, announced)


@dataclass
class Played:
    grid: Hostile
    kept: dict[str, bytes]
    announced: list[Mechanism]


def same(one: Played, two: Played) -> None:
    """What left, and what the devices keep, is equal; the vectors differ by what clipped rows can."""
    assert one.grid.told == two.grid.told
    assert one.kept == two.kept
    for first, second in zip(one.grid.vectors, two.grid.vectors, strict=True):
        assert any(_within(first, second, mechanism) for mechanism in one.announced)


def _within(first: bytes, second: bytes, mechanism: Mechanism) -> bool:
    """Whether two vectors under equal masks and noise could be two sums of clipped rows."""
    assert mechanism.ring is not None
    dim, bits, modulus = mechanism.ring
    size = packed_size(dim, bits)
    if len(first) < size:
        return False
    numbers = [unpack(data[-size:], dim, bits) for data in (first, second)]
    apart = centred(numbers[0] - numbers[1], modulus).astype(np.float64)
    # The noise is inside, so an upload is anything that fits the ring.
    if isinstance(mechanism, NoisyTraining):
        return float(np.abs(apart).max()) <= 2 * (mechanism.limit * mechanism.scale + 1)
    assert isinstance(mechanism, SkellamRing)
    return float(np.linalg.norm(apart)) <= 2 * mechanism.rows * mechanism.l2_sensitivity


Worlds = tuple[World, World, list[Path | None]]


@contextmanager
def _enrolled(
    root: Path, dice: Dice, policy: Policy, card: DataCard, *attacked: Any
) -> Iterator[tuple[World, World]]:
    """Two worlds of devices with this policy and this card."""
    (root / "policy.toml").write_text(policy.to_toml())
    folders = {node: root / "here" / f"device{node}" for node in range(2, NODES + 2)}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SIMULATION_VARIABLE, raising=False)
        patch.setattr(ledger, "_now", lambda: "2026-01-01T00:00:00+00:00")
        patch.setattr(os, "fsync", lambda _: None)  # nothing is cut off here
        for node, folder in folders.items():
            enrol(folder, node, root / "roster.json", root / "policy.toml", card)
        for folder in folders.values():
            enrol(folder, roster=root / "roster.json")
        patch.setattr(os, "urandom", dice.draw)
        patch.setattr(secrets, "randbelow", dice.below)
        patch.setattr(keys, "new_private", lambda: dice.draw(32))
        logging.disable(logging.CRITICAL)  # thousands of failures are the point
        # In one place, one after the other, so that paths are equal too.
        pristine = {file: file.read_bytes() for file in (root / "here").rglob("*.*")}
        yield tuple(World(root / "here", pristine, dice, *attacked) for _ in range(2))  # type: ignore[misc]
        logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def dice() -> Dice:
    """The same for all worlds, because it takes the place of the operating system's randomness."""
    return Dice()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory, dice: Dice) -> Iterator[Worlds]:
    root = tmp_path_factory.mktemp("worlds")
    with _enrolled(root, dice, POLICY, CARD) as (one, two):
        yield one, two, data_pool(root)


@dataclass
class Tally:
    """How much was tried."""

    sequences: int = 0
    messages: int = 0
    vectors: int = 0
    refusals: int = 0
    moved: int = 0
    slowest: float = 0.0


def play(worlds: Worlds, seeds: Iterable[int], hostility: float = 0.3) -> Tally:
    """Sequences in both worlds, compared."""
    first, second, pool = worlds
    tally = Tally()
    for seed in seeds:
        rng, nodes = random.Random(-1 - seed), range(2, NODES + 2)
        data = {node: rng.choice(pool) for node in nodes}
        others = {node: rng.choice(pool) for node in nodes}
        one, two = first.play(seed, data, hostility), second.play(seed, others, hostility)
        same(one, two)
        tally.sequences += 1
        tally.messages += one.grid.delivered
        tally.vectors += len(one.grid.vectors)
        tally.refusals += sum("refusal" in str(told) for told in one.grid.told)
        tally.slowest = max(tally.slowest, one.grid.slowest, two.grid.slowest)
    return tally


def test_what_leaves_a_device_does_not_depend_on_its_data(worlds: Worlds) -> None:
    tally = play(worlds, range(100))
    # Or nothing was tried: many vectors left, and many messages were refused.
    assert tally.vectors > 100
    assert tally.refusals > 100


@pytest.mark.slow
def test_what_leaves_a_device_does_not_depend_on_its_data_in_ten_thousand_sequences(
    worlds: Worlds,
) -> None:
    start = random.SystemRandom().randrange(2**32)
    print(f"sequences from {start} on: {play(worlds, range(start, start + 10_000))}")


# ---------------------------------------------------------------------------- one record
def neighbouring(one: Played, two: Played, rows: int) -> None:
    """Everything is equal but the vectors of one device, and these are as far apart as this many clipped rows."""
    assert one.grid.told == two.grid.told
    assert one.kept == two.kept
    pairs = zip(one.grid.vectors, two.grid.vectors, one.grid.senders, strict=True)
    for first, second, node in pairs:
        if node != CHANGED:
            assert first == second
        else:
            assert any(_rows_apart(first, second, mechanism, rows) for mechanism in one.announced)


def _rows_apart(first: bytes, second: bytes, mechanism: Mechanism, rows: int) -> bool:
    """Whether two vectors under equal masks and noise could be sums that differ in this many clipped rows. With noise
    inside of training a record also moves the gradients of later steps, which the noise of each step hides."""
    if isinstance(mechanism, NoisyTraining):
        return _within(first, second, mechanism)
    assert isinstance(mechanism, SkellamRing)
    dim, bits, modulus = mechanism.ring
    size = packed_size(dim, bits)
    if len(first) < size:
        return False
    numbers = [unpack(data[-size:], dim, bits) for data in (first, second)]
    apart = centred(numbers[0] - numbers[1], modulus).astype(np.float64)
    most = rows * mechanism.weight(Unit.EXAMPLE) * mechanism.l2_sensitivity
    if mechanism.unit is Unit.EXAMPLE and not mechanism.rounds_once:
        most += mechanism.rows * math.sqrt(dim)  # the others may be rounded by other random numbers
    return float(np.linalg.norm(apart)) <= most


Neighbours = dict[str, tuple[World, World, Kind]]
CHANGED = 3  # the device in whose data one record differs


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory, dice: Dice) -> Iterator[Neighbours]:
    root = tmp_path_factory.mktemp("neighbours")
    with ExitStack() as stack:
        made = {}
        for name, kind in kinds(root).items():
            (root / name).mkdir()
            common = (*(key for key in COMMON if key not in SHAPED), *kind.run)
            enrolled = _enrolled(root / name, dice, EXAMPLE_POLICY, kind.card, EXAMPLE_RUNS, common)
            made[name] = (*stack.enter_context(enrolled), kind)
        yield made


def play_neighbours(neighbours: Neighbours, seeds: Iterable[int], hostility: float = 0.2) -> Tally:
    """Sequences in both worlds, of which one has one record changed."""
    tally = Tally()
    for seed in seeds:
        rng = random.Random(-1 - seed)
        first, second, kind = neighbours[rng.choice(sorted(neighbours))]
        data: dict[int, Path | None] = dict.fromkeys(range(2, NODES + 2), kind.usual)
        name = rng.choice(sorted(kind.neighbours))
        others = {**data, CHANGED: kind.neighbours[name]}
        one, two = first.play(seed, data, hostility), second.play(seed, others, hostility)
        # Another record in the place of one is two rows: each is one row from a blank place.
        neighbouring(one, two, rows=2 if name in REPLACED else 1)
        tally.sequences += 1
        tally.messages += one.grid.delivered
        tally.vectors += len(one.grid.vectors)
        tally.refusals += sum("refusal" in str(told) for told in one.grid.told)
        tally.moved += sum(a != b for a, b in zip(one.grid.vectors, two.grid.vectors, strict=True))
    return tally


def test_one_record_moves_the_vector_of_its_device_by_one_row(neighbours: Neighbours) -> None:
    tally = play_neighbours(neighbours, range(50))
    assert tally.vectors > 50
    assert tally.refusals > 10
    assert tally.moved > 10


@pytest.mark.slow
def test_one_record_moves_the_vector_of_its_device_by_one_row_in_ten_thousand_sequences(
    neighbours: Neighbours,
) -> None:
    start = random.SystemRandom().randrange(2**32)
    tally = play_neighbours(neighbours, range(start, start + 10_000))
    print(f"sequences from {start} on: {tally}")


def test_a_device_on_which_one_record_silences_the_others_is_found(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: before, a bad record was an error of all the data."""

    def fragile(bad: BadRecords) -> None:
        if bad.faults:
            raise DataError("A record is bad.")

    monkeypatch.setattr(BadRecords, "report", fragile)
    with pytest.raises(AssertionError):
        play_neighbours(neighbours, range(50))


@pytest.mark.parametrize(
    "settings", [40, pytest.param(1000, marks=pytest.mark.slow)], ids=["40", "1000"]
)
def test_hostile_settings_cost_little(worlds: Worlds, settings: int) -> None:
    """Every message is answered within two seconds of the processor, and all together within 300 MiB."""
    play(worlds, range(5))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tally = play(worlds, range(10_000, 10_000 + settings), hostility=1.0)
    assert tally.slowest < 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB


def test_a_device_that_talks_is_found(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: each of these devices tells something of its data, in one of its answers."""
    mask = device.mask

    def talking(ticket: Any, vector: Any) -> Any:
        if vector[0] % 2:
            raise Refusal("The first number of the vector is odd.")
        return mask(ticket, vector)

    def unclipped(ticket: Any, vector: Any) -> Any:
        return mask(ticket, vector * np.uint32(1000))

    for broken in (talking, unclipped):
        monkeypatch.setattr(device, "mask", broken)
        with pytest.raises(AssertionError):
            play(worlds, range(40))
        monkeypatch.undo()
