"""Going on with a run, from the command line: the same run, or a sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("no_report")
Fedsketch = Callable[..., Any]


def test_a_finished_run_is_only_reported_again(fedsketch: Fedsketch, run: Path) -> None:
    before = [(run / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors")]
    ended = fedsketch("resume=run", tiny=False)
    assert (ended.code, ended.err) == (0, "")
    assert "Resuming after round 2" in ended.out
    assert [(run / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors")] == before


def test_repeating_the_same_settings_is_allowed_again_and_again(
    fedsketch: Fedsketch, run: Path
) -> None:
    assert fedsketch("resume=run", "rounds=2", tiny=False).code == 0
    assert fedsketch("resume=run", tiny=False).code == 0
    assert fedsketch("resume=run", "rounds=2", tiny=False).code == 0


@pytest.mark.parametrize("change", ["rounds=3", "seed=1", "privacy.epsilon=80", "model=mlp"])
def test_another_configuration_is_refused_by_its_key(
    fedsketch: Fedsketch, run: Path, change: str
) -> None:
    before = (run / "config.yaml").read_text()
    sentence = fedsketch("resume=run", change, tiny=False).sentence()
    assert change.split("=")[0] in sentence
    assert (run / "config.yaml").read_text() == before
    assert fedsketch("resume=run", tiny=False).code == 0


def test_a_config_file_that_was_changed_is_refused_by_the_checkpoint(
    fedsketch: Fedsketch, run: Path
) -> None:
    (run / "summary.json").unlink()  # as if it had been killed before its end
    """Otherwise a budget could be raised behind the back of what was already spent."""
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("epsilon: 8.0", "epsilon: 80.0"))
    assert "configuration" in fedsketch("resume=run", tiny=False).sentence()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"hello",
        b"[1, 2]",
        b"rounds: [",
        b"rounds: 3",
        b"rounds: 2020-01-01",
        b"\x00\xff\xfe",
        b"{rounds: many}",
    ],
)
def test_a_damaged_config_file_is_one_sentence(
    fedsketch: Fedsketch, run: Path, damage: bytes
) -> None:
    (run / "config.yaml").write_bytes(damage)
    fedsketch("resume=run", tiny=False).sentence()


@pytest.mark.parametrize("missing", ["config.yaml", "overrides.txt"])
def test_a_folder_that_is_not_a_run_is_one_sentence(
    fedsketch: Fedsketch, run: Path, missing: str
) -> None:
    (run / missing).unlink()
    assert "run is not the folder of a run" in fedsketch("resume=run", tiny=False).sentence()


def test_a_file_in_place_of_a_folder_is_one_sentence(fedsketch: Fedsketch, run: Path) -> None:
    assert "not the folder of a run" in fedsketch("resume=run/summary.json", tiny=False).sentence()


def test_a_damaged_checkpoint_is_one_sentence(fedsketch: Fedsketch, run: Path) -> None:
    (run / "summary.json").unlink()  # as if it had been killed before its end
    for path in (run / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert "checkpoint" in fedsketch("resume=run", tiny=False).sentence()


def test_without_a_checkpoint_a_run_begins_again_but_forgets_nothing_seen(
    fedsketch: Fedsketch, run: Path
) -> None:
    """Both rounds were seen, and the budget was for two: it does not stretch to two more."""
    (run / "summary.json").unlink()  # as if it had been killed before its end
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    sentence = fedsketch("resume=run", tiny=False).sentence()
    assert "without a result are charged too" in sentence
    summary = json.loads((run / "summary.json").read_text())
    assert summary["rounds"] < 2
    assert summary["epsilon"]["model"] <= 8.0
    assert "would exceed epsilon" in summary["stopped"]
