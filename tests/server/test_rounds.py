"""The loop over rounds: what it writes, when it stops, what it charges, and that nothing is half applied."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.nn import functional

from fedsketch.conf import compose
from fedsketch.conf.metric_names import ON_DEVICES, TAKEN
from fedsketch.replay.parcels import Parcels
from fedsketch.server.run_folder import RunFolder
from fedsketch.strategies.shared.cohort import TooFewClients
from fedsketch.tasks.job import Job

Play = Callable[..., Any]
METRICS = (
    "round accuracy loss epsilon delta budget_against private clients dropped "
    "uplink_bytes downlink_bytes seconds snr"
)
# So little noise that nobody computes a tight epsilon, which takes a second under sampling.
FAST = ("privacy.noise_multiplier=0.25", "privacy.epsilon=null")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _model(folder: Path) -> torch.Tensor:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def test_a_row_per_round_with_the_documented_keys(play: Play, tmp_path: Path) -> None:
    played = play(*FAST, "clients.per_round=3")
    rows = [json.loads(line) for line in _lines(tmp_path / "run/metrics.jsonl")]
    assert rows == played.rows
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row.keys() == set(METRICS.split())
        assert row["epsilon"].keys() == {"model", "client", "server"}
        assert row["seconds"].keys() == {"round", "clients", "update"}
        assert (row["clients"], row["dropped"], row["delta"]) == (3, 0, 1e-5)
        assert 0 <= row["accuracy"] <= 1
        assert row["loss"] > 0
        assert 0 < row["uplink_bytes"] < row["downlink_bytes"]
    spent = [row["epsilon"]["model"] for row in rows]
    assert spent == sorted(spent)
    assert spent[0] > 0


def test_the_summary_ends_with_the_last_rounds_values(play: Play, tmp_path: Path) -> None:
    played = play("seed=5")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    last = played.rows[-1]
    for key in ("accuracy", "loss", "epsilon", "delta"):
        assert summary[key] == last[key]
    assert (summary["rounds"], summary["seed"], summary["stopped"]) == (4, 5, None)
    assert summary["uplink_bytes"] == pytest.approx(sum(r["uplink_bytes"] for r in played.rows))
    assert summary["versions"].keys() >= {"python", "fedsketch", "flwr", "torch"}
    assert summary["seconds"] >= sum(row["seconds"]["round"] for row in played.rows)


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy=dome", "validation.examples=6"),
        ("privacy.clip=adaptive",),
        ("evaluation=federated", "evaluation.epsilon=1", "evaluation.groups=1"),
        ("strategy=fedceo", "strategy.every=1", "strategy.start=slots"),
    ],
    ids=" ".join,
)
def test_no_metric_of_a_task_can_have_the_name_of_anything_else(
    play: Play, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    rows = play(*FAST, "rounds=1", *overrides).rows
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    names = {name.removeprefix(ON_DEVICES) for name in (*rows[0], *summary)}
    assert names - {"accuracy", "loss"} <= TAKEN


def test_the_log_of_a_clean_run_says_what_was_played_and_where(
    play: Play, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="fedsketch.server.rounds"):
        played = play("rounds=1", "seed=5")
    text = caplog.text
    assert f"A run of 1 rounds begins in {tmp_path / 'run'}." in text
    assert played.guarantee in text
    assert '"seed":5' in text
    assert "The run ended after round 1. All its rounds were played." in text


def test_bytes_are_a_mean_per_client(play: Play) -> None:
    rows = [play(*FAST, f"clients.per_round={n}", folder=str(n)).rows[0] for n in (2, 6)]
    assert rows[0]["uplink_bytes"] == pytest.approx(rows[1]["uplink_bytes"], rel=0.01)
    assert rows[0]["downlink_bytes"] == pytest.approx(rows[1]["downlink_bytes"], rel=0.05)


def test_evaluation_every_few_rounds_and_at_the_end(play: Play) -> None:
    rows = play("evaluate_every=3").rows
    assert [row["accuracy"] is not None for row in rows] == [False, False, True, True]


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
    model = _model(tmp_path / "run")
    assert play(*settings).rows == []
    assert torch.equal(_model(tmp_path / "run"), model)


def test_tolerated_dropouts_are_counted_and_the_round_applied(play: Play) -> None:
    played = play("clients.tolerated_dropouts=0.34", failing=lambda call, client: client in (1, 4))
    assert [(row["clients"], row["dropped"]) for row in played.rows] == [(4, 2)] * 4


def test_a_failed_round_is_tried_again_with_another_cohort(play: Play) -> None:
    """The first cohort's clients all fail; the retry is applied, and the server is charged for both."""
    settings = (*FAST, "clients.per_round=3")
    clean = play(*settings, folder="clean")
    retried = play(*settings, failing=lambda call, client: call < 3)
    assert [row["clients"] for row in retried.rows] == [3] * 4
    for before, after in zip(clean.rows, retried.rows, strict=True):
        assert after["epsilon"]["model"] == pytest.approx(before["epsilon"]["model"])
        assert after["epsilon"]["server"] > before["epsilon"]["server"]


