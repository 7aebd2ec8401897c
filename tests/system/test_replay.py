"""Whole runs with broadcast=replay: the same as with broadcast=full, with clients that miss rounds, and far fewer
bytes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsketch.client.app import make_app
from fedsketch.conf import compose
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.server.plan import make_plan
from fedsketch.server.rounds import Rounds
from tests.observers import Recorder, Stopped
from tests.small import LARGER, UNMASKED, small

Command = Callable[..., None]
DOME = "strategy=dome strategy.sketch_dim=120 strategy.keep=all"
HALF = "rounds=6 clients.per_round=3 privacy.randomness=seeded privacy.epsilon=null privacy.noise_multiplier=1"
SMALL = small(DOME, HALF, *LARGER)


def _run(fedsketch: Command, folder: Path, *overrides: str) -> tuple[bytes, list[dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patch:  # a new process, as far as the devices can tell
        patch.setattr("fedsketch.client.app.app", make_app())
        fedsketch(*SMALL, *overrides, f"hydra.run.dir={folder}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return (folder / "model.safetensors").read_bytes(), rows


@pytest.mark.parametrize(
    "choice",
    [
        UNMASKED,
        ["secagg=pairwise"],
        ["secagg=semi_honest", "strategy.sketch=flat"],
        [*UNMASKED, "strategy.sketch=blocks", "strategy.warm_up=1"],
        pytest.param(
            [
                "secagg=pairwise",
                "secagg.merged=true",
                "strategy.mean_removal=0.9",
                "strategy.feed=gradient",
            ],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [*UNMASKED, "clients.sampling=poisson", "strategy.warm_up=2"], marks=pytest.mark.slow
        ),
    ],
)
def test_both_broadcasts_give_the_same_run(
    fedsketch: Command, tmp_path: Path, choice: list[str]
) -> None:
    """Half of the clients per round, so that most come back after a gap."""
    full, told = _run(fedsketch, tmp_path / "full", *choice, "strategy.broadcast=full")
    replayed, told_again = _run(
        fedsketch, tmp_path / "replay", *choice, "strategy.broadcast=replay"
    )
    assert replayed == full
    for key in ("accuracy", "loss", "sketch_rank", "sketch_energy", "epsilon", "clients"):
        assert [row[key] for row in told] == [row[key] for row in told_again]


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_processes_of_a_simulation_follow_too(fedsketch: Command, tmp_path: Path) -> None:
    simulation = [
        "runtime=simulation",
        "rounds=4",
        "strategy.broadcast=replay",
        "clients.timeout=600",
    ]
    here, _ = _run(fedsketch, tmp_path / "local", "rounds=4", "strategy.broadcast=replay")
    there, _ = _run(fedsketch, tmp_path / "simulation", *simulation)
    assert here == there


@pytest.mark.parametrize("kept", [True, False], ids=["devices stay", "devices restart"])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path: Path, kept: bool) -> None:
    """The server has forgotten who holds what, and what was sent: it sends the whole."""
    config = compose([*SMALL, *UNMASKED, "strategy.broadcast=replay"])
    with simulated_devices(config):
        for folder, stop in (("whole", 0), ("stopped", 3)):
            app = make_app()
            if stop:
                with pytest.raises(Stopped):
                    Rounds(config, tmp_path / folder, Recorder(stop)).run(LocalGrid(app, 6))
                if not kept:
                    app = make_app()
            Rounds(config, tmp_path / folder, Recorder()).run(LocalGrid(app, 6))
    models = [(tmp_path / f / "model.safetensors").read_bytes() for f in ("whole", "stopped")]
    assert models[0] == models[1]


def test_bytes_of_a_returning_client(fedsketch: Command, tmp_path: Path) -> None:
    """d = 203,530, all messages of secure aggregation included: the sketch sends 13 times less up than dp_fedavg, and
    with replay 9 times less up and down together. The plan says so beforehand."""
    large = ["data.shape=[1,28,28]", "model=mlp", "model.width=256", "rounds=2"]
    large += ["clients.total=20", "clients.per_round=20", "strategy.keep=noise_floor"]
    sketch = ["strategy.sketch_dim=0.0555", "strategy.broadcast=replay"]
    _, (first, row) = _run(fedsketch, tmp_path / "dome", *large, *sketch)
    base = make_plan(compose(small(HALF, *LARGER, *large[:-1])))
    assert base.parameters == 203_530
    assert base.uplink_bytes / row["uplink_bytes"] > 13
    total = row["uplink_bytes"] + row["downlink_bytes"]
    assert (base.uplink_bytes + base.downlink_bytes) / total > 9
    assert first["downlink_bytes"] < row["downlink_bytes"]  # version 0 is not sent at all
    planned = make_plan(compose([*SMALL, *large, *sketch]))
    assert planned.uplink_bytes == pytest.approx(row["uplink_bytes"], rel=0.03)
    assert planned.downlink_bytes == pytest.approx(row["downlink_bytes"], rel=0.05)
