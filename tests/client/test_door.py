"""Whatever a server sends, all that a device lets out about its data is the vector that its ledger has booked.

Two fleets of real devices (policy, ledger, roster, the real ClientApp) that differ in nothing but their data get the
same hostile messages. Everything that leaves them is compared, except the masked vectors themselves: which replies
come, their records, types and sizes, every text, and the lines of the ledgers.
"""

import logging
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from safetensors.torch import save_file

from fedsketch.conf import compose
from fedsketch.tasks.workload import Workload
from tests.client.fleet import NODES, RUN, Fleet, npz, overflows_above, same
from tests.rounds import coordinator_of

NOISE_IN_TRAINING = (
    "strategy=fedpcdp",
    "strategy.projection=none",
    "strategy.local.steps=3",
    "data.largest_shard=200",
    "privacy.epsilon=null",
    "privacy.noise_multiplier=1",
)


def test_the_crafted_model_overflows_exactly_above_its_threshold() -> None:
    """Or the attack below would attack nothing."""
    from fedsketch.tasks.models.flat_model import FlatModel

    workload = Workload(compose(RUN))
    for pixel, finite in ((0.4, True), (0.9, False)):
        model: FlatModel = workload.model()
        model.load(overflows_above(0.5, model.size))
        inputs = torch.zeros(1, 1, 2, 2)
        inputs[0, 0, 0, 0] = pixel
        _, gradient = model.loss_and_gradient(inputs, torch.zeros(1, dtype=torch.int64))
        assert bool(torch.isfinite(gradient).all()) is finite


