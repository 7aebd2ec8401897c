"""The frozen part of a model on a device: from the seed, from its folder, or from a message; or it asks."""

from pathlib import Path

import pytest
import torch
from flwr.app import RecordDict
from safetensors.torch import load_file
from torch import nn

from fedsketch.delivery import frozen_part as frozen
from fedsketch.delivery.frozen_part import FrozenPart
from fedsketch.delivery.records import FROZEN
from fedsketch.errors import ModelError, UnsafeUpdateError
from fedsketch.secagg import Refusal
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.models.initialisation import initialise

NOTHING = RecordDict()


def _part(seed: int, width: int = 3) -> FrozenPart:
    module = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
    initialise(module, seed)
    module[0].requires_grad_(False)
    return FrozenPart(FlatModel(module))


def _value(part: FrozenPart) -> torch.Tensor:
    return part.model.frozen["0.weight"]


def test_what_the_seed_gives_is_not_asked_for() -> None:
    server, device = _part(1), _part(1)
    assert server.head() == {FROZEN: device.fingerprint}
    assert list(server.parcel(0)) == []
    assert device.receive(NOTHING, server.head(), None)
    assert FrozenPart(FlatModel(nn.Linear(3, 2))).head() == {}


@pytest.mark.parametrize("kept", [True, False])
def test_what_it_does_not_give_is_asked_for_once(kept: bool, tmp_path: Path) -> None:
    """Once for the device if it has a folder, once for the process if not."""
    server, device = _part(1), _part(2)
    trained, folder = device.model.vector.clone(), tmp_path if kept else None
    assert not device.receive(NOTHING, server.head(), folder)
    assert device.receive(server.whole(), server.head(), folder)
    assert torch.equal(_value(device), _value(server))
    assert torch.equal(device.model.vector, trained)
    assert device.receive(NOTHING, server.head(), folder)
    assert _part(2).receive(NOTHING, server.head(), folder) == kept
    if kept:
        after_restart = _part(2)
        after_restart.receive(NOTHING, server.head(), folder)
        assert torch.equal(_value(after_restart), _value(server))


@pytest.mark.parametrize("harm", ["none", "cut", "another model", "another part"])
def test_a_file_of_no_use_is_asked_for_again_and_replaced(harm: str, tmp_path: Path) -> None:
    server, path = _part(1), tmp_path / frozen.FILE
    _part(2).receive(server.whole(), server.head(), tmp_path)
    if harm == "none":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        other = _part(3, width=5 if harm == "another model" else 3)
        _part(2, width=len(_value(other))).receive(other.whole(), other.head(), tmp_path)
    device = _part(2)
    assert not device.receive(NOTHING, server.head(), tmp_path)
    assert device.receive(server.whole(), server.head(), tmp_path)
    assert torch.equal(load_file(path)["0.weight"], _value(server))


def test_a_server_that_goes_on_wants_the_frozen_part_that_it_began_with() -> None:
    _part(1).refuse_another(_part(1).fingerprint)
    with pytest.raises(ModelError, match=r"not the one with which the run began.*model\.weights"):
        _part(2).refuse_another(_part(1).fingerprint)


@pytest.mark.parametrize("other", [None, "another"])
def test_another_feature_map_is_refused_with_a_sentence(other: str | None) -> None:
    model = FlatModel(nn.Linear(3, 2))
    server = FrozenPart(model, "one")
    assert not server.sent
    assert FrozenPart(model, "one").receive(NOTHING, server.head(), None)
    with pytest.raises(Refusal, match="install the same version"):
        FrozenPart(model, other).receive(NOTHING, server.head(), None)
    with pytest.raises(Refusal, match="install the same version"):
        server.receive(NOTHING, FrozenPart(model, other).head(), None)


def test_what_came_must_be_what_all_were_told(tmp_path: Path) -> None:
    device, told = _part(2), _part(1).head()
    with pytest.raises(UnsafeUpdateError, match="not the one that all devices were told"):
        device.receive(_part(3).whole(), told, tmp_path)
    with pytest.raises(ModelError, match="another model"):
        device.receive(_part(1, width=9).whole(), told, tmp_path)
    assert not (tmp_path / frozen.FILE).exists()
    assert not device.receive(NOTHING, told, tmp_path)
    assert device.fingerprint == FrozenPart(device.model).fingerprint
