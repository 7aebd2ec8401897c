"""Where the unit is the example, one record moves what a device sends by no more than one clip, whatever it holds.

Before, a record more than `mechanism.rows` had room for silenced all others (37 clips for the 41st record of a round
for 40), and so did a record that could not be read, of any kind of data (37 clips of 40 records). A model of a hostile
server could make the rounding of a matrix product as large as a clip, and the number of records decides how a product
is rounded (1.9 clips for the second record).
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedsketch.client.guard.card import DataCard
from fedsketch.privacy.simulation import SEED_VARIABLE, SIMULATION_VARIABLE
from fedsketch.strategies.rounds.evaluation import FederatedEvaluation
from tests.client.fleet import POLICY, Fleet, same
from tests.client.neighbours import BOUND, REPLACED, Kind, kinds
from tests.client.one_record import EXAMPLE, FEDPCDP, Asked, without_noise

OWNER = replace(POLICY, unit="example")
EVALUATED = ("evaluation=federated", "evaluation.groups=1", "evaluation.epsilon=20")
CARD = DataCard("folder", (1, 2, 2), ("0", "1"), 64)
# One clip, what rounding may add, and what noise inside of training rounds.
ONE = 1.01

Made = Callable[..., Fleet]


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)

    def make(*overrides: str, card: DataCard = CARD) -> Fleet:
        bound = f"data.largest_shard={card.largest_shard}"
        return Fleet(tmp_path_factory.mktemp("fleet"), (bound, *overrides), card, OWNER)

    return make


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    return kinds(tmp_path_factory.mktemp("data"))


def _images(path: Path, count: int, shape: tuple[int, ...] = (1, 2, 2)) -> Path:
    inputs = np.random.default_rng(0).random((300, *shape), dtype=np.float32)[:count]
    np.savez(path, inputs=inputs, targets=np.zeros(count, np.int64))
    return path


def _zeros(fleet: Fleet) -> torch.Tensor:
    return torch.zeros(fleet.strategy.model.size)


# ---------------------------------------------------------------------------- rounds with too little room
@pytest.mark.parametrize("run", [EXAMPLE, FEDPCDP, (*EXAMPLE, *EVALUATED)])
def test_a_round_with_room_for_fewer_records_than_the_card_says_is_refused(
    worlds: Any, tmp_path: Path, run: tuple[str, ...]
) -> None:
    """The card alone decides, before anything is charged. The message claims the right bound, the mechanism has
    another."""

    def attack(fleet: Fleet) -> str:
        if EVALUATED[0] in run:
            fleet.strategy = FederatedEvaluation(fleet.strategy)  # type: ignore[assignment]
        return fleet.play(_zeros(fleet), data={"largest_shard": 64})

    few, many = (_images(tmp_path / f"{count}.npz", count) for count in (40, 41))
    told = worlds(attack, few, many, *run, "data.largest_shard=40", card=CARD, policy=OWNER)
    same(told)
    assert "has room for 40 examples of a device" in told[0][0]
    assert not any(line["entry"] == "charged" for ledger in told[0][2] for line in ledger)


def test_a_round_with_more_room_than_the_card_says_is_accepted(worlds: Any, tmp_path: Path) -> None:
    few, many = (_images(tmp_path / f"{count}.npz", count) for count in (40, 200))

    def attack(fleet: Fleet) -> str:
        return fleet.play(_zeros(fleet))

    told = worlds(attack, few, many, *EXAMPLE, "data.largest_shard=99", card=CARD, policy=OWNER)
    same(told)
    assert told[0][0] == "a sum"


# ---------------------------------------------------------------------------- how far one record moves the vector
@pytest.mark.parametrize("run", [EXAMPLE, FEDPCDP])
@pytest.mark.parametrize("count", [0, 1, 40, 63, 64, 200])
def test_one_record_more_moves_one_clip(
    fleet: Made, tmp_path: Path, run: tuple[str, ...], count: int
) -> None:
    """Also beyond the bound of the card, where a record has no place. In a fine ring, so that rounding hides none."""
    devices = fleet(*run, "secagg.bits=32")
    asked = Asked(devices, _zeros(devices))
    moved = asked.clips(
        _images(tmp_path / "fewer.npz", count), _images(tmp_path / "more.npz", count + 1)
    )
    assert moved <= ONE
    assert (moved > 0.5) == (count < 64)  # or nothing was measured


def test_a_message_that_claims_more_room_takes_no_more_records(fleet: Made, tmp_path: Path) -> None:
    """The owner's card says how many count, so a server cannot search for their number."""
    devices = fleet(*EXAMPLE)
    asked = Asked(devices, _zeros(devices), largest_shard=99)
    few, many = (_images(tmp_path / f"{count}.npz", count) for count in (64, 90))
    assert asked.clips(few, many) <= 0.01


@pytest.mark.parametrize("run", [EXAMPLE, FEDPCDP])
@pytest.mark.parametrize("kind", ["arrays", "images", "table", "texts"])
def test_a_record_that_is_bad_moves_one_clip(
    fleet: Made, every: dict[str, Kind], kind: str, run: tuple[str, ...]
) -> None:
    own = every[kind]
    devices = fleet(*run, *own.run, card=own.card)
    asked = Asked(devices, _zeros(devices))
    with without_noise():
        usual = asked.norm(own.usual)
    assert usual > 1.5  # the device is not silent
    for name, data in own.neighbours.items():
        moved = asked.clips(own.usual, data)
        # Two different records in one place are two clips apart: each is one clip from a blank place.
        assert moved <= (2 * ONE if name in REPLACED else ONE), name


