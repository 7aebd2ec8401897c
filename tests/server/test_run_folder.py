"""The folder's files agree with each other after any kill."""

import ast
import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml

from fedsketch.conf import Config, compose, to_json
from fedsketch.errors import CheckpointError, ConfigError
from fedsketch.server.checkpoint import Checkpoint
from fedsketch.server.report.run_page import write_report
from fedsketch.server.run_folder import Attempt, RunFolder
from fedsketch.tasks.workload import Workload

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def config() -> Config:
    return compose(["clients.total=4", "clients.per_round=4", "device=cpu"])


def _save(folder: RunFolder, config: Config, round: int) -> None:
    Checkpoint(to_json(config), round, torch.zeros(3), {}, "{}", 1, 0.0, (0.0, 0.0), 0).save(
        folder.checkpoints
    )


def test_the_configuration_is_written_whole(tmp_path: Path, config: Config) -> None:
    RunFolder(tmp_path / "a" / "b").begin(config)
    written = yaml.safe_load((tmp_path / "a" / "b" / "config.yaml").read_text())
    assert written == json.loads(to_json(config))


def test_metrics_after_the_checkpoint_are_dropped(tmp_path: Path, config: Config) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(config)
    for round in range(1, 6):
        folder.append_metrics({"round": round})
    _save(folder, config, 3)
    assert folder.latest_checkpoint(config).round == 3  # type: ignore[union-attr]
    assert [row["round"] for row in folder.read_metrics()] == [1, 2, 3]
    folder.append_metrics({"round": 4})
    assert [row["round"] for row in folder.read_metrics()] == [1, 2, 3, 4]


def test_without_a_checkpoint_all_metrics_are_dropped(tmp_path: Path, config: Config) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(config)
    folder.append_metrics({"round": 1})
    assert folder.latest_checkpoint(config) is None
    assert folder.read_metrics() == []


def test_a_half_written_last_line_is_ignored(tmp_path: Path, config: Config) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(config)
    folder.append_metrics({"round": 1, "note": "whole"})
    with folder.metrics.open("a") as file:
        file.write('{"round": 2, "no')
    assert folder.read_metrics() == [{"round": 1, "note": "whole"}]
    _save(folder, config, 1)
    folder.latest_checkpoint(config)
    folder.append_metrics({"round": 2})
    assert [row["round"] for row in folder.read_metrics()] == [1, 2]


def test_attempts_survive_in_order_whoever_made_them(tmp_path: Path, config: Config) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(config)
    for round, cohort in [(1, 4), (2, 4), (2, 3), (3, 4)]:
        folder.announce(Attempt(round, cohort))
    assert RunFolder(tmp_path).attempts_since(1) == [Attempt(2, 4), Attempt(2, 3), Attempt(3, 4)]
    assert RunFolder(tmp_path).attempts_since(4) == []


def test_an_attempt_without_its_cohort_is_a_sentence(tmp_path: Path, config: Config) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(config)
    folder.attempts.write_text('{"round": 1, "cohort": 4}\n{"round": 2}\n')
    with pytest.raises(CheckpointError, match=r"attempts\.jsonl, line 2, is damaged"):
        folder.attempts_since(0)


def test_an_announcement_cut_off_by_a_kill_does_not_spoil_the_next(
    tmp_path: Path, config: Config
) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(config)
    folder.announce(Attempt(1, 4))
    (attempts,) = tmp_path.glob("attempts*")
    attempts.write_text(attempts.read_text() + '{"round": 2, "co')
    resumed = RunFolder(tmp_path)
    resumed.begin(config)
    resumed.latest_checkpoint(config)
    resumed.announce(Attempt(2, 4))
    assert RunFolder(tmp_path).attempts_since(0) == [Attempt(1, 4), Attempt(2, 4)]


def test_the_finished_model_loads_into_the_module(tmp_path: Path, config: Config) -> None:
    folder, model = RunFolder(tmp_path), Workload(config).model()
    folder.begin(config)
    folder.append_metrics({"round": 1, **_ROW})
    report = folder.finish(model, _SUMMARY)
    assert report == tmp_path / "report.html"
    twin = Workload(config).model()
    twin.vector.zero_()
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    twin.module.load_state_dict(tensors)
    assert torch.equal(twin.vector, model.vector)
    assert json.loads((tmp_path / "summary.json").read_text()) == _SUMMARY


