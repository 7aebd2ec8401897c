"""What version 0.2.0 wrote is read by this version: runs are resumed, ledgers go on, and messages mean the same.

The files in tests/kept were written by that version and are never made again.
"""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import safetensors.torch
import torch

from fedsketch.client.guard.guard import LEDGER, POLICY
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.policy import Policy
from fedsketch.conf import ConfigError, device_json, from_json
from fedsketch.privacy.accounting.release_json import release_from_json, release_to_json
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.runtime.resume import resumed_run
from fedsketch.secagg import PairwiseSettings

KEPT = Path(__file__).parents[1] / "kept" / "0.2.0"
MESSAGES: dict[str, dict[str, Any]] = json.loads((KEPT / "messages.json").read_text())


@pytest.mark.parametrize("name", ["dome", "fedceo", "sgmf"])
def test_a_run_is_resumed_from_its_checkpoint_to_the_same_end(
    name: str, fedsketch: Callable[..., None], tmp_path: Path
) -> None:
    """The processor may be another one than that of the kept run, so the last bits of the model may differ."""
    folder = tmp_path / name
    copytree(KEPT / name, folder)
    for end in ("model.safetensors", "summary.json"):
        (folder / end).unlink()

    fedsketch(f"resume={folder}")

    for key, tensor in safetensors.torch.load_file(KEPT / name / "model.safetensors").items():
        resumed = safetensors.torch.load_file(folder / "model.safetensors")[key]
        torch.testing.assert_close(resumed, tensor, rtol=1e-4, atol=1e-5)
    before, after = (
        [json.loads(line) for line in (place / name / "metrics.jsonl").read_text().splitlines()]
        for place in (KEPT, tmp_path)
    )
    # The present accountant books a little less for the same noise, so the noise of the last round is a little less.
    for now, then in zip(after, before, strict=True):
        assert now["epsilon"] == pytest.approx(then["epsilon"])
    assert [row.keys() for row in after] == [row.keys() for row in before]


@pytest.mark.parametrize("name", ["dome", "fedceo", "sgmf"])
def test_a_run_may_be_resumed_with_settings_that_it_has(name: str) -> None:
    """Its choices are those of its own version, where the defaults are others now."""
    config, _ = resumed_run(KEPT / name, ["data=synthetic"])
    assert config.secagg.bits == 32
    with pytest.raises(ConfigError, match=r"secagg\.bits is 32 there, 24 here"):
        resumed_run(KEPT / name, ["secagg.bits=24"])


def test_a_ledger_is_read_to_the_same_epsilon() -> None:
    state, lines = Ledger(KEPT / "device" / LEDGER).verified()
    assert (lines, state.rounds, state.settled) == (10, 3, 3)
    assert state.spent(1e-5) == pytest.approx(8.0, abs=0.001)
    assert Policy.load(KEPT / "device" / POLICY).delta == 1e-5


@pytest.mark.parametrize("name", MESSAGES)
def test_what_devices_receive_means_the_same_and_is_written_the_same(name: str) -> None:
    """But for one key, which says that nothing is replayed, as then."""
    kept = MESSAGES[name]
    config = json.loads(device_json(from_json(kept["config"])))
    assert config["strategy"].pop("broadcast", "full") == "full" or "broadcast" in kept["config"]
    then = json.loads(kept["config"])
    then["strategy"].pop("broadcast", None)
    assert config == then
    assert mechanism_from_record(kept["mechanism"]).to_record() == kept["mechanism"]
    for release in kept["releases"].values():
        assert release_to_json(release_from_json(release)) == release
    if "settings" in kept:
        encoded = bytes.fromhex(kept["settings"])
        assert PairwiseSettings.decode(encoded).encoded == encoded
