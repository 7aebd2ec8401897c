"""Runs in the ring that was chosen for them, and modulo a prime."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.small import small

Play = Callable[..., int]
SEEDED = "rounds=3 privacy.randomness=seeded strategy=dome data.shape=[1,2,30] data.classes=10"


def _model(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_sum_modulo_a_prime_trains_the_same_model(play: Play, tmp_path: Path) -> None:
    """With room for the full scale devices send the same integers, whatever the modulus. The protocols sum them, and
    the simulator without masks."""
    runs = {
        "pairwise": "secagg=pairwise",
        "two_trips": "secagg=two_trips",
        "cohort": "secagg=two_trips runtime=cohort runtime.noise=per_device",
    }
    for name, options in runs.items():
        play(name, *small(SEEDED, "secagg.bits=32", options))
    expected, *others = (_model(tmp_path / name) for name in runs)
    for model in others:
        assert all(torch.equal(expected[name], model[name]) for name in expected)


def test_the_chosen_ring_sends_half_the_bytes_of_a_vector_and_learns_as_well(
    play: Play, tmp_path: Path
) -> None:
    """30 rounds of 20 clients on digits, with noise of its own in each ring."""
    options = ["rounds=30", "clients.total=20", "clients.per_round=20", "privacy.randomness=seeded"]
    options += ["privacy.epsilon=null", "privacy.noise_multiplier=0.3", "device=cpu"]
    for bits in (32, "auto"):
        play(str(bits), *options, f"secagg.bits={bits}", "runtime=cohort")
        masked = ["secagg=pairwise", "rounds=1", f"secagg.bits={bits}"]
        play(f"{bits}-masked", *options[1:], *masked)
    last = {bits: _rows(tmp_path / bits)[-1]["accuracy"] for bits in ("32", "auto")}
    assert last["32"] > 0.5
    assert last["auto"] == pytest.approx(last["32"], abs=0.05)
    sent = {bits: _rows(tmp_path / f"{bits}-masked")[0]["uplink_bytes"] for bits in last}
    assert sent["32"] - sent["auto"] == pytest.approx(2 * 458, abs=20)