@pytest.mark.parametrize("kind", ["arrays", "images", "table", "texts"])
def test_a_record_that_is_bad_moves_one_row_of_an_evaluation(
    fleet: Made, every: dict[str, Kind], kind: str
) -> None:
    """And one more or less does not change which of the others are held out."""
    own = every[kind]
    devices = fleet(*EXAMPLE, *EVALUATED, "evaluation.held_out=0.6", *own.run, card=own.card)
    trained, evaluated = (
        Asked(devices, _zeros(devices), strategy)
        for strategy in (devices.strategy, FederatedEvaluation(devices.strategy))
    )
    assert trained.mechanism.rows == evaluated.mechanism.rows == BOUND
    for name, data in own.neighbours.items():
        moved = trained.clips(own.usual, data), evaluated.clips(own.usual, data)
        assert sum(moved) <= (2 * ONE if name in REPLACED else ONE), name


def test_a_model_that_blows_up_rounding_moves_one_clip(fleet: Made, tmp_path: Path) -> None:
    """Hidden units w and 3 w, whose outputs cancel but for their rounding, times 1e9: the label that the model gives
    follows from the last bits of a product, and these follow from its number of rows."""
    card = replace(CARD, shape=(1, 4, 4))
    devices = fleet(*EXAMPLE, "model=mlp", "data.shape=[1,4,4]", card=card)
    model, layout = _zeros(devices), devices.strategy.model.layout
    first, bias, last, _ = layout
    units = bias.stop - bias.start
    weights = torch.rand(units, 16, generator=torch.Generator().manual_seed(3))
    weights[units // 2 :] = 3 * weights[: units // 2]
    signs = torch.ones(2, units)
    signs[0, units // 2 :] = -1 / 3
    signs[1] = 0
    model[first.start : first.stop] = weights.flatten()
    model[last.start : last.stop] = 1e9 * signs.flatten()
    asked = Asked(devices, model)
    data = {count: _images(tmp_path / f"{count}.npz", count, (1, 4, 4)) for count in range(1, 10)}
    assert max(asked.clips(data[n], data[n + 1]) for n in range(1, 9)) <= ONE


@pytest.mark.parametrize("run", [EXAMPLE, (*EXAMPLE, "strategy=dp_fedavg"), FEDPCDP])
def test_a_record_on_which_the_model_overflows_silences_no_other(
    fleet: Made, tmp_path: Path, run: tuple[str, ...]
) -> None:
    """Its gradient is nan, and counts as zeros. If it silenced the device, it would move the vector by all records."""
    devices = fleet(*run)
    asked = Asked(devices, torch.ones(devices.strategy.model.size))
    usual, huge = _images(tmp_path / "usual.npz", 40), _images(tmp_path / "huge.npz", 40)
    inputs = np.load(huge)["inputs"]
    inputs[7] = 3e38
    np.savez(huge, inputs=inputs, targets=np.zeros(40, np.int64))
    with without_noise():
        assert asked.norm(usual) > 10.0
    assert 0.5 < asked.clips(usual, huge) <= ONE


# ---------------------------------------------------------------------------- the distribution of the vector
@pytest.mark.parametrize("run", [EXAMPLE, FEDPCDP])
@pytest.mark.parametrize("neighbour", ["one more", "nan"])
def test_the_vector_of_a_neighbour_is_the_same_noise_moved_by_one_clip(
    fleet: Made,
    every: dict[str, Kind],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    run: tuple[str, ...],
    neighbour: str,
) -> None:
    """Along the direction in which the two differ: as many samples of each, compared by a test of Kolmogorov and
    Smirnov. Their means are at most a clip apart, and moved by it they have one distribution."""
    own = every["arrays"]
    caplog.set_level(logging.ERROR)  # hundreds of bad records
    devices = fleet(*run, *own.run, card=own.card)
    asked = Asked(devices, _zeros(devices))
    pair = own.usual, own.neighbours[neighbour]
    with without_noise():
        apart = asked.vector(pair[1]) - asked.vector(pair[0])
    moved = float(np.linalg.norm(apart))
    assert 0.5 <= moved / asked.clip <= ONE
    samples = []
    for world, data in enumerate(pair):
        made = []
        for number in range(100):
            monkeypatch.setenv(SEED_VARIABLE, str(1000 * world + number))
            made.append(asked.vector(data) @ apart / moved)
        samples.append(np.array(made))
    one, two = samples
    assert stats.ks_2samp(one + moved, two).pvalue > 0.01
    assert 0.5 < one.std() / two.std() < 2.0
    assert one.std() > 0.3 * asked.clip  # or it is no noise that is compared


def test_a_device_whose_records_are_all_bad_sends_what_one_without_records_sends(
    fleet: Made, tmp_path: Path
) -> None:
    devices = fleet(*EXAMPLE)
    asked = Asked(devices, _zeros(devices))
    np.savez(
        tmp_path / "bad.npz", inputs=np.full((3, 1, 2, 2), np.nan, np.float32), targets=[0] * 3
    )
    assert asked.clips(_images(tmp_path / "none.npz", 0), tmp_path / "bad.npz") == 0.0
