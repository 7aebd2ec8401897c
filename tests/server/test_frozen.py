"""Whole runs of which a part of the model is frozen: what they cost, what they learn, and where devices get the frozen
part."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsketch.conf import compose
from fedsketch.errors import ModelError, TooFewClients
from fedsketch.server.plan import make_plan
from fedsketch.tasks.models.plugin_features import own_map
from fedsketch.tasks.workload import Workload
from tests.small import plain

Play = Callable[..., Any]
Install = Callable[..., None]
HEAD_ONLY = ["model=mlp", "model.width=5", "model.trainable=[output.*]"]
SEEDED = ["rounds=2", "privacy.randomness=seeded"]
SECAGG = ["secagg=pairwise", "privacy.against=server"]
BY_EXAMPLE = ["privacy=example", "privacy.against=model"]
DOME = ["strategy=dome", "strategy.sketch=flat", "strategy.sketch_dim=9"]
# The body of that model, as a package would bring it.
BODY = """
from safetensors.torch import load_file
from torch import nn

def make(shape):
    whole = load_file("FILE")
    body = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU())
    body[1].load_state_dict({"weight": whole["hidden.weight"], "bias": whole["hidden.bias"]})
    return body, (5,)
"""


def _given(folder: Path, seed: int) -> Path:
    """The file of a whole model, body and head: that of a run's own seed is what it starts from anyway."""
    module = Workload(compose(plain(*HEAD_ONLY, f"seed={seed}"))).model().module
    save_file(module.state_dict(), folder / "whole.safetensors")
    return folder / "whole.safetensors"


@pytest.fixture
def head_alone(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], list[str]]:
    """The overrides of a model that is the head alone, on what the body makes of the data; from a file of both."""

    def overrides(whole: Path) -> list[str]:
        monkeypatch.setenv("FEDSKETCH_CACHE", str(tmp_path / "cache"))
        own_map.cache_clear()
        code = {"__init__.py": BODY.replace("FILE", str(whole))}
        install("plugin_body", code, {"fedsketch.features": "body = plugin_body:make"})
        head = {k: x for k, x in load_file(whole).items() if k.startswith("output")}
        save_file(head, tmp_path / "head.safetensors")
        weights = f"model.weights={tmp_path / 'head.safetensors'}"
        return ["model=logistic", "model.features=body", weights]

    return overrides


@pytest.mark.parametrize(
    ("keys", "seed"),
    [
        ([], 0),
        (SECAGG, 7),
        pytest.param([], 7, marks=pytest.mark.slow),
        pytest.param(BY_EXAMPLE, 7, marks=pytest.mark.slow),
        pytest.param([*DOME, "strategy.broadcast=replay"], 7, marks=pytest.mark.slow),
    ],
)
def test_a_frozen_body_costs_and_learns_what_the_head_alone_does(
    keys: list[str],
    seed: int,
    head_alone: Callable[[Path], list[str]],
    play: Play,
    tmp_path: Path,
) -> None:
    """Same d, noise, epsilon and bytes, and the same updates with the same noise; with the seed's own body, and with
    another that devices have to be sent."""
    whole = _given(tmp_path, seed)
    frozen = [*keys, *SEEDED, *HEAD_ONLY, *([f"model.weights={whole}"] if seed else [])]
    alone = [*keys, *SEEDED, *head_alone(whole)]
    plans = [make_plan(compose(plain(*overrides))) for overrides in (frozen, alone)]
    for key in ("parameters", "upload_size", "noise_multiplier", "epsilon", "uplink_bytes"):
        assert getattr(plans[0], key) == getattr(plans[1], key)
    assert (plans[0].parameters, plans[0].frozen, plans[1].frozen) == (18, 35, 0)
    runs = [play(*o, folder=f, fresh=True) for o, f in ((frozen, "frozen"), (alone, "alone"))]
    for rows in zip(runs[0].rows, runs[1].rows, strict=True):
        asking = seed and rows[0]["round"] == 1
        assert asking or len({row["uplink_bytes"] for row in rows}) == 1
        assert len({str(row["epsilon"]) for row in rows}) == 1
        assert rows[0]["clients"] == rows[1]["clients"] == 6
    ended, head = (load_file(tmp_path / f / "model.safetensors") for f in ("frozen", "alone"))
    started = load_file(whole)
    for name, tensor in head.items():
        torch.testing.assert_close(ended[name], tensor, rtol=1e-4, atol=1e-5)
        assert float((tensor - started[name]).abs().max()) > 1e-3
    for name in ("hidden.weight", "hidden.bias"):
        assert torch.equal(ended[name], started[name])


@pytest.mark.parametrize("keys", [[], pytest.param(SECAGG, marks=pytest.mark.slow)])
def test_frozen_weights_are_sent_once_and_only_if_the_seed_does_not_give_them(
    keys: list[str], play: Play, tmp_path: Path
) -> None:
    run = [*keys, "rounds=3", "model=mlp", "model.width=500", "model.trainable=[output.*]"]
    seeded = play(*run, folder="seeded", fresh=True)
    wide = {"hidden.weight": torch.randn(500, 6), "hidden.bias": torch.randn(500)}
    save_file(wide, tmp_path / "given.safetensors")
    run += [f"model.weights={tmp_path / 'given.safetensors'}"]
    given = play(*run, folder="given", fresh=True)
    cheap = [row["downlink_bytes"] for row in seeded.rows]
    first, *later = (row["downlink_bytes"] for row in given.rows)
    plan = make_plan(compose(plain(*run)))
    assert plan.frozen_bytes == 4 * 3500
    assert later == pytest.approx(cheap[1:], rel=0.01)
    # Each of the six, and the message that it answered with the question.
    assert plan.frozen_bytes < first - cheap[0] < plan.frozen_bytes + 1.3 * cheap[0]
    ended = load_file(tmp_path / "given" / "model.safetensors")
    assert all(torch.equal(ended[name], tensor) for name, tensor in wide.items())


def test_a_run_with_adapters_saves_a_plain_model_and_is_resumed_with_them(
    play: Play, tmp_path: Path
) -> None:
    adapters = ["model=mlp", "model.width=5", "model.lora_rank=2"]
    run = [*adapters, "rounds=3", "privacy.randomness=seeded", "clients.retries=0"]
    whole = play(*run, folder="whole")
    with pytest.raises(TooFewClients):
        play(*run, failing=lambda call, client: call == 13)  # in round 3
    assert play(*run).done == 2
    ended, unbroken = (load_file(tmp_path / f / "model.safetensors") for f in ("run", "whole"))
    started = Workload(compose(plain("model=mlp", "model.width=5"))).model().module.state_dict()
    assert ended.keys() == started.keys()
    for name, tensor in ended.items():
        assert torch.equal(tensor, unbroken[name])
        assert torch.equal(tensor, started[name]) == name.endswith("bias")
    assert whole.summary["parameters"] == 2 * (6 + 5) + 2 * (5 + 3)
    assert whole.summary["frozen"] == 53


@pytest.mark.slow
def test_a_run_does_not_go_on_with_another_frozen_part(play: Play, tmp_path: Path) -> None:
    whole = _given(tmp_path, seed=7)
    run = [*HEAD_ONLY, "clients.retries=0", f"model.weights={whole}"]
    with pytest.raises(TooFewClients):
        play(*run, fresh=True, failing=lambda call, client: call == 13)
    _given(tmp_path, seed=8)
    with pytest.raises(ModelError, match=r"not the one with which the run began.*model\.weights"):
        play(*run)
    _given(tmp_path, seed=7)
    assert play(*run).done == 1