@pytest.mark.parametrize("overrides", [(), NOISE_IN_TRAINING])
def test_a_model_that_overflows_on_a_private_pixel_reads_nothing(
    worlds: Any, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    """Before: an error reply where the pixel is above the threshold, another refusal where it is below, neither
    charged."""

    def attack(fleet: Fleet) -> list[str]:
        crafted = overflows_above(0.5, fleet.strategy.model.size)
        return [fleet.play(crafted, server_round) for server_round in (1, 2)]

    low, high = npz(tmp_path / "low.npz", 0.4), npz(tmp_path / "high.npz", 0.9)
    told = worlds(attack, low, high, *overrides)
    same(told)
    assert told[0][0] == ["a sum", "a sum"]
    charged = [line for line in told[0][2][0] if line["entry"] == "charged"]
    assert len(charged) == 2


@pytest.mark.parametrize("fits", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_frozen_part_that_overflows_on_a_private_pixel_reads_nothing(
    worlds: Any, tmp_path: Path, fits: bool
) -> None:
    """It is asked for before anything is charged, kept on the device, and all else is as with any model; where it is
    not what all devices were told, nobody trains."""
    body = {"hidden.weight": torch.zeros(3, 4), "hidden.bias": torch.zeros(3)}
    body["hidden.weight"][:, 0] = 3e38
    # Infinite exactly if the first pixel exceeds a half.
    body["hidden.bias"][:] = 3.4e38 - 3e38 * 0.5
    save_file(body, tmp_path / "body.safetensors")
    crafted = ("model=mlp", "model.width=3", "model.trainable=[output.*]")

    def attack(fleet: Fleet) -> list[str]:
        if not fits:
            coordinator_of(fleet.strategy).frozen.fingerprint = "of another one"
        start = torch.ones(fleet.strategy.model.size)
        ends = [fleet.play(start, server_round) for server_round in (1, 2)]
        kept = [folder / "frozen.safetensors" for folder in fleet.root.glob("device*")]
        assert any(path.exists() for path in kept) == fits  # they share a process, so one is enough
        return ends

    low, high = npz(tmp_path / "low.npz", 0.4), npz(tmp_path / "high.npz", 0.9)
    told = worlds(attack, low, high, *crafted, f"model.weights={tmp_path / 'body.safetensors'}")
    same(told)
    assert (told[0][0] == ["a sum", "a sum"]) is fits
    questions = [what for _, what in told[0][1] if "frozen" in what[-1]]
    assert len(questions) == NODES if fits else len(questions) >= NODES
    charged = [line for line in told[0][2][0] if line["entry"] == "charged"]
    assert len(charged) == (2 if fits else 0)


def test_a_round_is_answered_once_whatever_model_comes_with_it(worlds: Any, tmp_path: Path) -> None:
    """A second request for the same round gets the same refusal, trained or not."""

    def attack(fleet: Fleet) -> list[str]:
        ends = [fleet.play(overflows_above(0.5, fleet.strategy.model.size))]
        content, node = fleet.grid.sent[0]
        list(fleet.grid.send_and_receive([Message(content, node, "train")]))
        return ends

    told = worlds(attack, npz(tmp_path / "low.npz", 0.4), npz(tmp_path / "high.npz", 0.9))
    same(told)
    assert "was seen before" in str(told[0][1][-1])


@pytest.mark.parametrize(
    "trouble", ["none", "missing", "broken", "other shape", "other classes", "huge", "more"]
)
@pytest.mark.parametrize("overrides", [(), NOISE_IN_TRAINING])
def test_broken_data_look_like_any_other(
    worlds: Any,
    tmp_path: Path,
    trouble: str,
    overrides: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No data, unreadable, of another shape, with other classes, with 3e38 in it, another number of examples."""
    bad: Path | None = tmp_path / "bad.npz"
    assert bad is not None
    if trouble == "none":
        bad = None
    elif trouble == "broken":
        bad.write_bytes(b"not an archive")
    elif trouble == "other shape":
        np.savez(bad, inputs=np.zeros((2, 1, 3, 3), np.float32), targets=np.zeros(2, np.int64))
    elif trouble == "other classes":
        np.savez(bad, inputs=np.zeros((2, 1, 2, 2), np.float32), targets=np.array([0, 7]))
    elif trouble == "huge":
        npz(bad, 3e38)
    elif trouble == "more":
        npz(bad, 0.5, count=137)

    def attack(fleet: Fleet) -> str:
        return fleet.play(torch.zeros(fleet.strategy.model.size))

    with caplog.at_level(logging.WARNING):
        told = worlds(attack, npz(tmp_path / "good.npz", 0.5), bad, *overrides)
    same(told)
    assert told[0][0] == "a sum"
    # The owner is told.
    if trouble in ("none", "missing", "broken", "other shape"):
        assert "Training failed" in caplog.text
    elif trouble == "other classes":
        assert "Left out of this device's data: 1 record" in caplog.text


def test_more_examples_than_the_run_allows_look_like_any_other(worlds: Any, tmp_path: Path) -> None:
    """Before: bisection of data.largest_shard told their number."""

    def attack(fleet: Fleet) -> str:
        return fleet.play(torch.zeros(fleet.strategy.model.size))

    bound = (
        "privacy=example",
        "data.largest_shard=5",
        "privacy.epsilon=null",
        "privacy.noise_multiplier=1",
    )
    few, many = npz(tmp_path / "few.npz", 0.5, 3), npz(tmp_path / "many.npz", 0.5, 9)
    told = worlds(attack, few, many, *bound)
    same(told)
    assert told[0][0] == "a sum"


def test_rows_that_are_not_finite_are_zeros_one_by_one() -> None:
    from fedsketch.privacy.mechanisms.clipping import finite_rows

    rows = torch.tensor([[1.0, 2.0], [float("nan"), 3.0], [4.0, float("inf")], [3e38, -3e38]])
    assert finite_rows(rows).tolist() == [
        [1.0, 2.0],
        [0.0, 0.0],
        [0.0, 0.0],
        [rows[3, 0], rows[3, 1]],
    ]


PARTITION = {"scheme": "iid", "alpha": None, "shards_per_client": None, "exponent": None}
MADE_UP = {"examples": 10, "test_examples": 10, "shape": [1, 2, 2], "classes": 2, "separation": 1.0}
HOSTILE: dict[str, dict[str, dict[str, Any]]] = {
    "a path": {"data": {"name": "mnist", "root": "/etc", "partition": PARTITION}},
    "a download": {"data": {"name": "cifar10", "root": None, "partition": PARTITION}},
    "a wide model": {"model": {"name": "mlp", "width": 10**12}},
    "a deep model": {"model": {"name": "resnet", "width": 1, "depth": 6 * 10**9 + 2}},
    "large images": {"data": {"shape": [1, 10**6, 10**6]}},
    "many made-up examples": {
        "data": {
            "name": "synthetic",
            "root": None,
            "partition": PARTITION,
            **MADE_UP,
            "examples": 10**12,
        }
    },
    "many classes": {"data": {"classes": 10**9}},
    "endless work": {
        "strategy": {
            "local": {"steps": 10**12, "epochs": None, "batch": 0, "lr": 1.0, "momentum": 0.0}
        }
    },
    "code by name": {"strategy": {"name": "os"}},
    "a model of a package": {"model": {"name": "antigravity"}},
    "a task of a package": {"task": {"name": "antigravity"}},
    "a feature map of a package": {"model": {"features": "antigravity"}},
    "large adapters": {"model": {"lora_rank": 10**12}},
}


TABLE = {"name": "csv", "partition": PARTITION, "test_root": None, "test_share": 0.5}
HOSTILE |= {
    "a table by its path": {"data": {**TABLE, "root": "/etc/passwd", "schema": None}},
    "a schema by its path": {"data": {**TABLE, "root": None, "schema": "/etc/passwd"}},
    "a fingerprint that is none": {"data": {"fingerprint": "../../etc/passwd"}},
}
OTHER_KINDS: dict[str, dict[str, dict[str, Any]]] = {
    "another shape": {"data": {"shape": [1, 4, 1]}},
    "more classes": {"data": {"classes": 3}},
    "another task": {"task": {"name": "multilabel"}},
    "a class by name": {"data": {"classes": ["0", "pneumonia"]}},
    "a smaller bound on the examples": {
        "data": {"largest_shard": 3},
        "privacy": {"unit": "example", "clip": 0.1},
    },
    "a table": {"data": {"fingerprint": "0" * 32}},
    "made-up data": {
        "data": {"name": "synthetic", "root": None, "partition": PARTITION, **MADE_UP}
    },
}
HOSTILE |= OTHER_KINDS


def test_a_run_for_other_data_is_refused_by_the_card(worlds: Any, tmp_path: Path) -> None:
    """Before: whether a class exists, the shape, and by bisection the number of examples."""

    def attack(fleet: Fleet) -> list[str]:
        start = torch.zeros(fleet.strategy.model.size)
        return [fleet.play(start, n + 1, **OTHER_KINDS[what]) for n, what in enumerate(OTHER_KINDS)]

    few, many = npz(tmp_path / "few.npz", 0.5, 3), npz(tmp_path / "many.npz", 0.5, 4000)
    told = worlds(attack, few, many)
    same(told)
    for end in told[0][0]:
        assert "The run is for data of another kind than the data card of this device says" in end


@pytest.mark.parametrize("what", sorted(HOSTILE))
def test_hostile_settings_are_refused_before_any_work(
    worlds: Any, tmp_path: Path, what: str
) -> None:
    """The same refusal whatever the data, nothing charged, no file touched, in little time and memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def attack(fleet: Fleet) -> str:
        began = time.monotonic()
        end = fleet.play(torch.zeros(fleet.strategy.model.size), **HOSTILE[what])
        assert time.monotonic() - began < 10  # seconds for four devices, on a busy machine
        return end

    told = worlds(attack, npz(tmp_path / "low.npz", 0.1), tmp_path / "nothing.npz")
    same(told)
    assert told[0][0] != "a sum"
    assert all(line["entry"] != "charged" for ledger in told[0][2] for line in ledger)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 300 * 1024  # KiB
