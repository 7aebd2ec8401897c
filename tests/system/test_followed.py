"""Whole runs whose devices repeat the server's optimiser steps (`strategy.broadcast=auto`): the model of the server,
with clients that miss rounds, dropouts and after a resume, for the bytes of a few numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict
from safetensors.torch import load_file

from fedsketch.client.app import make_app
from fedsketch.conf import compose
from fedsketch.delivery.replica import Replicas
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.server.plan import make_plan
from fedsketch.server.rounds import Rounds
from tests.observers import Recorder, Stopped
from tests.small import LARGER, UNMASKED, small

RUN = (
    "rounds=6 clients.per_round=3 privacy.randomness=seeded privacy.epsilon=null "
    "privacy.noise_multiplier=1 strategy.server.momentum=0.9"
)
SGM = small("strategy=fed_sgm strategy.sketch_dim=20", RUN, *LARGER)
COMMON = small("strategy=csgm strategy.mask=common privacy=client strategy.rate=0.03", RUN, *LARGER)
PCDP = [
    *("strategy=fedpcdp", "data.public=24", "strategy.rank=4", "strategy.public_examples=8"),
    *("strategy.local.steps=2", "strategy.local.batch=3", "strategy.refresh=2", "privacy.clip=0.1"),
]
PUBLIC = small(*PCDP, RUN, *LARGER)
NUMBERS = 4 * 610  # bytes of the model


class _Wired(LocalGrid):
    """Delivers what a wire would: bytes, read again on the other side."""

    def _answer(self, message: Message) -> Message:
        sent = recorddict_to_proto(message.content).SerializeToString()
        message.content = recorddict_from_proto(RecordDict.FromString(sent))
        return super()._answer(message)


def _run(
    folder: Path, *overrides: str, lost: frozenset[int] = frozenset()
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """A run in which the clients that are lost fail in round 3."""
    config = compose(list(overrides))
    app = make_app()

    def failing(message: Message, context: Any) -> Message:
        trains = message.metadata.message_type.startswith("train")
        if (
            trains
            and message.metadata.group_id == "3"
            and context.node_config["partition-id"] in lost
        ):
            raise RuntimeError("This device lost its power.")
        return app(message, context)

    with simulated_devices(config):
        Rounds(config, folder, Recorder()).run(_Wired(failing, 6))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return load_file(folder / "model.safetensors"), rows


@pytest.mark.parametrize(
    "run",
    [
        [*SGM, *UNMASKED],
        [*SGM, "secagg=pairwise", "strategy.sketch=hadamard"],
        pytest.param(
            [*SGM, *UNMASKED, "strategy.server.optimizer=amsgrad", "clients.sampling=poisson"],
            marks=pytest.mark.slow,
        ),
        [*COMMON, "secagg=pairwise"],
    ],
)
def test_devices_that_follow_make_the_run_of_devices_that_are_told(
    tmp_path: Path, run: list[str]
) -> None:
    """Half of the clients per round, so that most come back after a gap. The full broadcast computes in float32, replay
    in float64: the models differ by rounding."""
    full, told = _run(tmp_path / "full", *run, "strategy.broadcast=full")
    replayed, followed = _run(tmp_path / "replay", *run, "strategy.broadcast=auto")
    for name, tensor in full.items():
        torch.testing.assert_close(replayed[name], tensor, rtol=1e-3, atol=1e-3)
    for key in ("epsilon", "clients"):
        assert [row[key] for row in told] == [row[key] for row in followed]
    saved = [a["downlink_bytes"] - b["downlink_bytes"] for a, b in zip(told, followed, strict=True)]
    assert saved[0] > NUMBERS  # version 0 is not sent at all
    assert all(one > NUMBERS / 2 for one in saved)


@pytest.mark.parametrize("run", [[*SGM, *UNMASKED], [*PUBLIC, "secagg=none", "model=mlp"]])
def test_no_device_asks_for_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: list[str]
) -> None:
    """So the models of devices are the server's, bit by bit: their fingerprint is compared."""
    problems = []
    receive = Replicas.receive

    def watched(self: Replicas, *arguments: Any) -> str | None:
        problems.append(receive(self, *arguments))
        return problems[-1]

    monkeypatch.setattr(Replicas, "receive", watched)
    _run(tmp_path / "run", *run)
    assert len(problems) >= 18
    assert set(problems) == {None}


