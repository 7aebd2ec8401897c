"""Whole runs of DOME: masks change nothing, a stopped run goes on as if it had not been, and what it measures is
told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.small import LARGER, UNMASKED, small

Command = Callable[..., None]
Play = Callable[..., int]
DOME = "strategy=dome strategy.sketch_dim=120 strategy.broadcast=full"
SMALL = small(DOME, "privacy.randomness=seeded", *LARGER)
LEARNING = ["strategy.keep=all", "strategy.warm_up=1"]  # whatever the noise


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def _model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("sketch", ["layerwise", "flat"])
@pytest.mark.parametrize("unit", ["client", "example"])
def test_masks_change_nothing_in_the_model(
    play: Play, tmp_path: Path, unit: str, sketch: str
) -> None:
    """Bit by bit, over a round that sends everything and three that send a sketch."""
    common = [f"privacy={unit}", *LEARNING, f"strategy.sketch={sketch}"]
    play("none", *SMALL, *UNMASKED, *common)
    play("pairwise", *SMALL, "secagg=pairwise", *common)
    assert _model(tmp_path / "pairwise") == _model(tmp_path / "none")
    measured = [
        [(row["sketch_energy"], row["sketch_rank"], row["accuracy"]) for row in _rows(tmp_path / f)]
        for f in ("none", "pairwise")
    ]
    assert measured[0] == measured[1]
    assert measured[0][-1][1] > 0


def test_after_the_warm_up_devices_send_less(play: Play, tmp_path: Path) -> None:
    """610 numbers in the first round and 120 in the others, of 21 bits, because rings of two lengths do not rotate; the
    rest of the traffic is the same."""
    play("run", *SMALL, "secagg=pairwise", "strategy.warm_up=1")
    first, second, third, _ = (row["uplink_bytes"] for row in _rows(tmp_path / "run"))
    assert first - second == pytest.approx(21 / 8 * (610 - 120), rel=0.1)
    assert third == pytest.approx(second, rel=0.02)


@pytest.mark.parametrize("choice", [["secagg=pairwise"], UNMASKED], ids=["pairwise", "none"])
@pytest.mark.parametrize("sketch", ["layerwise", "flat"])
def test_a_stopped_run_ends_exactly_like_an_unbroken_one(
    play: Play, tmp_path: Path, sketch: str, choice: list[str]
) -> None:
    """Sketch, PCA, noise floor and moments are all in the checkpoint."""
    overrides = [*choice, *LEARNING, f"strategy.sketch={sketch}"]
    play("stopped", *SMALL, *overrides, stop_after=2)
    assert len(_rows(tmp_path / "stopped")) == 2
    assert play("stopped", *SMALL, *overrides) == 2
    assert play("whole", *SMALL, *overrides) == 0
    assert _model(tmp_path / "stopped") == _model(tmp_path / "whole")
    ended, unbroken = _rows(tmp_path / "stopped"), _rows(tmp_path / "whole")
    for row in (*ended, *unbroken):  # a resumed server sends the whole, once
        del row["downlink_bytes"], row["uplink_bytes"]
    assert ended == unbroken


def test_the_run_and_its_report_tell_what_the_sketch_sees(
    fedsketch: Command, tmp_path: Path
) -> None:
    fedsketch(*SMALL, *LEARNING, "secagg=pairwise", "hydra.run.dir=run")
    rows = _rows(tmp_path / "run")
    assert rows[0]["sketch_rank"] == 0  # the warm-up
    assert all(1 <= row["sketch_rank"] <= 2 for row in rows[1:])  # a quarter of rank 11
    assert all(row["sketch_energy"] is None or 0 <= row["sketch_energy"] <= 1 for row in rows)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "sketch_rank" in report
    assert "sketch_energy" in report


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["strategy.warm_up=1", "secagg.bits=20"], ["strategy.warm_up", "secagg.bits above 20"]),
        (["strategy.sketch_dim=5"], ["at least 20 numbers", "raise strategy.sketch_dim"]),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    fedsketch: Command, capsys: pytest.CaptureFixture[str], overrides: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        fedsketch(*SMALL, *overrides, "hydra.run.dir=run")
    assert ended.value.code == 1
    sentence = capsys.readouterr().err
    assert sentence.count("\n") == 1
    for word in words:
        assert word in sentence
