"""Whole runs with an adaptive clip: every strategy that blurs its upload has it without knowing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedsketch.conf import compose
from fedsketch.errors import TooFewClients
from fedsketch.server.plan import make_plan
from fedsketch.server.run_folder import RunFolder
from tests.small import plain

Play = Callable[..., Any]
SEEDED = ("privacy.randomness=seeded", "privacy.epsilon=null", "privacy.noise_multiplier=0.25")
LARGER = ("data.shape=[1,20,20]", "strategy.sketch_dim=0.1")
STRATEGIES = {
    "dp_fedavg": ("strategy=dp_fedavg",),
    "dp_fedavg, examples": ("strategy=dp_fedavg", "privacy.unit=example"),
    "dome": ("strategy=dome", "strategy.broadcast=full", *LARGER),
    "dome, flat, two lengths": (
        *("strategy=dome", "strategy.sketch=flat", "strategy.sketch_dim=4"),
        *("strategy.warm_up=1", "strategy.broadcast=full"),
    ),
    "dome, replay": ("strategy=dome", "strategy.broadcast=replay", *LARGER),
    "dome, public": (*("strategy=dome", "strategy.directions=public", "data.public=20", *LARGER),),
    "dome as printed": (
        *("strategy=dome", "strategy.sketch=flat", "strategy.sketch_dim=4"),
        *("strategy.variant=paper", "strategy.mean_removal=0", "strategy.broadcast=full"),
    ),
    "fed_sgm": ("strategy=fed_sgm", "strategy.sketch_dim=4"),
    "fedceo": ("strategy=fedceo", "strategy.every=1", "strategy.local.epochs=1"),
    "fedceo, slots": (
        *("strategy=fedceo", "strategy.every=1", "strategy.start=slots"),
        "strategy.local.epochs=1",
    ),
}


def _model(folder: Path) -> torch.Tensor:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_clip_that_cuts_nothing_changes_nothing(play: Play, tmp_path: Path, name: str) -> None:
    """Without noise, and far above all norms: the run is that with a fixed clip, but for a count that nobody sees."""
    common = (*STRATEGIES[name], "rounds=2", "privacy.noise_multiplier=0", "privacy.epsilon=null")
    play(*common, "privacy.clip=1e6", folder="fixed")
    played = play(*common, "privacy.clip=adaptive", "privacy.adaptive.start=1e6", folder="adaptive")
    assert [row["clip_fraction"] for row in played.rows] == pytest.approx([1.0, 1.0], abs=1e-5)
    assert played.rows[0]["clip"] == 1e6
    assert played.rows[1]["clip"] == pytest.approx(1e6 * 2.718281828**-0.1)
    torch.testing.assert_close(_model(tmp_path / "adaptive"), _model(tmp_path / "fixed"))


def test_a_run_that_was_broken_off_goes_on_with_its_clip(play: Play, tmp_path: Path) -> None:
    settings = (*SEEDED, "privacy.clip=adaptive", "clients.retries=0", "clients.per_round=3")
    play(*settings, folder="whole")
    with pytest.raises(TooFewClients):
        play(*settings, failing=lambda call, client: call == 7)  # in round 3
    assert play(*settings).done == 2
    assert torch.equal(_model(tmp_path / "run"), _model(tmp_path / "whole"))
    mine, theirs = (RunFolder(tmp_path / name).read_metrics() for name in ("run", "whole"))
    for key in ("clip", "clip_fraction"):
        assert [row[key] for row in mine] == [row[key] for row in theirs]
    assert len({row["clip"] for row in mine}) == 4


@pytest.mark.parametrize("bits", [16, 32])
def test_under_masks_it_is_the_same_clip(play: Play, bits: int) -> None:
    """The count travels inside of the vector: the sum under masks is the sum of the same integers, also where a ring
    rotates them."""
    settings = (*SEEDED, "privacy.clip=adaptive", "rounds=3", f"secagg.bits={bits}")
    open_sums = play(*settings, "secagg.noise=skellam", folder="open").rows
    masked = play(*settings, "secagg=pairwise", "secagg.colluders=0", folder="masked").rows
    assert [row["clip"] for row in masked] == [row["clip"] for row in open_sums]
    assert len({row["clip"] for row in masked}) == 3


def test_the_plan_tells_what_it_costs() -> None:
    plan = make_plan(compose(plain("privacy.clip=adaptive")))
    assert plan.upload_size == plan.parameters + 1
    assert "adaptive, from 0.3 to the 0.5 quantile" in plan.mechanism_facts["clip"]
    assert plan.mechanism_facts["cost of the clip"] == "0.98 % more noise"
    assert "clip" not in make_plan(compose(plain())).mechanism_facts