_EPSILON = {"model": 1.0, "server": None}
_ROW = {
    "accuracy": 0.5,
    "loss": 1.0,
    "epsilon": _EPSILON,
    "delta": 1e-5,
    "clients": 4,
    "dropped": 0,
    "uplink_bytes": 10.0,
    "downlink_bytes": 20.0,
    "seconds": {"round": 0.1, "clients": 0.05, "update": 0.01},
    "snr": None,
}
_SUMMARY = {
    "rounds": 1,
    "accuracy": 0.5,
    "loss": 1.0,
    "epsilon": _EPSILON,
    "delta": 1e-5,
    "noise_multiplier": 1.0,
    "guarantee": "None.",
    "stopped": None,
    "uplink_bytes": 10.0,
    "downlink_bytes": 20.0,
    "seconds": 1.0,
    "seed": 0,
    "parameters": 2410,
    "versions": {"python": "3.11"},
    "partition": {"histogram": [[1, 2], [3, 4]]},
}


def test_a_new_run_gets_a_folder_and_the_next_one_another(tmp_path: Path, config: Config) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.claimed(["seed=3", "rounds=2"]):
        pass
    assert folder.read_overrides() == ["seed=3", "rounds=2"]
    folder.begin(config)
    assert folder.read_config() == config
    with pytest.raises(ConfigError, match="holds a run already"):
        folder.claimed([]).__enter__()
    assert folder.read_overrides() == ["seed=3", "rounds=2"]


def test_a_resumed_run_keeps_its_first_overrides(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.note_overrides(["seed=3"])
    folder.note_overrides(["seed=4"])
    assert folder.read_overrides() == ["seed=3"]


def test_checkpoints_and_keys_are_no_results(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    files = [folder.summary, folder.checkpoints / "round.pt", folder.processes / "nodes" / "key"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert list(folder.results()) == [folder.summary]


def test_nobody_else_names_the_files_of_a_run() -> None:
    """config.yaml is also a file of Hydra's; names without a suffix are ordinary words."""
    paths = [value for value in vars(RunFolder(Path("run"))).values() if value.suffix]
    names = {path.name for path in paths} - {"config.yaml"}
    assert len(names) > 8
    for package in ("client", "runtime", "server", "strategies"):
        for source in (ROOT / package).rglob("*.py"):
            if source.name == "run_folder.py":
                continue
            for node in ast.walk(ast.parse(source.read_text())):
                assert not (isinstance(node, ast.Constant) and node.value in names), source


@pytest.mark.parametrize(
    "module", ["server.run_folder", "runtime.deployment", "runtime.processes", "runtime.resume"]
)
def test_a_submitter_needs_neither_torch_nor_matplotlib(module: str) -> None:
    code = f"""
import sys, fedsketch.{module}
print([name for name in ("torch", "matplotlib") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_two_processes_cannot_play_one_run_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fedsketch.server.run_folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked():\n print('playing', flush=True); sys.stdin.read()"
    )
    folder = RunFolder(tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "playing\n"
        with pytest.raises(CheckpointError, match="is being executed by another process"):
            folder.locked().__enter__()
        other.kill()
        other.wait()
    with folder.locked():
        assert folder.path.is_dir()


@pytest.mark.parametrize(
    ("more", "hidden"),
    [
        (("clients.total=4",), False),
        (("clients.total=8",), True),
        (("clients.total=8", "clients.sampling=poisson"), True),
        (("clients.total=8", "clients.sampling=passes"), False),
        (("clients.total=8", "privacy=none"), False),
        (("clients.total=4", "strategy=csgm"), True),
        (("clients.total=4", "strategy=csgm", "strategy.mask=common"), False),
    ],
)
def test_files_that_show_the_draw_are_the_servers_own(
    tmp_path: Path, play: Callable[..., Any], more: tuple[str, ...], hidden: bool
) -> None:
    """Other users of the machine could read the sizes of cohorts in all of them. A resumed run keeps the modes."""
    files = RunFolder(tmp_path / "run")
    files.path.mkdir()
    files.log.touch(mode=0o644)
    play("clients.per_round=4", "rounds=2", "secagg=none", "clients.retries=5", *more)
    write_report(files.path)
    shown = (files.metrics, files.attempts, files.log, files.summary, files.report)
    for path in shown:
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if hidden else 0o644), path.name
    assert stat.S_IMODE(files.config.stat().st_mode) == 0o644
    card = files.card.read_text()
    assert all(f"`{path.name}`" in card for path in shown)
    assert ("mode 600" in card) is hidden
