"""The page of results: from a few records, resumed after an interrupt, and played again where a preset has changed."""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import results
import run_store
from presets import PANELS
from results_cells import Results
from results_page import verdicts
from run_store import Runs, fingerprint, read_records

from fedsketch.conf import compose

SERVER = PANELS[0]


def _record(name: str, epsilon: float, seed: int, accuracy: float, up: float) -> dict[str, Any]:
    overrides = [f"experiment={name}", "data=mnist", f"privacy.epsilon={epsilon:g}", f"seed={seed}"]
    return {
        **{"overrides": overrides, "config": "0" * 16, "accuracy": accuracy, "rounds": 10},
        **{"uplink_bytes": 10 * up, "downlink_bytes": 10 * up, "parameters": 25450, "numbers": 64},
        **{"processor_seconds_per_round": 0.5, "noise_multiplier": 9.0},
    }


def _records() -> list[dict[str, Any]]:
    """The full dimension, one that is ahead at epsilon 0.5, level at 2 and behind at 8, and one with a single seed."""
    cells = {
        ("dp_fedavg", 0.5): (50.0, 51.0, 52.0),
        ("dp_fedavg", 2): (70.0, 71.0, 72.0),
        ("dp_fedavg", 8): (80.0, 80.1, 80.2),
        ("dome", 0.5): (60.0, 61.0, 62.0),
        ("dome", 2): (70.5, 71.5, 72.5),
        ("dome", 8): (75.0, 75.1, 75.2),
        ("fed_sgm", 2): (70.0,),
    }
    up = {"dp_fedavg": 1000.0, "dome": 250.0, "fed_sgm": 1010.0}
    return [
        _record(name, epsilon, seed, accuracy, up[name])
        for (name, epsilon), accuracies in cells.items()
        for seed, accuracy in enumerate(accuracies)
    ]


def test_the_page_says_who_wins_and_who_loses() -> None:
    dome, fed_sgm = verdicts(Results(_records()), SERVER, "mnist")
    assert dome == (
        "**DOME**: ahead at epsilon 0.5 (+10.0); behind at epsilon 8 (-5.0); level at epsilon 2 (+0.5). "
        "Bytes: 4.0 times fewer up and 4.0 times fewer down."
    )
    assert fed_sgm.endswith("Bytes: as many up and as many down.")
    assert "undecided at epsilon 2 (-1.0)" in fed_sgm  # one seed has no deviation


def test_the_page_has_tables_pictures_its_origin_and_sections_of_others(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "record.md").write_text("## A section of others\nwith text\n")
    results.save(tmp_path / "results.jsonl", {"Date": "2026-01-01"}, _records())
    results.main(["--page-only", "--docs", str(tmp_path)])
    page = (tmp_path / "results.md").read_text()
    assert "| `dome` | DOME | 61.0 ± 1.0 |  | 71.5 ± 1.0 |  | 75.1 ± 0.1 |" in page
    assert "| `fed_sgm` | Fed-SGM |  |  | 70.0 |  |  |" in page
    assert "- Date: 2026-01-01" in page
    assert page.rstrip().endswith("## A section of others\nwith text")
    assert "{{" not in page
    assert PANELS[1].title not in page  # nothing was played of it
    for line in page.splitlines():
        if line.startswith("!["):
            picture = tmp_path / line.partition("(")[2].rstrip(")")
            assert ET.parse(picture).getroot().tag.endswith("svg")
            assert "prefers-color-scheme" in picture.read_text()
    assert "images/results_server_mnist.svg" in page
    assert "images/results_bytes_mnist.svg" in page


SMALL = [
    *("--data", "digits", "--presets", "dp_fedavg", "--epsilons", "2", "8", "--seeds", "1"),
    *("--workers", "1", "--overrides", "rounds=3", "clients.total=6", "clients.per_round=6"),
]


def test_runs_are_played_once_and_again_when_the_preset_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []
    real = run_store.play

    def counted(overrides: list[str]) -> run_store.Played:
        played.append(next(text for text in overrides if text.startswith("privacy.epsilon")))
        return real(overrides)

    monkeypatch.setattr(run_store, "play", counted)
    where = ["--docs", str(tmp_path), "--records", str(tmp_path / "runs.jsonl")]
    results.main([*SMALL, *where])
    assert played == ["privacy.epsilon=2", "privacy.epsilon=8"]
    assert "| `dp_fedavg` |" in (tmp_path / "results.md").read_text()

    assert "Runs: 2, with 1 seed\n" in (tmp_path / "results.md").read_text()

    # Interrupted while the second line was written: the first counts, the second is played again.
    records = tmp_path / "runs.jsonl"
    records.write_text(records.read_text()[:-20])
    results.main([*SMALL, *where, "--so-far"])
    page = " ".join((tmp_path / "results.md").read_text().split())
    assert "1 of 2" in page
    assert "**The page is not finished**" in page
    assert len(played) == 2
    results.main([*SMALL, *where])
    assert played[2:] == ["privacy.epsilon=8"]
    assert len(read_records(tmp_path / "results.jsonl")) == 1 + 2

    # A record of the same overrides with another configuration does not count.
    first, second = read_records(tmp_path / "results.jsonl")[1:]
    records.write_text(json.dumps({**first, "config": "old"}) + "\n" + json.dumps(second) + "\n")
    results.main([*SMALL, *where])
    assert played[3:] == ["privacy.epsilon=2"]

    record = read_records(tmp_path / "results.jsonl")[1]
    assert record["epsilon"]["server"] <= 2
    assert record["rounds"] == 3
    assert record["uplink_bytes"] / 3 > 2 * record["numbers"]  # a ring of 16 bits, and headers


def test_where_data_lie_is_no_part_of_a_record(tmp_path: Path) -> None:
    here, there = (compose(["data=mnist", f"data.root={root}"]) for root in ("/here", "/there"))
    assert fingerprint(here) == fingerprint(there)
    small = ["rounds=2", "clients.total=4", "clients.per_round=4", "runtime=cohort", "device=cpu"]
    record = Runs(tmp_path / "runs.jsonl", data_root="/here").play(small)  # of data without files
    assert Runs(tmp_path / "runs.jsonl").known(small) == record