def test_a_client_that_stays_away_is_left_out_and_the_round_goes_on(play: Play) -> None:
    played = play(failing=lambda call, client: call >= 12 and client == 2)
    assert [row["clients"] for row in played.rows] == [6, 6, 5, 5]
    assert [row["round"] for row in played.rows] == [1, 2, 3, 4]


def test_too_many_dropouts_stop_the_run_with_a_sentence(play: Play, tmp_path: Path) -> None:
    with pytest.raises(TooFewClients) as caught:
        play("clients.retries=1", failing=lambda call, client: call >= 12 and call % 2 == 0)
    sentence = str(caught.value)
    assert sentence.startswith("Round 3 failed 2 times")
    assert "battery" in sentence
    assert "clients.tolerated_dropouts" in sentence
    assert [row["round"] for row in RunFolder(tmp_path / "run").read_metrics()] == [1, 2]


def test_a_run_that_fails_and_is_resumed_ends_like_an_uninterrupted_run(
    play: Play, tmp_path: Path
) -> None:
    settings = (*FAST, "privacy.randomness=seeded", "clients.per_round=3", "clients.retries=0")
    whole = play(*settings, folder="whole")
    with pytest.raises(TooFewClients):
        play(*settings, failing=lambda call, client: call == 7)  # in round 3
    resumed = play(*settings)
    assert resumed.done == 2
    assert torch.equal(_model(tmp_path / "run"), _model(tmp_path / "whole"))
    rows = [RunFolder(tmp_path / name).read_metrics() for name in ("run", "whole")]
    for mine, theirs in zip(*rows, strict=True):
        assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}
    assert resumed.summary["uplink_bytes"] == whole.summary["uplink_bytes"]


def test_with_fewer_checkpoints_more_is_played_again_to_the_same_end(
    play: Play, tmp_path: Path
) -> None:
    settings = ("privacy.randomness=seeded", "clients.retries=0", "checkpoint_every=2")
    play(*settings, folder="whole")
    with pytest.raises(TooFewClients):
        play(*settings, failing=lambda call, client: call == 20)  # in round 4
    assert play(*settings).done == 2
    assert torch.equal(_model(tmp_path / "run"), _model(tmp_path / "whole"))


def test_resuming_a_finished_run_changes_nothing(play: Play, tmp_path: Path) -> None:
    first = play()
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    again = play()
    assert (again.done, again.rows) == (4, [])
    assert again.summary == json.loads(json.dumps(first.summary))
    assert files == {path: path.read_bytes() for path in files}


def test_retries_never_spend_more_than_the_budget_against_the_server(play: Play) -> None:
    """Every attempt shows the server something, so the last rounds must give way to the retries of the first."""
    played = play(
        "privacy.against=server", "clients.per_round=3", failing=lambda call, client: call % 12 < 6
    )
    assert played.summary["epsilon"]["server"] <= 8.0


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


@pytest.mark.parametrize("against", ["model", "client", "server"])
@pytest.mark.parametrize("secagg", ["none", "semi_honest"])
def test_a_poisson_run_with_dropouts_plays_all_its_rounds_within_the_budget(
    play: Play, against: str, secagg: str
) -> None:
    """Cohorts of any size lose clients, and rounds are tried again: none may cost more than was planned for it."""
    played = play(
        f"privacy.against={against}",
        f"secagg={secagg}",
        "clients.sampling=poisson",
        "clients.total=20",
        "clients.per_round=14",
        "privacy.epsilon=2",
        "privacy.randomness=seeded",  # one secret draw in hundreds is so small that nobody may be missing
        "rounds=6",
        # Every attempt shows the server something, so that retries cost it rounds: there is none if only one client is
        # away.
        f"clients.tolerated_dropouts={0.3 if against == 'server' else 0.1}",
        failing=lambda call, client: client < (1 if against == "server" else 3),
    )
    assert len(played.rows) == 6
    spent = played.summary["epsilon"][against]
    assert 0 < spent <= 2.0


