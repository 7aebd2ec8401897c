"""Whole runs under secure aggregation: the same model as without masks, and bytes as planned."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsketch.conf import compose
from fedsketch.server.plan import make_plan
from tests.small import UNMASKED, small

Command = Callable[..., None]
SMALL = small("rounds=3 privacy.randomness=seeded")


def _model(fedsketch: Command, folder: Path, *overrides: str) -> bytes:
    fedsketch(*SMALL, *overrides, f"hydra.run.dir={folder}")
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("unit", ["client", "example"])
@pytest.mark.parametrize("bits", [20, 32])
def test_masks_change_nothing_in_the_model(
    fedsketch: Command, tmp_path: Path, unit: str, bits: int
) -> None:
    """The same integer noise with and without masks: bit-equal models, so sums are exact."""
    common = [f"privacy={unit}", f"secagg.bits={bits}"]
    plain = _model(fedsketch, tmp_path / "none", *UNMASKED, *common)
    assert _model(fedsketch, tmp_path / "pairwise", "secagg=pairwise", *common) == plain


@pytest.mark.parametrize(
    "choice",
    [["secagg=semi_honest"], ["secagg=pairwise", "secagg.merged=true"], ["secagg=two_trips"]],
)
def test_fewer_round_trips_give_the_same_model(
    fedsketch: Command, tmp_path: Path, choice: list[str]
) -> None:
    """In a ring with room for the full scale, so that its modulus does not count."""
    plain = _model(fedsketch, tmp_path / "none", *UNMASKED, "secagg.bits=32")
    assert _model(fedsketch, tmp_path / "masked", *choice, "secagg.bits=32") == plain


@pytest.mark.parametrize(
    "choice",
    [
        ["secagg=none", "privacy.against=model"],
        UNMASKED,
        ["secagg=pairwise"],
        ["secagg=semi_honest"],
        ["secagg=two_trips"],
    ],
)
def test_a_round_costs_the_bytes_that_were_planned(
    fedsketch: Command, tmp_path: Path, choice: list[str]
) -> None:
    fedsketch(*SMALL, *choice, f"hydra.run.dir={tmp_path / 'run'}")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    plan = make_plan(compose([*SMALL, *choice]))
    for key, planned in (("uplink", plan.uplink_bytes), ("downlink", plan.downlink_bytes)):
        mean = sum(row[f"{key}_bytes"] for row in rows) / len(rows)
        # The text of the configuration, which is sent once, is in no plan.
        assert planned == pytest.approx(mean, rel=0.03, abs=800 * (key == "downlink"))
    assert plan.epsilon == pytest.approx(rows[-1]["epsilon"])


def test_keys_ride_ahead_of_cohorts_that_change(fedsketch: Command, tmp_path: Path) -> None:
    """The next cohort is known, so its keys are exchanged on this round's messages; the model stays the same."""
    # Against those who see models the server adds the same noise with masks and without.
    changing = ["clients.total=10", "clients.per_round=5", "rounds=4", "privacy.against=model"]
    plain = _model(
        fedsketch,
        tmp_path / "none",
        *UNMASKED,
        *changing,
        "privacy.epsilon=null",
        "privacy.noise_multiplier=1",
    )
    merged = _model(
        fedsketch,
        tmp_path / "masked",
        "secagg=pairwise",
        "secagg.merged=true",
        *changing,
        "privacy.epsilon=null",
        "privacy.noise_multiplier=1",
    )
    assert merged == plain
    log = (tmp_path / "masked" / "run.log").read_text()
    assert "without keys exchanged ahead" not in log
