"""The command: a run leaves its folder, a sweep one per job, and every mistake is a sentence and exit code 1."""

import errno
import json
import os
import subprocess
import sys
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml

from fedsketch.conf import compose, from_json, to_json
from fedsketch.conf.composition import compose_with_folder
from fedsketch.privacy.simulation import SEED_VARIABLE
from fedsketch.server.run_folder import RunFolder
from fedsketch.tasks.workload import Workload

Fedsketch = Callable[..., Any]
METRICS = (
    "round accuracy loss epsilon delta budget_against private clients dropped "
    "uplink_bytes downlink_bytes seconds snr"
)


def test_a_run_leaves_its_folder(fedsketch: Fedsketch, tmp_path: Path) -> None:
    ended = fedsketch("hydra.run.dir=out/here", "seed=3")
    assert (ended.code, ended.err) == (0, "")
    folder = tmp_path / "out" / "here"
    assert "out/here/report.html" in ended.out

    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["seed"], config["rounds"]) == (3, 3)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert all(row.keys() == set(METRICS.split()) for row in rows)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["accuracy"] == rows[-1]["accuracy"]
    assert summary.keys() >= {
        "rounds",
        "accuracy",
        "loss",
        "epsilon",
        "versions",
        "seconds",
        "seed",
    }
    assert len(list((folder / "checkpoints").iterdir())) == 2
    report = (folder / "report.html").read_text()
    assert report.lstrip().lower().startswith("<!doctype html")
    assert "http://" not in report.replace("http://www.w3.org", "")  # self-contained


def test_the_model_of_a_run_loads_into_its_module(run: Path) -> None:
    tree = yaml.safe_load((run / "config.yaml").read_text())
    config = from_json(json.dumps(tree))
    model = Workload(config).model()
    start = model.vector.clone()
    model.module.load_state_dict(safetensors.torch.load_file(run / "model.safetensors"))
    checkpoint = torch.load(max((run / "checkpoints").iterdir()), weights_only=True)
    assert torch.equal(model.vector, checkpoint["model"])
    assert not torch.equal(model.vector, start)


def test_without_a_folder_given_runs_lie_below_outputs(
    fedsketch: Fedsketch, tmp_path: Path
) -> None:
    assert fedsketch("rounds=1").code == 0
    (summary,) = (tmp_path / "outputs").rglob("summary.json")
    assert json.loads(summary.read_text())["rounds"] == 1


def test_a_sweep_makes_one_folder_per_job_each_a_run_of_its_own(
    fedsketch: Fedsketch, tmp_path: Path
) -> None:
    ended = fedsketch("-m", "rounds=1", "seed=4,5", "hydra.sweep.dir=sweep")
    assert ended.code == 0
    summaries = sorted((tmp_path / "sweep").glob("*/summary.json"))
    assert [path.parent.name for path in summaries] == ["0", "1"]
    assert [json.loads(path.read_text())["seed"] for path in summaries] == [4, 5]
    for path in summaries:
        assert (path.parent / "report.html").exists()
    resumed = fedsketch("resume=sweep/1", "seed=5", tiny=False)
    assert resumed.code == 0
    assert "Resuming after round 1" in resumed.out


def test_one_bad_job_does_not_end_a_sweep(fedsketch: Fedsketch, tmp_path: Path) -> None:
    ended = fedsketch("-m", "rounds=1", "privacy.epsilon=0,8", "hydra.sweep.dir=sweep")
    assert "job 0: privacy.epsilon" in ended.sentence()
    assert [path.parent.name for path in (tmp_path / "sweep").glob("*/summary.json")] == ["1"]


