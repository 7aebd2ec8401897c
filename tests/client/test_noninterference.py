"""Non-interference: what leaves a device does not depend on its data, but for the masked vector.

Two worlds of real devices (the real ClientApp, policy, card, ledger, roster) differ in nothing but their data. Both
draw the same randomness and get the same sequence of messages from a hostile server: rounds with crafted models and
configurations, whose messages are lost, repeated, reordered, cut, flipped, sent to others, replayed. Everything that
leaves is compared byte for byte, and so is what the devices keep; the vectors may differ by what clipped rows can
differ, and no more.

Where the unit is the example, the data of one device differ in one record: one more, one fewer, another one, or one
that cannot be read, in arrays, images, tables and texts, or at which a map, a model or a task of a package raises. Then
the vectors of all other devices are equal, and that of this device differs by what one clipped row can.
"""

import math
import random
import resource
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsketch.errors import DataError
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.secagg import Refusal
from fedsketch.tasks.data.bad_records import BadRecords
from fedsketch.tasks.models.features import CACHE_VARIABLE
from tests.client import fragile
from tests.client.hostile_server import (
    CARD,
    COMMON,
    EXAMPLE_POLICY,
    EXAMPLE_RUNS,
    NODES,
    POLICY,
    RUNS,
    SHAPED,
    data_pool,
)
from tests.client.neighbours import REPLACED, Kind, kinds, packages
from tests.client.two_worlds import Dice, Played, Tally, World, difference, enrolled, within
from tests.packages import installing
from tests.secagg.protocol import device as pairwise
from tests.secagg.protocol import two_trips_device as two_trips


def same(one: Played, two: Played) -> None:
    """What left, and what the devices keep, is equal; the vectors differ by what clipped rows can."""
    assert one.grid.told == two.grid.told
    assert one.kept == two.kept
    for first, second in zip(one.grid.vectors, two.grid.vectors, strict=True):
        assert any(within(first, second, mechanism) for mechanism in one.announced)


# So that several processes can share the ten thousand.
QUARTERS = pytest.mark.parametrize("quarter", range(4))
Worlds = tuple[World, World, list[Path | None]]


@pytest.fixture(scope="module")
def dice() -> Dice:
    """The same for all worlds, because it takes the place of the operating system's randomness."""
    return Dice()


@pytest.fixture(scope="module", autouse=True)
def package(
    tmp_path_factory: pytest.TempPathFactory, composed_before: dict[object, object]
) -> Iterator[None]:
    """Installs a package whose task, model and feature map raise for some records, and gives features a place."""
    root = tmp_path_factory.mktemp("package")
    with (
        installing(root, composed_before.clear) as install,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(CACHE_VARIABLE, str(root / "features"))
        install(fragile.PACKAGE, fragile.FILES, fragile.ENTRIES)
        yield


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory, dice: Dice) -> Iterator[Worlds]:
    root = tmp_path_factory.mktemp("worlds")
    with enrolled(root, dice, POLICY, CARD) as (one, two):
        yield one, two, data_pool(root)


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
        tally.add(one, two)
    return tally


def test_what_leaves_a_device_does_not_depend_on_its_data(worlds: Worlds) -> None:
    tally = play(worlds, range(100))
    # Or nothing was tried: many vectors left, and many messages were refused.
    assert tally.vectors > 100
    assert tally.refusals > 100


def test_no_kind_of_run_is_compared_in_vain(worlds: Worlds) -> None:
    """Of each there are vectors that follow from the data, and not noise alone because all training fails."""
    first, second, (good, low, *_) = *worlds[:2], worlds[2][::3]
    for run in RUNS:
        pair = replace(first, runs=(run,)), replace(second, runs=(run,))
        assert _moves(pair, dict.fromkeys(range(2, NODES + 2), good), low), run


def _moves(pair: tuple[World, World], data: dict[int, Path | None], other: Path | None) -> bool:
    """Whether a vector moves in one of these sequences, if one device has other data."""
    for seed in range(40):
        tally = Tally()
        one = pair[0].play(seed, data, hostility=0.0)
        two = pair[1].play(seed, {**data, CHANGED: other}, hostility=0.0)
        tally.add(one, two)
        if tally.moved.total():
            return True
    return False