def test_devices_that_follow_by_replay_are_told_one_noise(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last digits would tell them how large a cohort was."""
    told = []
    taken = Parcels.taken
    monkeypatch.setattr(
        Parcels, "taken", lambda self, step: (told.append(step.deviation), taken(self, step))
    )
    played = play(
        "strategy=dome",
        "strategy.broadcast=replay",
        "strategy.warm_up=0",
        "clients.sampling=poisson",
        "clients.per_round=3",
        "clients.tolerated_dropouts=0.3",
        "rounds=12",
    )
    assert len({row["clients"] for row in played.rows}) > 1
    assert len(told) == 12
    assert len(set(told)) == 1


def test_an_empty_poisson_cohort_is_a_round_of_noise_or_none_but_not_another_draw(
    play: Play, tmp_path: Path
) -> None:
    """To draw again until somebody comes raises everybody's chance above the rate that is booked."""
    # Six clients at rate 1/6: every third draw is empty.
    play(
        *FAST,
        "clients.sampling=poisson",
        "clients.per_round=1",
        "privacy.randomness=seeded",
        "rounds=30",
    )
    attempts = [json.loads(line)["round"] for line in _lines(tmp_path / "run/attempts.jsonl")]
    assert len(attempts) == len(set(attempts))


def test_the_mean_over_examples_counts_those_that_clients_hold(
    play: Play, small: list[str], tmp_path: Path
) -> None:
    """One example per client: six gradients, although the data set has sixty examples."""
    overrides = (
        "rounds=1",
        "data/partition=one_example",
        "privacy=none",
        "privacy.unit=example",
        "strategy.server.optimizer=sgd",
        "strategy.server.lr=1",
    )
    play(*overrides)
    job = Job(compose([*small, *overrides]))
    model = job.model()
    shards = [job.shard(client) for client in range(6)]
    inputs = torch.cat([shard.inputs for shard in shards])
    targets = torch.cat([shard.targets for shard in shards])
    loss = functional.cross_entropy(model.module(inputs), targets)
    names, parameters = zip(*model.module.named_parameters(), strict=True)
    gradients = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    tensors = safetensors.torch.load_file(tmp_path / "run/model.safetensors")
    for name, parameter in model.module.named_parameters():
        torch.testing.assert_close(tensors[name], parameter.detach() - gradients[name])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["privacy.randomness=seeded"], ["not private", "seeded"]),
        (["privacy=none"], ["not private", "nothing is noised"]),
        (["privacy.epsilon=3"], ["epsilon 3", "delta 1e-05", "per client", "model"]),
        (["privacy=example"], ["per example"]),
        (["privacy.against=server"], ["server"]),
        (["privacy.epsilon=null", "privacy.noise_multiplier=2"], ["noise multiplier 2"]),
    ],
)
def test_the_first_line_says_what_holds(play: Play, overrides: list[str], words: list[str]) -> None:
    played = play("rounds=1", *overrides)
    assert all(word in played.guarantee.lower() for word in words)
    assert played.summary["guarantee"] == played.guarantee
    exposed = bool({"privacy.randomness=seeded", "privacy=none"} & set(overrides))
    assert ("NOT PRIVATE" in played.guarantee) == exposed
    assert [row["private"] for row in played.rows] == [not exposed]
    assert played.summary["private"] == (not exposed)
    assert (played.summary["not_private"] is not None) == exposed
    assert played.summary["adversaries"].keys() == played.summary["epsilon"].keys()


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
    torch.testing.assert_close(_model(tmp_path / "run"), _model(tmp_path / "whole"))


def test_a_model_whose_noise_is_forgotten_ends_the_guarantee(play: Play, tmp_path: Path) -> None:
    """Without its newest checkpoint a run of SGMF plays a round again whose model is out, with other noise: no theorem
    covers both."""
    settings = ("strategy=sgmf", "clients.sampling=passes", "clients.per_round=2")
    with pytest.raises(TooFewClients):
        play(*settings, "clients.retries=0", failing=lambda call, client: call == 4)
    max((tmp_path / "run/checkpoints").iterdir()).unlink()
    resumed = play(*settings, "clients.retries=0")
    assert resumed.done == 1
    assert resumed.summary["epsilon"] == {"model": None, "client": None}
    assert resumed.summary["stopped"] is not None
