"""Devices that have tables: what their card says, which runs they admit, and that what is wrong with a table stays with
its owner."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsketch.client.enroll import main
from fedsketch.client.guard.card import DataCard
from fedsketch.tasks.data.schema import load_schema
from fedsketch.tasks.data.tabular import SCHEMA_VARIABLE
from tests.client.fleet import Fleet, same

SCHEMA = """
columns:
  age: {number: [0, 100]}
  zip: ignore
target: {column: ill, class: ["no", "yes"]}
"""
OTHERS = {
    "other bounds": SCHEMA.replace("100", "120"),
    "another column": SCHEMA.replace("age", "years"),
    "another target": SCHEMA.replace("ill", "well"),
}


def _table(folder: Path, name: str, rows: int = 3, schema: str = SCHEMA) -> Path:
    (folder / f"{name}.schema.yaml").write_text(schema)
    file = folder / f"{name}.csv"
    file.write_text("age,zip,ill\n" + "50,8001,yes\n" * rows)
    return file


def _card(folder: Path, data: Path, *more: str) -> DataCard:
    assert main([str(folder / "device"), "--data", str(data), *more]) == 0
    return DataCard.load(folder / "device" / "data.toml")


def test_the_card_of_a_table_holds_the_fingerprint_of_its_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _table(tmp_path, "own", 37)
    card = _card(tmp_path, data)
    fingerprint = load_schema(tmp_path / "own.schema.yaml").fingerprint
    assert card == DataCard("folder", (1,), ("no", "yes"), 64, "classes", fingerprint)
    for word in ("age", "zip", "ill"):
        assert word not in (tmp_path / "device" / "data.toml").read_text().split()
    elsewhere = (tmp_path / "own.schema.yaml").rename(tmp_path / "mine.yaml")
    assert _card(tmp_path, data, "--schema", str(elsewhere)) == card
    assert main([str(tmp_path / "device"), "--data", str(data)]) == 1
    assert "There is no schema" in capsys.readouterr().err


def test_classes_of_a_table_are_those_of_its_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _table(tmp_path, "own")
    assert main([str(tmp_path / "device"), "--data", str(data), "--classes", "a,b"]) == 1
    assert "--classes is not for tables" in capsys.readouterr().err
    assert main([str(tmp_path / "device"), "--schema", str(data)]) == 1
    assert "go with --data" in capsys.readouterr().err


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, ...]:
    """Of a run whose server has the same schema."""
    (tmp_path / "server.yaml").write_text(SCHEMA.replace("  zip: ignore\n", ""))
    return (f"data.schema={tmp_path / 'server.yaml'}",)


def _attack(fleet: Fleet) -> str:
    return fleet.play(torch.zeros(fleet.strategy.model.size))


@pytest.mark.parametrize(
    "trouble",
    [
        "another age",
        "a broken cell",
        "other bounds",
        pytest.param("more", marks=pytest.mark.slow),
        pytest.param("no schema", marks=pytest.mark.slow),
    ],
)
def test_what_is_wrong_with_a_table_stays_with_its_owner(
    worlds: Any,
    tmp_path: Path,
    keys: tuple[str, ...],
    trouble: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The same sum leaves, and the same is booked; the log of the node says what to repair, but only there."""
    good = _table(tmp_path, "good")
    bad = _table(tmp_path, "bad", 99 if trouble == "more" else 3, OTHERS.get(trouble, SCHEMA))
    if trouble == "another age":
        bad.write_text(bad.read_text().replace("50", "99"))
    elif trouble == "a broken cell":
        bad.write_text(bad.read_text().replace("50", "fifty"))
    elif trouble == "no schema":
        (tmp_path / "bad.schema.yaml").unlink()
    with caplog.at_level(logging.WARNING):
        told = worlds(_attack, good, bad, *keys, card=_card(tmp_path, good))
    same(told)
    assert told[0][0] == "a sum"
    assert (str(bad) in caplog.text) is (trouble in ("other bounds", "no schema"))
    left_out = "Left out of this device's data: 3 records with a cell that is not a number"
    assert (left_out in caplog.text) is (trouble == "a broken cell")
    assert "fifty" not in caplog.text
    for word in ("age", "zip", "fifty", "good", "bad"):
        assert word not in str(told[1][:2]).replace("message", "").replace("stage", "")


@pytest.mark.slow
def test_the_owner_may_keep_the_schema_elsewhere(
    worlds: Any,
    tmp_path: Path,
    keys: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = _table(tmp_path, "good")
    card = _card(tmp_path, good)
    (tmp_path / "good.schema.yaml").rename(tmp_path / "mine.yaml")
    monkeypatch.setenv(SCHEMA_VARIABLE, str(tmp_path / "mine.yaml"))
    same(worlds(_attack, good, good, *keys, card=card))
    assert "Training failed" not in caplog.text


def test_a_run_of_another_schema_is_refused_by_the_card(
    worlds: Any, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    """Whatever the table holds, and whether or not it is there at all; nothing is charged."""
    prints: list[str | None] = [None]  # a run that is for no table
    for what, text in OTHERS.items():
        (tmp_path / f"{what}.yaml").write_text(text)
        prints.append(load_schema(tmp_path / f"{what}.yaml").fingerprint)

    def attack(fleet: Fleet) -> list[str]:
        start = torch.zeros(fleet.strategy.model.size)
        return [fleet.play(start, n + 1, data={"fingerprint": p}) for n, p in enumerate(prints)]

    good = _table(tmp_path, "good")
    card = _card(tmp_path, good)
    told = worlds(attack, good, tmp_path / "nothing.csv", *keys, card=card)
    same(told)
    for end in told[0][0]:
        assert "The run is for data of another kind" in end
    assert all(line["entry"] != "charged" for ledger in told[0][2] for line in ledger)