def test_the_folder_of_a_run_is_shown_at_its_start(fedsketch: Fedsketch) -> None:
    assert fedsketch("rounds=1", "hydra.run.dir=here").out.startswith("Folder: here\n")


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupted_run_names_its_folder_if_it_can_be_resumed(
    fedsketch: Fedsketch, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    where = "announce" if begun else "begin"
    monkeypatch.setattr(f"fedsketch.server.run_folder.RunFolder.{where}", interrupt)
    ended = fedsketch("hydra.run.dir=here")
    assert ended.code == 130
    hint = "resume it with `fedsketch resume=here`." if begun else "no run had begun."
    assert ended.err == f"fedsketch: interrupted; {hint}\n"


def test_seeded_noise_does_not_outlive_its_run(fedsketch: Fedsketch) -> None:
    fedsketch("privacy.randomness=seeded", "rounds=1")
    assert SEED_VARIABLE not in os.environ


def test_a_seed_left_in_the_environment_does_not_reach_a_secret_run(
    fedsketch: Fedsketch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SEED_VARIABLE, "7")
    for name in ("a", "b"):
        assert fedsketch("rounds=1", f"hydra.run.dir={name}").code == 0
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert models[0] != models[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["strategy=nonsense"], ["strategy/nonsense", "dp_fedavg"]),
        (["nonsense=1"], ["nonsense"]),
        (["privacy.nonsense=1"], ["privacy.nonsense"]),
        (["rounds"], ["rounds"]),
        (["rounds=${nothing}"], ["nothing"]),
        (["privacy=null"], []),
        (["privacy.epsilon=0"], ["privacy.epsilon"]),
        (["privacy.epsilon=-3"], ["privacy.epsilon"]),
        (["clients.per_round=5"], ["clients.per_round=5", "clients.total=4"]),
        (["clients.total=1000", "clients.per_round=1000"], ["60 examples", "clients"]),
        (["model=cnn"], ["cnn", "8 x 8", "logistic"]),
        (["model=lenet5"], ["lenet5", "12 x 12"]),
        (["model=logistic", "+model.depth=9"], ["depth"]),
        (["device=quantum"], ["quantum", "device=cpu"]),
        (["privacy.epsilon=1e-9", "privacy.delta=1e-12"], ["epsilon"]),
        (["runtime=simulation", "runtime.address=127.0.0.1:9"], ["runtime.address"]),
        (["hydra.run.dir="], ["hydra.run.dir"]),
        (["model=mlp", "model.width=100000000000"], ["model", "mlp", "GB"]),
        (["data.examples=100000000000"], ["data.examples", "GB"]),
        (["data.shape=[1,1000000,1000000]"], ["data.shape", "GB"]),
        (["privacy.clip=1e300"], ["privacy.clip"]),
        (["privacy.clip=1e-300"], ["privacy.clip"]),
        (["privacy.noise_multiplier=1e300"], ["privacy.noise_multiplier"]),
        (["hydra.run.dir=null"], ["hydra.run.dir"]),
        (
            [
                "secagg=pairwise",
                "privacy.against=server",
                "secagg.colluders=0.3",
                "clients.tolerated_dropouts=0.9",
            ],
            ["clients.tolerated_dropouts"],
        ),
        (["resume=nowhere"], ["nowhere", "not the folder of a run"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_bad_input_is_one_sentence(
    fedsketch: Fedsketch, arguments: list[str], words: list[str]
) -> None:
    sentence = fedsketch(*arguments).sentence()
    assert all(word in sentence for word in words)


@pytest.mark.parametrize(
    "arguments", [["strategy=nonsense"], ["nonsense=1"], ["privacy.epsilon=0"]]
)
def test_bad_input_of_a_sweep_is_one_sentence_too(
    fedsketch: Fedsketch, arguments: list[str]
) -> None:
    fedsketch("-m", "hydra.sweep.dir=sweep", *arguments).sentence()


def test_refused_before_anything_starts(fedsketch: Fedsketch, tmp_path: Path) -> None:
    fedsketch("privacy.epsilon=0", "hydra.run.dir=run").sentence()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("root", ["null", "missing/folder"])
def test_missing_data_is_one_sentence(
    fedsketch: Fedsketch, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    def offline(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network in this test")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    sentence = fedsketch(
        "data=cifar10",
        f"data.root={root}",
        "clients.total=4",
        "clients.per_round=4",
        "model=cnn",
        tiny=False,
    ).sentence()
    assert "CIFAR-10" in sentence
    assert "data.root" in sentence or root in sentence


@pytest.mark.parametrize("runtime", ["local", "cohort"])
def test_data_that_cannot_be_distributed_are_one_sentence_and_no_round(
    fedsketch: Fedsketch, tmp_path: Path, runtime: str
) -> None:
    """The devices would each say it in every attempt, and the advice would be to raise timeouts."""
    settings = ("data/partition=natural", f"runtime={runtime}", "hydra.run.dir=run")
    sentence = fedsketch(*settings).sentence()
    assert sentence.startswith("data/partition=natural needs a data set that knows its groups")
    assert not RunFolder(tmp_path / "run").attempts.exists()


def test_an_output_folder_that_cannot_be_written_is_one_sentence(
    fedsketch: Fedsketch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    sentence = fedsketch("hydra.run.dir=file/run").sentence()
    assert "file/run" in sentence
    assert "hydra.run.dir" in sentence


@pytest.mark.parametrize("file", ["metrics.jsonl", "attempts.jsonl"])
@pytest.mark.parametrize("garbage", [b"garbage\n", b"\xff\xfe\n", b"[1]\n"])
def test_garbage_in_a_folder_that_is_resumed_is_one_sentence(
    fedsketch: Fedsketch, run: Path, file: str, garbage: bytes
) -> None:
    (run / "summary.json").unlink()
    (run / file).write_bytes(garbage + (run / file).read_bytes())
    sentence = fedsketch("resume=run", tiny=False).sentence()
    assert f"run/{file}, line 1, is damaged" in sentence


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_no_more_is_one_sentence(
    fedsketch: Fedsketch, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.fsync", full)
    assert os.strerror(code) in fedsketch().sentence()


def test_another_run_into_the_folder_of_a_run_is_refused_and_spoils_nothing(
    fedsketch: Fedsketch, run: Path
) -> None:
    before = (run / "config.yaml").read_text()
    sentence = fedsketch("hydra.run.dir=run", "rounds=2", "seed=9").sentence()
    assert "run" in sentence
    assert (run / "config.yaml").read_text() == before
    assert fedsketch("resume=run", tiny=False).code == 0


@pytest.mark.parametrize("runtime", ["local", "cohort", "simulation", "processes", "deployment"])
def test_a_second_command_in_one_folder_is_refused_before_it_writes(
    fedsketch: Fedsketch, tmp_path: Path, runtime: str
) -> None:
    """The first has not begun its rounds. The second would otherwise follow the first one's run as if it were its
    own, or leave its overrides beside the other's configuration."""
    folder = RunFolder(tmp_path / "run")
    with folder.claimed(["seed=3"]):
        before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
        where = ["runtime.superlink=campus"] if runtime == "deployment" else []
        sentence = fedsketch(f"runtime={runtime}", *where, "hydra.run.dir=run", "seed=9").sentence()
        resumed = fedsketch("resume=run", tiny=False).sentence()
        after = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    assert "is being executed by another process" in sentence
    assert "not the folder of a run" in resumed  # not yet
    assert after == before


def test_a_run_that_is_resumed_holds_its_folder(fedsketch: Fedsketch, run: Path) -> None:
    with RunFolder(run).reserved():
        sentence = fedsketch("resume=run", tiny=False).sentence()
    assert "is being executed by another process" in sentence
    assert fedsketch("resume=run", tiny=False).code == 0


def test_folders_without_a_name_are_different_ones() -> None:
    """Also those of commands that start within the same second."""
    assert len({compose_with_folder([])[1] for _ in range(5)}) == 5


def test_the_console_script_exits_with_one_and_a_sentence(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("fedsketch")
    done = subprocess.run(
        [command, "strategy=nonsense"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("fedsketch: ")
    assert list(tmp_path.iterdir()) == []


def test_cfg_shows_the_configuration_that_would_run(fedsketch: Fedsketch) -> None:
    ended = fedsketch("--cfg=job", "seed=17")
    assert ended.code == 0
    shown = yaml.safe_load(ended.out)
    assert shown["seed"] == 17
    assert shown.keys() == json.loads(to_json(compose([]))).keys()