@pytest.mark.slow
@QUARTERS
def test_what_leaves_a_device_does_not_depend_on_its_data_in_ten_thousand_sequences(
    worlds: Worlds, quarter: int
) -> None:
    start = random.SystemRandom().randrange(2**32)
    print(f"sequences from {start} on: {play(worlds, range(start, start + 2500))}")


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
        return within(first, second, mechanism)
    assert isinstance(mechanism, SkellamRing)
    apart = difference(first, second, mechanism)
    if apart is None:
        return False
    most = rows * mechanism.weight(Unit.EXAMPLE) * mechanism.l2_sensitivity
    if mechanism.unit is Unit.EXAMPLE and not mechanism.rounds_once:
        most += mechanism.rows * math.sqrt(
            mechanism.dim
        )  # the others may be rounded by other random numbers
    return float(np.linalg.norm(apart)) <= most


Neighbours = dict[str, tuple[World, World, Kind]]
CHANGED = 3  # the device in whose data one record differs


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory, dice: Dice) -> Iterator[Neighbours]:
    root = tmp_path_factory.mktemp("neighbours")
    with ExitStack() as stack:
        made = {}
        for name, kind in {**kinds(root), "packages": packages(root)}.items():
            (root / name).mkdir()
            common = (*(key for key in COMMON if key not in SHAPED), *kind.run)
            devices = enrolled(root / name, dice, EXAMPLE_POLICY, kind.card, EXAMPLE_RUNS, common)
            made[name] = (*stack.enter_context(devices), kind)
        yield made


def play_neighbours(neighbours: Neighbours, seeds: Iterable[int], hostility: float = 0.2) -> Tally:
    """Sequences in both worlds, of which one has one record changed."""
    tally = Tally()
    for seed in seeds:
        rng = random.Random(-1 - seed)
        of = rng.choice(sorted(neighbours))
        first, second, kind = neighbours[of]
        data: dict[int, Path | None] = dict.fromkeys(range(2, NODES + 2), kind.usual)
        name = rng.choice(sorted(kind.neighbours))
        others = {**data, CHANGED: kind.neighbours[name]}
        one, two = first.play(seed, data, hostility), second.play(seed, others, hostility)
        # Another record in the place of one is two rows: each is one row from a blank place.
        neighbouring(one, two, rows=2 if name in REPLACED else 1)
        tally.add(one, two, of)
    return tally


def test_one_record_moves_the_vector_of_its_device_by_one_row(neighbours: Neighbours) -> None:
    tally = play_neighbours(neighbours, range(50))
    assert tally.vectors > 50
    assert tally.refusals > 10
    assert tally.moved.total() > 10


def test_no_kind_of_records_is_compared_in_vain(neighbours: Neighbours) -> None:
    for name, (first, second, kind) in neighbours.items():
        usual: dict[int, Path | None] = dict.fromkeys(range(2, NODES + 2), kind.usual)
        for run in EXAMPLE_RUNS:
            pair = replace(first, runs=(run,)), replace(second, runs=(run,))
            assert _moves(pair, usual, kind.neighbours["one more"]), (name, run)


@pytest.mark.slow
@QUARTERS
def test_one_record_moves_the_vector_of_its_device_by_one_row_in_ten_thousand_sequences(
    neighbours: Neighbours, quarter: int
) -> None:
    start = random.SystemRandom().randrange(2**32)
    tally = play_neighbours(neighbours, range(start, start + 2500))
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
    masks = {device: device.mask for device in (pairwise, two_trips)}

    def talking(device: Any, ticket: Any, vector: Any) -> Any:
        if vector[0] % 2:
            raise Refusal("The first number of the vector is odd.")
        return masks[device](ticket, vector)

    def unclipped(device: Any, ticket: Any, vector: Any) -> Any:
        far = vector.astype(np.uint64) * np.uint64(1000) % np.uint64(ticket.settings.modulus)
        return masks[device](ticket, far.astype(vector.dtype))

    for broken in (talking, unclipped):
        for device in masks:
            monkeypatch.setattr(device, "mask", partial(broken, device))
        with pytest.raises(AssertionError):
            play(worlds, range(40))
        monkeypatch.undo()
