"""What a device writes is in its folder, and only its user can read it, whatever the user's umask is."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from fedsketch.client.enroll import enrol
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.guard import LEDGER
from fedsketch.client.guard.ledger import Ledger
from fedsketch.delivery import frozen_part, replica
from fedsketch.delivery.frozen_part import FrozenPart
from fedsketch.delivery.replica import Replicas
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.models.initialisation import initialise
from tests.client.guard.charges import charged

CARD = DataCard("digits", (1, 8, 8), tuple("0123456789"), 512)


@pytest.fixture
def careless() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def _modes(folder: Path) -> dict[str, str]:
    return {file.name: oct(stat.S_IMODE(file.stat().st_mode)) for file in folder.iterdir()}


class _State:
    """What a replica brings up to date: one tensor."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"vector": torch.zeros(3)}


def _part(seed: int) -> FrozenPart:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    initialise(module, seed)
    module[0].requires_grad_(False)
    return FrozenPart(FlatModel(module))


@pytest.mark.usefixtures("careless")
def test_everything_in_its_folder_has_mode_600(tmp_path: Path) -> None:
    device, shared = tmp_path / "device", tmp_path / "roster.json"
    for rotate in (False, True):
        enrol(device, 7, shared, card=CARD, rotate=rotate)
    charged(Ledger(device / LEDGER), 1)
    Replicas(None)._keep(None, _State(), "goal", device)  # type: ignore[arg-type]
    server = _part(1)
    assert _part(2).receive(server.whole(), server.head(), device)
    modes = _modes(device)
    names = {"identity.key", "roster.json", "policy.toml", "data.toml", LEDGER}
    assert names | {replica.FILE, frozen_part.FILE} <= modes.keys()
    assert set(modes.values()) == {"0o600"}, modes
    assert oct(stat.S_IMODE(device.stat().st_mode)) == "0o700"
    assert _modes(tmp_path)["roster.json"] == "0o666"  # others read it: as the umask says
