"""A server that sends real devices bad steps (`strategy.broadcast=replay`): refused before anything is charged."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from fedsketch.delivery.parcels import Parcels, steps_parcel
from fedsketch.delivery.records import PARCEL
from fedsketch.delivery.steps import Step
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.strategies.algorithm import Aggregate
from fedsketch.tasks.data.folder import DATA_VARIABLE
from tests.client.fleet import NODES, Fleet, npz

SGM = ("strategy=fed_sgm", "strategy.sketch_dim=4")
COMMON = ("strategy=csgm", "strategy.mask=common", "strategy.rate=0.4", "secagg=pairwise")


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fleet]:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    monkeypatch.setenv(DATA_VARIABLE, str(npz(tmp_path / "data.npz", 0.5)))

    def build(*overrides: str) -> Fleet:
        made = Fleet(tmp_path, (*overrides, "privacy=client"))
        assert made.strategy.parcels is not None
        return made

    return build


def _advance(fleet: Fleet, server_round: int) -> None:
    length = fleet.strategy.upload_length(server_round)
    fleet.strategy.update(server_round, Aggregate(torch.ones(length), NODES, 0.1))


def _play(fleet: Fleet, server_round: int) -> str:
    return fleet.play(fleet.strategy.model.vector.clone(), server_round)


BAD = {
    "of another length": [Step(1, torch.ones(7), 0.0)],
    "without numbers": [Step(1, torch.empty(0), 0.0)],
    "longer than the model": [Step(r, torch.ones(4), 0.0) for r in range(1, 9)],
    "too many": [Step(r, torch.empty(0), 0.0) for r in range(1, 1002)],
    "not finite": [Step(1, torch.full((4,), torch.nan), 0.0)],
    "of another mean": [Step(1, torch.zeros(4), 0.0)],
}


@pytest.mark.parametrize("run", [SGM, COMMON], ids=["fed_sgm", "csgm"])
def test_honest_steps_are_followed(fleet: Callable[..., Fleet], run: tuple[str, ...]) -> None:
    made = fleet(*run)
    empty = made.ledgers()
    assert _play(made, 1) == "a sum"
    _advance(made, 1)
    assert _play(made, 2) == "a sum"
    assert all(before != now for before, now in zip(empty, made.ledgers(), strict=True))
    parcels = [content for content, _ in made.grid.sent if PARCEL in content]
    assert any(content.config_records[PARCEL].get("steps") for content in parcels)
    assert all(content.array_records == {} for content in parcels)  # nobody was sent the model


@pytest.mark.parametrize("run", [SGM, COMMON], ids=["fed_sgm", "csgm"])
@pytest.mark.parametrize("bad", BAD)
def test_bad_steps_are_refused_before_anything_is_charged(
    fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch, run: tuple[str, ...], bad: str
) -> None:
    """The server also has nothing better for devices that ask for the whole."""
    made = fleet(*run)
    _advance(made, 1)
    before = made.ledgers()
    parcel = steps_parcel(0, BAD[bad])
    monkeypatch.setattr(Parcels, "parcel", lambda self, version: parcel)
    monkeypatch.setattr(Parcels, "whole", lambda self: parcel)
    assert _play(made, 2) != "a sum"
    assert made.ledgers() == before


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 20, b"\x00" * 19])
def test_bytes_that_are_no_steps_are_refused(
    fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    made = fleet(*SGM)
    _advance(made, 1)
    before = made.ledgers()
    parcel = RecordDict({PARCEL: ConfigRecord({"held": 0, "steps": content})})
    monkeypatch.setattr(Parcels, "parcel", lambda self, version: parcel)
    monkeypatch.setattr(Parcels, "whole", lambda self: parcel)
    assert _play(made, 2) != "a sum"
    assert made.ledgers() == before
