"""A device reads record by record: one that cannot be used leaves its place blank, and logs repeat nothing of it."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError
from fedsketch.tasks.data import folder
from fedsketch.tasks.data.bad_records import BadRecords, one_record
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.data.schema import load_schema
from fedsketch.tasks.data.tabular import SCHEMA_VARIABLE, read_examples
from tests.client.neighbours import BOUND, REPLACED, Kind, kinds

Read = Callable[..., Examples]
CONTENTS = ("fifty", "maybe", "7.0", "nan", "0extra", "number 1 ", "abc", "png", "txt")


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    return kinds(tmp_path_factory.mktemp("data"))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    def call(kind: Kind, path: Path, most: int | None = BOUND) -> Examples:
        card = kind.card
        monkeypatch.setenv(folder.DATA_VARIABLE, str(path))
        if card.schema and path.is_dir():
            monkeypatch.setenv(SCHEMA_VARIABLE, str(path.parent / "texts.yaml"))
        else:
            monkeypatch.delenv(SCHEMA_VARIABLE, raising=False)
        return folder.own(
            card.shape, card.classes, Targets(card.targets), most, card.schema or None
        )

    return call


@pytest.mark.parametrize("kind", ["arrays", "images", "table", "texts"])
def test_the_other_records_are_read_as_if_nothing_were_wrong(
    every: dict[str, Kind], read: Read, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = every[kind]
    usual = read(own, own.usual)
    assert usual.present.all()
    assert not caplog.text
    for name, path in own.neighbours.items():
        if name in (*REPLACED, "one more", "one fewer"):
            continue
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = read(own, path)
        assert int((~found.present).sum()) == 1, name
        same = usual.only(found.present).there() if len(found) == len(usual) else usual
        assert torch.equal(found.there().inputs, same.inputs), name
        assert torch.equal(found.there().targets, same.targets), name
        assert not found.inputs[~found.present].any()
        assert not found.targets[~found.present].any()
        assert "Left out of this device's data: 1 record " in caplog.text
        for content in CONTENTS:
            assert content not in caplog.messages[0], name


@pytest.mark.parametrize("kind", ["arrays", "images", "table", "texts"])
def test_records_beyond_the_card_are_none(
    every: dict[str, Kind], read: Read, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = every[kind]
    usual, few = read(own, own.usual), read(own, own.usual, 3)
    assert len(few) == 3
    assert torch.equal(few.inputs, usual.inputs[:3])
    assert "more records than the 3 that its data card has room for" in caplog.text


@pytest.mark.parametrize("kind", ["images", "table", "texts"])
def test_owners_and_servers_are_told_what_is_wrong(every: dict[str, Kind], kind: str) -> None:
    own = every[kind]
    for name, path in own.neighbours.items():
        if name in ("one more", "one fewer", "another"):
            continue
        with pytest.raises(DataError, match=path.stem):
            _strictly(own, path)


def _strictly(own: Kind, path: Path) -> Examples:
    if not own.card.schema:
        return folder.read(path, own.card.shape, own.card.classes)
    schema = path.parent / ("texts.yaml" if path.is_dir() else "rows.schema.yaml")
    return read_examples(path, load_schema(schema))


def test_a_quote_that_is_never_closed_takes_no_other_record_along(tmp_path: Path) -> None:
    """A text may have several lines; a broken one ends with its first line."""
    (tmp_path / "a.schema.yaml").write_text(
        'columns: {x: {number: [0, 10]}, t: {text: 8}}\ntarget: {column: y, class: ["0", "1"]}\n'
    )
    (tmp_path / "a.csv").write_text(
        'x,t,y\n1,"two\nlines",1\n2,"never closed,0\n3,"good",1\n\n4,"also, good",0\n'
    )
    bad = BadRecords()
    found = read_examples(tmp_path / "a.csv", load_schema(tmp_path / "a.schema.yaml"), bad)
    assert found.present is not None
    assert found.present.tolist() == [True, False, True, True]
    assert found.targets.tolist() == [1, 0, 1, 0]
    assert found.there().inputs[:, 0].tolist() == pytest.approx([-0.8, -0.4, -0.2])


def test_an_npz_without_all_of_its_targets(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.ones((4, 2), np.float32), targets=np.array([1, 0, 1]))
    found = folder.read(tmp_path / "a.npz", (2,), ("0", "1"), bad=BadRecords())
    assert found.present is not None
    assert found.present.tolist() == [True, True, True, False]


def test_numbers_and_labels_that_are_not_finite(tmp_path: Path) -> None:
    inputs = np.ones((4, 2), np.float32)
    np.savez(tmp_path / "n.npz", inputs=inputs, targets=np.array([0.5, np.nan, 1e300, 3]))
    found = folder.read(tmp_path / "n.npz", (2,), ("0",), Targets.NUMBERS, BadRecords())
    assert found.present is not None
    assert found.present.tolist() == [True, False, False, True]
    labels = np.array([[0, 1], [np.inf, 0], [1, 1], [0, 0]])
    np.savez(tmp_path / "l.npz", inputs=inputs, targets=labels)
    found = folder.read(tmp_path / "l.npz", (2,), ("a", "b"), Targets.LABELS, BadRecords())
    assert found.present is not None
    assert found.present.tolist() == [True, False, True, True]


def test_places() -> None:
    examples = Examples(torch.arange(6.0).view(3, 2), torch.tensor([1, 2, 3]))
    assert examples.there() is examples
    padded = examples.only(torch.tensor([True, False, True])).padded(4)
    assert padded.present is not None
    assert padded.present.tolist() == [True, False, True, False]
    assert padded.there().targets.tolist() == [1, 3]
    assert padded.inputs[3].tolist() == [0, 0]
    assert len(examples.take(torch.arange(0)).padded(4)) == 4
    assert len(padded.padded(4)) == 4


def test_a_log_lists_ten_places_of_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    bad = BadRecords()
    for place in range(12):
        with one_record(bad, place, "of a kind"):
            raise ValueError("secret")
    with pytest.raises(ValueError, match="secret"), one_record(None, 0, "of a kind"):
        raise ValueError("secret")
    bad.report()
    assert "12 records of a kind (number 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and others)" in caplog.text
    assert "secret" not in caplog.text
