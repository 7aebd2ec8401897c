"""kill -9 in the middle of a round, and `resume`: nothing is lost, nothing is forgotten."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.small import small

TINY = small("rounds=5 clients.per_round=3", clients=5)
SEEDED = [*TINY, "privacy.randomness=seeded", "privacy.against=server", "checkpoint_every=2"]
SECRET = [*TINY, "secagg=none", "privacy.against=model", "privacy.noise_multiplier=0.25"]

# The command, with a client that kills the whole process when it is asked to train for the n-th time.
KILLED = """
import os, signal, sys
import fedsketch.client.app
from fedsketch.runtime import cli

genuine, left = fedsketch.client.app.app, int(sys.argv.pop(1))

def mortal(message, context):
    global left
    left -= message.metadata.message_type.startswith("train")
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return genuine(message, context)

fedsketch.client.app.app = mortal
cli.main()
"""

Command = Callable[..., None]
Start = Callable[..., subprocess.Popen[str]]


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def _die(start: Start, calls: int, *arguments: str) -> None:
    process = start("-c", KILLED, str(calls), *arguments)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, output


def _without_bytes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The devices of a resumed server are new to it, so what is sent once is sent once more."""
    return [{key: row[key] for key in row if not key.endswith("_bytes")} for row in rows]


def test_a_seeded_run_ends_exactly_like_an_unbroken_one(
    fedsketch: Command, start: Start, tmp_path: Path
) -> None:
    overrides = [*SEEDED, "secagg=pairwise"]
    _die(start, 11, *overrides, "hydra.run.dir=killed")  # the second of three clients of round 4
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert len(_rows(killed)) == 3
    assert not (killed / "summary.json").exists()

    fedsketch(*overrides, "hydra.run.dir=whole")
    fedsketch("resume=killed")
    model = (whole / "model.safetensors").read_bytes()
    assert (killed / "model.safetensors").read_bytes() == model
    assert _without_bytes(_rows(killed)) == _without_bytes(_rows(whole))
    summaries = [json.loads((f / "summary.json").read_text()) for f in (killed, whole)]
    for key in summaries[0].keys() - {"seconds", "uplink_bytes", "downlink_bytes"}:
        assert summaries[0][key] == summaries[1][key], key


def test_secret_noise_that_was_seen_is_not_forgotten(
    fedsketch: Command, start: Start, tmp_path: Path
) -> None:
    overrides = [*SECRET, "privacy.epsilon=null", "checkpoint_every=1"]
    _die(start, 11, *overrides, "hydra.run.dir=killed")
    fedsketch(*overrides, "hydra.run.dir=whole")
    fedsketch("resume=killed")
    killed, whole = _rows(tmp_path / "killed"), _rows(tmp_path / "whole")
    assert len(killed) == len(whole) == 5
    # Rounds 1 to 3 were whole; the server saw round 4 twice.
    for mine, unbroken in zip(killed[:3], whole[:3], strict=True):
        assert mine["epsilon"]["server"] == pytest.approx(unbroken["epsilon"]["server"])
    for mine, unbroken in zip(killed[3:], whole[3:], strict=True):
        assert mine["epsilon"]["server"] > unbroken["epsilon"]["server"] * 1.01
        assert mine["epsilon"]["model"] == pytest.approx(unbroken["epsilon"]["model"])
