"""The loop over rounds never spends more than its budget: retries, large cohorts, passes, and resumed runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedsketch.errors import CutShort, TooFewClients
from tests.server.saved_model import saved_model

Play = Callable[..., Any]


def test_a_budget_stops_the_run_before_it_breaks(play: Play, tmp_path: Path) -> None:
    unbounded = play("privacy.noise_multiplier=3", "privacy.epsilon=null", folder="free")
    budget = unbounded.rows[2]["epsilon"]["model"] * 1.0001  # three rounds of four
    played = play("privacy.noise_multiplier=3", f"privacy.epsilon={budget}")
    assert [row["round"] for row in played.rows] == [1, 2, 3]
    assert played.summary["epsilon"]["model"] <= budget
    assert "after round 3" in played.summary["stopped"]
    assert json.loads((tmp_path / "run/summary.json").read_text()) == played.summary
    assert (tmp_path / "run/model.safetensors").exists()


def test_a_run_that_the_budget_stopped_is_evaluated_at_its_end(play: Play) -> None:
    unbounded = play("privacy.noise_multiplier=3", "privacy.epsilon=null", folder="free")
    budget = unbounded.rows[2]["epsilon"]["model"] * 1.0001
    played = play("privacy.noise_multiplier=3", f"privacy.epsilon={budget}", "evaluate_every=100")
    assert played.summary["rounds"] == 3
    assert played.summary["accuracy"] is not None


def test_a_run_that_the_budget_stopped_does_not_go_on_when_resumed(
    play: Play, tmp_path: Path
) -> None:
    """Its last model is out, whether or not a checkpoint was due: another one of that round would be one too many."""
    unbounded = play("privacy.noise_multiplier=3", "privacy.epsilon=null", folder="free")
    budget = unbounded.rows[2]["epsilon"]["model"] * 1.0001
    settings = ("privacy.noise_multiplier=3", f"privacy.epsilon={budget}", "checkpoint_every=2")
    play(*settings)
    model = saved_model(tmp_path / "run")
    assert play(*settings).rows == []
    assert torch.equal(saved_model(tmp_path / "run"), model)


def test_retries_never_spend_more_than_the_budget_against_the_server(
    play: Play, tmp_path: Path
) -> None:
    """Every attempt shows the server something, so the last rounds must give way to the retries of the first. Such a
    run has not done what it was asked for, and does not look as if it had."""
    settings = ("privacy.against=server", "clients.per_round=3")
    with pytest.raises(CutShort) as cut:
        play(*settings, failing=lambda call, client: call % 12 < 6)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["epsilon"]["server"] <= 8.0
    assert summary["cut_short"]
    assert "Stopped after round 2 of 4" in str(cut.value)
    assert "2 attempts without a result are charged too" in str(cut.value)
    assert str(tmp_path / "run") in str(cut.value)
    assert (tmp_path / "run/model.safetensors").exists()
    with pytest.raises(CutShort, match="after round 2 of 4"):  # nor when it is looked at again
        play(*settings)


def test_retries_of_the_last_round_do_not_break_the_budget(play: Play, tmp_path: Path) -> None:
    """Three of four rounds go well; the fourth fails twice, and a third attempt would be a fifth view of the
    server."""
    try:
        play(
            "privacy.against=server",
            "clients.per_round=3",
            failing=lambda call, client: 9 <= call < 15,
        )
    except TooFewClients:
        return  # a refusal to try again is as good
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["epsilon"]["server"] <= 8.0


def test_large_poisson_cohorts_do_not_break_the_budget_against_the_server(play: Play) -> None:
    """A device's share of the noise must not shrink below what the budget needs when the draw is large."""
    played = play(
        "privacy.against=server",
        "clients.sampling=poisson",
        "clients.per_round=3",
        "privacy.randomness=seeded",
        "seed=27",
        "rounds=5",
    )
    assert sum(row["clients"] for row in played.rows) > 3 * len(played.rows)  # large draws
    assert played.summary["epsilon"]["server"] <= 8.0


def test_a_round_of_a_pass_that_nobody_is_asked_for_is_a_round_of_that_pass(play: Play) -> None:
    """Three clients in passes of two rounds: masks need two, so the cohort of one is passed over. A client of round 1
    may be in round 3 again, which is the second pass and not the rest of the first."""
    settings = ("secagg=pairwise", "secagg.colluders=0", "clients.sampling=passes")
    few = ("clients.total=3", "clients.per_round=2", "privacy.epsilon=null")
    played = play(*settings, *few, "privacy.noise_multiplier=2", "rounds=4")
    spent = [row["epsilon"]["model"] for row in played.rows]
    assert [row["clients"] for row in played.rows] == [2, 0, 2, 0]
    assert spent[0] == spent[1] < spent[2] == spent[3]


@pytest.mark.parametrize("strategy", ["dp_fedavg", "sgmf"])
def test_a_retried_round_of_a_pass_costs_no_more_than_the_pass(play: Play, strategy: str) -> None:
    """Those who see models see the round that was applied, and who was in it is in no other of the pass."""
    settings = (
        f"strategy={strategy}",
        "clients.sampling=passes",
        "clients.per_round=3",
        "rounds=2",
    )
    whole = play(*settings, folder="whole")
    retried = play(*settings, failing=lambda call, client: call == 1)
    assert retried.summary["epsilon"]["model"] == whole.summary["epsilon"]["model"]
    assert retried.summary["epsilon"]["model"] is not None


def test_a_resumed_run_takes_back_the_noise_of_models_that_were_out(
    play: Play, tmp_path: Path
) -> None:
    """SGMF: killed within a pass, it ends like an unbroken run; the checkpoint that knows the noise is its owner's
    alone."""
    order = ("clients.sampling=passes", "clients.per_round=2", "clients.retries=0")
    settings = ("strategy=sgmf", "privacy.randomness=seeded", *order)
    play(*settings, folder="whole")
    with pytest.raises(TooFewClients):
        play(*settings, failing=lambda call, client: call == 4)  # in round 3, the last of the pass
    checkpoints = list((tmp_path / "run/checkpoints").iterdir())
    assert {path.stat().st_mode & 0o777 for path in checkpoints} == {0o600}
    assert play(*settings).done == 2
    torch.testing.assert_close(saved_model(tmp_path / "run"), saved_model(tmp_path / "whole"))


def test_a_model_whose_noise_is_forgotten_ends_the_guarantee(play: Play, tmp_path: Path) -> None:
    """Without its newest checkpoint a run of SGMF plays a round again whose model is out, with other noise: no theorem
    covers both."""
    settings = ("strategy=sgmf", "clients.sampling=passes", "clients.per_round=2")
    with pytest.raises(TooFewClients):
        play(*settings, "clients.retries=0", failing=lambda call, client: call == 4)
    max((tmp_path / "run/checkpoints").iterdir()).unlink()
    with pytest.raises(CutShort):
        play(*settings, "clients.retries=0")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["rounds"] < 4
    assert summary["epsilon"] == {"model": None, "client": None}
