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
from fedsketch.delivery.parcels import Parcels
from fedsketch.errors import TooFewClients
from fedsketch.server.checkpoint import Checkpoint
from fedsketch.server.run_folder import RunFolder
from fedsketch.tasks.workload import Workload
from tests.server.saved_model import saved_model
from tests.small import plain

Play = Callable[..., Any]
METRICS = (
    "round accuracy loss epsilon delta budget_against private clients dropped "
    "uplink_bytes downlink_bytes seconds snr"
)
# So little noise that nobody computes a tight epsilon, which takes a second under sampling.
FAST = ("privacy.noise_multiplier=0.25", "privacy.epsilon=null")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


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
    assert torch.equal(saved_model(tmp_path / "run"), saved_model(tmp_path / "whole"))
    rows = [RunFolder(tmp_path / name).read_metrics() for name in ("run", "whole")]
    # A server that starts again sends the configuration again.
    left_out = {"seconds": 0, "downlink_bytes": 0}
    for mine, theirs in zip(*rows, strict=True):
        assert {**mine, **left_out} == {**theirs, **left_out}
    assert resumed.summary["uplink_bytes"] == whole.summary["uplink_bytes"]


def test_with_fewer_checkpoints_more_is_played_again_to_the_same_end(
    play: Play, tmp_path: Path
) -> None:
    settings = ("privacy.randomness=seeded", "clients.retries=0", "checkpoint_every=2")
    play(*settings, folder="whole")
    with pytest.raises(TooFewClients):
        play(*settings, failing=lambda call, client: call == 20)  # in round 4
    assert play(*settings).done == 2
    assert torch.equal(saved_model(tmp_path / "run"), saved_model(tmp_path / "whole"))


def test_resuming_a_finished_run_changes_nothing(play: Play, tmp_path: Path) -> None:
    first = play()
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    again = play()
    assert (again.done, again.rows) == (4, [])
    assert again.summary == json.loads(json.dumps(first.summary))
    assert files == {path: path.read_bytes() for path in files}


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
    remember = Parcels.remember
    monkeypatch.setattr(
        Parcels, "remember", lambda self, step: (told.append(step.deviation), remember(self, step))
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


def test_the_mean_over_examples_counts_those_that_clients_hold(play: Play, tmp_path: Path) -> None:
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
    workload = Workload(compose(plain(*overrides)))
    model = workload.model()
    shards = [workload.shard(client) for client in range(6)]
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


def test_metrics_are_on_the_disk_before_a_checkpoint_counts_them(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for owner, name in (
        (RunFolder, "append_metrics"),
        (RunFolder, "sync_metrics"),
        (Checkpoint, "save"),
    ):
        real = getattr(owner, name)

        def noted(*arguments: Any, name: str = name, real: Any = real) -> Any:
            done.append(name)
            return real(*arguments)

        monkeypatch.setattr(owner, name, noted)
    play("rounds=4", "checkpoint_every=2")
    assert done == 2 * ["append_metrics", "append_metrics", "sync_metrics", "save"]
