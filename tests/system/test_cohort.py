"""`runtime=cohort` is the same run as `runtime=local`, for every strategy: with the noise of each device bit by bit;
and with noise of the sum by rows that are the same up to rounding."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedsketch.runtime import batched_clients
from fedsketch.runtime.batched_clients import BatchedClients
from tests.small import small

Play = Callable[..., int]

NETWORK = "data.shape=[1,4,5] model=mlp model.width=8"
SEEDED = "rounds=2 privacy.epsilon=null privacy.noise_multiplier=0.5 privacy.randomness=seeded"
PUBLIC = ("data.public=12",)
RUNS = {
    "frozen part": ("strategy=dp_fedavg", "model.trainable=[output.*]"),
    "dp_fedavg": ("strategy=dp_fedavg",),
    "several local steps": (
        *("strategy=dp_fedavg", "strategy.local.steps=3", "strategy.local.batch=4"),
        "strategy.local.momentum=0.5",
    ),
    "examples": ("strategy=dp_fedavg", "privacy=example", "data/partition=by_size"),
    "examples, fed_sgm": (
        *("strategy=fed_sgm", "privacy=example", "strategy.local.steps=1"),
        "strategy.local.batch=0",
    ),
    "examples, public directions": (
        *("strategy=dome", "strategy.directions=public", "strategy.sketch_dim=0.5", *PUBLIC),
        *("privacy=example", "model.width=60", "data.shape=[1,2,30]", "rounds=3"),
    ),
    "examples, adaptive clip": (
        *("strategy=dome", "privacy=example", "privacy.clip=adaptive", "strategy.sketch_dim=0.5"),
    ),
    "adaptive clip": ("strategy=dp_fedavg", "privacy.clip=adaptive"),
    "poisson": (
        *("strategy=dp_fedavg", "clients.sampling=poisson", "clients.per_round=4"),
        "privacy.against=model",
    ),
    "semi-honest": ("strategy=dp_fedavg", "secagg=semi_honest"),
    "no masks": ("strategy=dp_fedavg", "secagg=none"),
    "no masks, integers": ("strategy=dp_fedavg", "secagg=none", "secagg.noise=skellam"),
    "fed_sgm": ("strategy=fed_sgm", "strategy.local.epochs=2", "strategy.local.batch=4"),
    "dome": ("strategy=dome", "strategy.error_feedback=0.5"),
    "dome, broadcast full": ("strategy=dome", "strategy.broadcast=full"),
    "dome, blocks of a transformer": (
        *("strategy=dome", "strategy.sketch=blocks", "strategy.local.batch=3"),
        *("model=transformer", "model.patch=4", "model.depth=1"),
    ),
    "dome, public directions": (
        *("strategy=dome", "strategy.directions=public", "strategy.sketch_dim=0.5", *PUBLIC),
    ),
    "csgm": ("strategy=csgm",),
    "csgm, common mask": (
        *("strategy=csgm", "strategy.mask=common", "privacy=client", "secagg=pairwise"),
    ),
    "sgmf": ("strategy=sgmf", "clients.per_round=3", "clients.sampling=passes"),
    "fedceo": ("strategy=fedceo", "strategy.every=2"),
    "fedceo, stacks": (
        *("strategy=fedceo", "strategy.every=1", "strategy.start=slots", "secagg=none"),
    ),
    "fedpcdp": (
        *("strategy=fedpcdp", "strategy.rank=4", "strategy.public_examples=6", *PUBLIC),
        *("strategy.local.steps=3", "strategy.local.batch=4"),
    ),
    "evaluation on devices": (
        *("strategy=dome", "evaluation=federated", "evaluation.held_out=0.2", "evaluation.every=1"),
    ),
    "fedavg": ("strategy=fedavg", "privacy.noise_multiplier=0.0"),
    "fedavg, masked": (
        *("strategy=fedavg", "privacy.noise_multiplier=0.0", "privacy.clip=20", "secagg=pairwise"),
    ),
}
SAME = ("round", "accuracy", "loss", "epsilon", "clients", "dropped", "snr")


# One of each strategy by default.
QUICK = (
    "dp_fedavg",
    "examples, public directions",
    "fed_sgm",
    "dome",
    "csgm",
    "sgmf",
    "fedceo",
    "fedpcdp",
    "fedavg",
)
EACH = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in RUNS]
IN_TURN = ("fedpcdp",)  # noise in training is each client's own


def _settings(name: str) -> list[str]:
    return small(NETWORK, SEEDED, *RUNS[name])


def _run(play: Play, folder: Path, *overrides: str) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """The model and the metrics."""
    play(folder.name, *overrides)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)]), rows


@pytest.mark.parametrize("name", EACH)
def test_noise_of_each_device_gives_the_same_run(play: Play, tmp_path: Path, name: str) -> None:
    settings = _settings(name)
    model, rows = _run(play, tmp_path / "local", *settings)
    own, ours = _run(
        play, tmp_path / "cohort", *settings, "runtime=cohort", "runtime.noise=per_device"
    )
    assert torch.equal(own, model)
    for mine, theirs in zip(ours, rows, strict=True):
        for key in (*SAME, *(key for key in theirs if key.startswith("federated_"))):
            assert mine[key] == theirs[key], key
    for mine, theirs in zip(ours, rows, strict=True):
        for key in ("uplink_bytes", "downlink_bytes"):  # node ids have other lengths
            assert mine[key] == pytest.approx(theirs[key], rel=0.05)


@pytest.mark.parametrize("name", EACH)
def test_rows_made_together_are_those_made_in_turn(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With what clients keep from round to round; and in parts of two or three clients."""
    make, compared = BatchedClients._rows, []

    def both(self: BatchedClients, common: Any, clients: list[int]) -> Any:
        before = copy.deepcopy(self._memories)
        made, lost = make(self, common, clients)
        after, self._memories = self._memories, before
        with monkeypatch.context() as patch:
            patch.setattr(batched_clients, "batched_rows", lambda half, prepared, work: None)
            expected, _ = make(self, common, clients)
        largest = float(expected.rows.abs().max())
        torch.testing.assert_close(made.rows, expected.rows, rtol=1e-4, atol=1e-5 * largest)
        assert (made.clients, made.counts, lost) == (expected.clients, expected.counts, {})
        assert after.keys() == self._memories.keys()
        for client, memory in after.items():
            torch.testing.assert_close(memory, self._memories[client], rtol=1e-4, atol=1e-5)
        compared.append(type(common.half))
        return made, lost

    find = BatchedClients._factored

    def dense_too(self: BatchedClients, common: Any, clients: list[int]) -> None:
        """Factors stand for the same rows; the run goes on with the rows."""
        found = find(self, common, clients)
        if found is not None:
            expected, _ = make(self, common, clients)
            largest = float(expected.rows.abs().max())
            dense = torch.cat([torch.from_numpy(own.dense()) for own in found]).float()
            torch.testing.assert_close(dense, expected.rows, rtol=1e-4, atol=1e-5 * largest)
            assert [len(own) for own in found] == expected.counts
        as_factors.append(found is not None)

    as_factors: list[bool] = []
    monkeypatch.setattr(BatchedClients, "_rows", both)
    monkeypatch.setattr(BatchedClients, "_factored", dense_too)
    parts = BatchedClients._parts
    monkeypatch.setattr(
        BatchedClients,
        "_parts",
        lambda self, common, clients: (
            part[i : i + 3] for part in parts(self, common, clients) for i in (0, 3) if part[i:]
        ),
    )
    settings = (*_settings(name), "runtime=cohort", "runtime.workers=1")
    _, rows = _run(play, tmp_path / "cohort", *settings)
    assert all(row["dropped"] == 0 for row in rows)
    assert (len(compared) >= 2) is (name not in IN_TURN)
    assert any(as_factors) is (name in ("examples", "examples, public directions"))