def test_clients_that_dropped_out_catch_up(tmp_path: Path) -> None:
    everybody = ["clients.per_round=6", "clients.tolerated_dropouts=0.4", "clients.sampling=fixed"]
    _, rows = _run(tmp_path / "run", *SGM, *UNMASKED, *everybody, lost=frozenset({1, 4}))
    assert [row["dropped"] for row in rows] == [0, 0, 2, 0, 0, 0]


@pytest.mark.parametrize("kept", [True, False], ids=["devices stay", "devices restart"])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path: Path, kept: bool) -> None:
    """The server has forgotten who holds what, and what was sent: it sends the whole."""
    config = compose([*SGM, *UNMASKED])
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


def test_the_plan_knows_what_goes_down(tmp_path: Path) -> None:
    everybody = [*SGM, *UNMASKED, "clients.per_round=6"]
    _, rows = _run(tmp_path / "run", *everybody)
    plan = make_plan(compose(everybody))
    assert plan.downlink_bytes == pytest.approx(rows[-1]["downlink_bytes"], rel=0.03)


def test_where_steps_are_longer_than_the_model_it_is_sent() -> None:
    """A client is in every other round: two steps of 400 numbers are longer than 610."""
    long, half = "strategy.sketch_dim=400", "strategy.sketch_dim=300"
    sizes = {
        (dim, mode): make_plan(
            compose([*SGM, *UNMASKED, dim, f"strategy.broadcast={mode}"])
        ).downlink_bytes
        for dim in (long, half)
        for mode in ("auto", "full")
    }
    assert sizes[long, "auto"] == sizes[long, "full"]
    assert sizes[half, "auto"] < sizes[half, "full"]


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("projection", ["before", "after"])
def test_directions_are_sent_only_when_they_are_new(
    tmp_path: Path, model: str, projection: str
) -> None:
    """Every other round, and a client that comes back gets those that it missed. They are made from inputs that are
    rounded to one part in 2,047, and so are nearly those of the full broadcast."""
    run = [*PUBLIC, "secagg=none", f"model={model}", f"strategy.projection={projection}"]
    run += ["clients.per_round=6", "privacy.noise_multiplier=0.01"]
    full, told = _run(tmp_path / "full", *run, "strategy.broadcast=full")
    replayed, followed = _run(tmp_path / "replay", *run, "strategy.broadcast=auto")
    for name, tensor in full.items():
        assert float((replayed[name] - tensor).norm()) < 0.05 * float(tensor.norm() + 1)
    down = [row["downlink_bytes"] for row in followed]
    assert down[1] < down[0] - 1000 < told[0]["downlink_bytes"]
    assert down[3] < down[2]
    assert down[5] < down[4]
    assert [row["basis_rank"] for row in followed] == [row["basis_rank"] for row in told]


def test_a_stopped_run_of_fedpcdp_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    config = compose([*PUBLIC, "secagg=none"])
    with simulated_devices(config):
        for folder, stop in (("whole", 0), ("stopped", 3)):
            if stop:
                with pytest.raises(Stopped):
                    Rounds(config, tmp_path / folder, Recorder(stop)).run(_Wired(make_app(), 6))
            Rounds(config, tmp_path / folder, Recorder()).run(_Wired(make_app(), 6))
    models = [(tmp_path / f / "model.safetensors").read_bytes() for f in ("whole", "stopped")]
    assert models[0] == models[1]
