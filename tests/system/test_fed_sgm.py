"""Whole runs of Fed-SGM: masks change nothing, all runtimes make the same sketch, a stopped run goes on as if it had
not been."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.small import LARGER, UNMASKED, small

Play = Callable[..., int]
Command = Callable[..., None]
Start = Callable[..., subprocess.Popen[str]]
JOB = small("privacy.randomness=seeded", *LARGER)
SMALL = [*JOB, "strategy=fed_sgm", "strategy.sketch_dim=60"]
AMSGRAD = ["strategy.server.optimizer=amsgrad", "strategy.server.lr=0.05"]
EXAMPLE = ["privacy=example", "strategy.local.steps=1", "strategy.local.batch=0"]


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def _model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("unit", "sketch"), [([], "gaussian"), (EXAMPLE, "hadamard"), ([], "count_sketch")]
)
def test_masks_change_nothing_in_the_model(
    play: Play, tmp_path: Path, unit: list[str], sketch: str
) -> None:
    """Bit by bit, against both kinds of server."""
    common = [*SMALL, *unit, f"strategy.sketch={sketch}"]
    play("none", *common, *UNMASKED)
    for secagg in ("pairwise", "semi_honest"):
        play(secagg, *common, f"secagg={secagg}")
        assert _model(tmp_path / secagg) == _model(tmp_path / "none")


def test_under_masks_and_with_all_numbers_it_is_dp_fedavg_bit_by_bit(
    play: Play, tmp_path: Path
) -> None:
    local = ["strategy.local.steps=3", "strategy.local.batch=5", *AMSGRAD]
    play("sketched", *JOB, "strategy=fed_sgm", "strategy.sketch=identity", *local)
    play("plain", *JOB, *local)
    assert _model(tmp_path / "sketched") == _model(tmp_path / "plain")


@pytest.mark.parametrize("seed_per", ["round", "run"])
@pytest.mark.parametrize("choice", [["secagg=pairwise"], UNMASKED], ids=["pairwise", "none"])
def test_a_stopped_run_ends_exactly_like_an_unbroken_one(
    play: Play, tmp_path: Path, choice: list[str], seed_per: str
) -> None:
    overrides = [*SMALL, *choice, *AMSGRAD, f"strategy.seed_per={seed_per}"]
    assert play("stopped", *overrides, stop_after=2) == 0
    assert len(_rows(tmp_path / "stopped")) == 2
    assert play("stopped", *overrides) == 2
    assert play("whole", *overrides) == 0
    assert _model(tmp_path / "stopped") == _model(tmp_path / "whole")
    ended, unbroken = _rows(tmp_path / "stopped"), _rows(tmp_path / "whole")
    for row in (*ended, *unbroken):  # a resumed server sends the whole, once
        del row["downlink_bytes"], row["uplink_bytes"]
    assert ended == unbroken


def test_a_secret_sketch_is_paid_for_by_the_eavesdroppers_budget(
    play: Play, tmp_path: Path
) -> None:
    settings = ["secagg=none", "strategy.clip=before", "strategy.accounting=r_secret", "rounds=1"]
    play("run", *SMALL, *settings)
    (row,) = _rows(tmp_path / "run")
    assert row["epsilon"]["eavesdropper (r_secret)"] == pytest.approx(8, rel=1e-6)  # the budget
    assert row["epsilon"]["model"] is not None


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_every_runtime_makes_the_same_sketch(
    fedsketch: Command, start: Start, tmp_path: Path
) -> None:
    """In other processes, on another number of threads: with another R the models would have nothing in common."""
    overrides = [*SMALL, *UNMASKED, "strategy.local.batch=5", "clients.timeout=600"]
    cli = "from fedsketch.runtime.cli import main; main()"
    ray = start("-c", cli, *overrides, "runtime=simulation", "hydra.run.dir=simulation")
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        fedsketch(*overrides, "hydra.run.dir=local")
    finally:
        torch.set_num_threads(threads)
    output, _ = ray.communicate(timeout=300)
    assert ray.returncode == 0, output
    mine, theirs = (
        safetensors.torch.load_file(tmp_path / name / "model.safetensors")
        for name in ("local", "simulation")
    )
    for name, tensor in mine.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-4, atol=1e-5)


def test_the_report_shows_both_readings_and_whom_they_hold_against(
    fedsketch: Command, tmp_path: Path
) -> None:
    settings = ["secagg=none", "strategy.clip=before", "privacy.against=model", "rounds=1"]
    fedsketch(*SMALL, *settings, "hydra.run.dir=run")
    report = (tmp_path / "run" / "report.html").read_text()
    for words in (
        "Epsilon, model",
        "Epsilon, eavesdropper (r_secret)",
        "r_public, which holds even against those who know the sketch",
        "r_secret, which holds only against an eavesdropper",
    ):
        assert words in report
