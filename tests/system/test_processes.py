"""`runtime=processes`: the deployment without containers gives the same numbers as `runtime=local`, and leaves no
process behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.conf import compose
from fedsketch.errors import FlowerError
from fedsketch.runtime.processes import Network
from fedsketch.server.run_folder import RunFolder

# Started in the background of a shell, it would ignore SIGINT.
CLI = "import signal; signal.signal(2, signal.default_int_handler); from fedsketch.runtime.cli import main; main()"
DOME = [
    "strategy=dome",
    "data=digits",
    "device=cpu",
    "rounds=2",
    "seed=5",
    "clients.total=4",
    "clients.per_round=4",
    "clients.retries=0",
    "secagg=pairwise",
    "secagg.merged=true",
    "secagg.stage_timeout=300",
    "privacy.randomness=seeded",
]
pytestmark = pytest.mark.xdist_group("processes")
TWO = ["clients.total=2", "clients.per_round=2"]
Command = Callable[..., None]
Start = Callable[..., subprocess.Popen[str]]


def _left(folder: Path) -> dict[int, str]:
    """The processes of a run: all have its private folder in their environment."""
    marker, found = str(RunFolder(folder).processes).encode(), {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (process / "environ").read_bytes():
                command = (process / "cmdline").read_text().replace("\0", " ")
                found[int(process.name)] = command
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue  # another's, or gone
    return found


@pytest.mark.slow  # test_walk_through.py plays on processes by default
@pytest.mark.parametrize(
    "size",
    [[*TWO, "rounds=1"], ["evaluation=federated"]],
    ids=["small", "large, and evaluated by devices"],
)
def test_it_ends_with_the_model_of_the_local_runtime_bit_by_bit(
    fedsketch: Command, start: Start, tmp_path: Path, size: list[str]
) -> None:
    settings = [*DOME, *size]
    fedsketch(*settings, "hydra.run.dir=local")
    process = start("-c", CLI, *settings, "runtime=processes", "hydra.run.dir=processes")
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output
    assert "accuracy" in output
    assert _left(tmp_path / "processes") == {}
    models = [
        safetensors.torch.load_file(tmp_path / name / "model.safetensors")
        for name in ("local", "processes")
    ]
    assert models[0].keys() == models[1].keys()
    for name, tensor in models[0].items():
        assert torch.equal(models[1][name], tensor), name
    told = [RunFolder(tmp_path / name).read_summary() or {} for name in ("local", "processes")]
    assert told[0]["epsilon"] == told[1]["epsilon"]
    if "evaluation=federated" in size:
        assert told[0]["federated_accuracy"] is not None
        assert told[0]["federated_accuracy"] == told[1]["federated_accuracy"]
    assert (tmp_path / "processes" / "report.html").exists()
    assert RunFolder(tmp_path / "processes").processes.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_behind(start: Start, tmp_path: Path) -> None:
    process = start("-c", CLI, *DOME, *TWO, "runtime=processes", "hydra.run.dir=run")
    folder = tmp_path / "run"
    log = RunFolder(folder).processes / "node-0.log"
    deadline = time.monotonic() + 300
    while not (log.exists() and "Start `flwr-clientapp` process" in log.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running = _left(folder)
    for program in ("superlink", "serverapp", "supernode", "superexec"):
        assert any(program in command for command in running.values()), program
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "resume=" in output
    assert "Traceback" not in output
    assert _left(folder) == {}


@pytest.mark.slow
def test_a_killed_superlink_ends_the_run_and_leaves_no_process_behind(
    start: Start, tmp_path: Path
) -> None:
    """Its ServerApp and what starts them belong to init then."""
    settings = [*DOME, *TWO, "strategy=dp_fedavg"]
    process = start("-c", CLI, *settings, "runtime=processes", "hydra.run.dir=run")
    folder = tmp_path / "run"
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while not (metrics.exists() and metrics.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running = _left(folder)
    assert any("flwr-serverapp" in command for command in running.values())
    (superlink,) = [pid for pid, command in running.items() if "/flower-superlink " in command]
    os.kill(superlink, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert _left(folder) == {}
    again = start("-c", CLI, "resume=run")
    output, _ = again.communicate(timeout=900)
    assert again.returncode == 0, output
    assert "Resuming after round 1" in output


@pytest.mark.slow
def test_a_run_goes_on_after_ctrl_c_to_the_model_of_an_unbroken_one(
    fedsketch: Command, start: Start, tmp_path: Path
) -> None:
    settings = [*DOME, *TWO, "strategy=dp_fedavg"]
    fedsketch(*settings, "hydra.run.dir=local")
    process = start("-c", CLI, *settings, "runtime=processes", "hydra.run.dir=run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while not (metrics.exists() and metrics.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    again = start("-c", CLI, "resume=run")
    output, _ = again.communicate(timeout=900)
    assert again.returncode == 0, output
    assert "Resuming after round 1" in output
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("local", "run")]
    assert models[0] == models[1]
    assert _left(tmp_path / "run") == {}


@pytest.mark.slow
def test_a_run_goes_on_after_its_command_was_killed_and_no_vector_is_lost_or_charged_twice(
    start: Start, tmp_path: Path
) -> None:
    secret = [one for one in DOME if one != "privacy.randomness=seeded"]
    noise = ["privacy.epsilon=null", "privacy.noise_multiplier=1"]
    settings = [*secret, *TWO, *noise, "strategy=dp_fedavg", "secagg.colluders=0"]
    process = start("-c", CLI, *settings, "runtime=processes", "hydra.run.dir=run")
    folder, deadline = RunFolder(tmp_path / "run"), time.monotonic() + 600
    while not (folder.metrics.exists() and folder.metrics.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.kill()
    process.wait(60)
    while _left(folder.path):  # another process ends them
        assert time.monotonic() < deadline
        time.sleep(0.1)
    again = start("-c", CLI, "resume=run")
    output, _ = again.communicate(timeout=900)
    assert again.returncode == 0, output
    assert "Resuming after round 1" in output
    for client in range(2):
        device = folder.processes / "nodes" / str(client) / "device"
        booked = DeviceGuard(device).ledger.verified()[0].rounds
        sent = (folder.processes / f"node-{client}.log").read_text().count("Sending: train message")
        assert 2 <= sent <= booked <= sent + 1  # the kill may come between the two


def test_a_superlink_that_does_not_start_is_one_sentence_and_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not ours to listen at.
    monkeypatch.setattr("fedsketch.runtime.processes._free_port", lambda: 1)
    monkeypatch.setattr("fedsketch.runtime.processes.SERVER_CERTIFICATE", "missing.crt")
    network = Network(compose([*DOME, "runtime=processes"]), tmp_path)
    with pytest.raises(FlowerError, match="did not start"), network.running():
        pass
    assert _left(tmp_path) == {}
