"""What server and devices derive from one configuration, and what they do not share."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsketch.conf import Config, compose
from fedsketch.errors import ConfigError, DataError
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.workload import Workload

FOLDER = ["data=folder", "data.shape=[1,4,3]", "clients.total=8", "clients.per_round=4"]


def folder_config(*overrides: str) -> Config:
    return compose([*FOLDER, "device=cpu", "data.largest_shard=7", *overrides])


def write(file: Path, examples: int) -> str:
    inputs = np.full((examples, 1, 4, 3), 0.5, np.float32)
    np.savez(file, inputs=inputs, targets=np.arange(examples) % 10)
    return str(file)


def test_clients_share_out_all_examples() -> None:
    workload = Workload(compose(["clients.total=50", "clients.per_round=50", "device=cpu"]))
    sizes = [len(workload.shard(client)) for client in range(50)]
    assert sum(sizes) == workload.examples == 1437
    assert max(sizes) == workload.largest_shard
    assert workload.histogram().sum(1).tolist() == sizes


@pytest.mark.parametrize("client", [50, -1, 2**63])
def test_a_client_without_a_part_is_told_which_there_are(client: int) -> None:
    workload = Workload(compose(["clients.total=50", "clients.per_round=50", "device=cpu"]))
    with pytest.raises(DataError, match=r"clients 0 to 49.*partition-id=0"):
        workload.shard(client)


def test_natural_groups_are_the_clients_without_what_is_public(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = torch.arange(60.0).view(30, 1, 2, 1)
    train = Examples(inputs, torch.arange(30) % 3)
    groups = torch.arange(30) % 5
    data = Dataset("synthetic", train, train, 3, groups=groups)
    monkeypatch.setattr("fedsketch.tasks.data.datasets.load", lambda settings, seed: data)
    asked = ["data=synthetic", "data/partition=natural", "clients.total=5", "clients.per_round=5"]
    whole = Workload(compose(asked))
    for client in range(5):
        assert torch.equal(whole.shard(client).inputs, inputs[groups == client])
    monkeypatch.setattr(
        "fedsketch.tasks.data.federated.draw_for_server",
        lambda *_: (torch.arange(4), torch.arange(4, 30)),
    )
    rest = Workload(compose([*asked, "data.public=4"]))
    for client in range(5):
        wanted = inputs[(groups == client) & (torch.arange(30) >= 4)]
        assert torch.equal(rest.shard(client).inputs, wanted)


def test_a_device_reads_its_own_folder_and_never_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "servers.npz", 3)
    monkeypatch.setenv("FEDSKETCH_DATA", write(tmp_path / "own.npz", 5))
    workload = Workload(folder_config(f"data.root={tmp_path / 'servers.npz'}"))
    assert len(workload.shard(0)) == len(workload.shard(2**64 - 1)) == 5
    assert len(workload.dataset.test) == 3
    (tmp_path / "servers.npz").unlink()
    other = Workload(folder_config(f"data.root={tmp_path / 'servers.npz'}"))
    assert len(other.shard(0)) == 5
    assert other.model().size == workload.model().size  # needs no data at all


def test_a_device_without_a_folder_does_not_take_the_one_that_the_server_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDSKETCH_DATA", raising=False)
    workload = Workload(folder_config(f"data.root={write(tmp_path / 'servers.npz', 3)}"))
    with pytest.raises(DataError, match="This device's data do not fit the run"):
        workload.shard(0)


def test_what_devices_hold_is_planned_by_a_public_bound() -> None:
    workload = Workload(folder_config())
    assert (workload.largest_shard, workload.examples) == (7, 56)
    assert workload.histogram().tolist() == []


def test_the_bound_binds_where_examples_are_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSKETCH_DATA", write(tmp_path / "own.npz", 8))
    assert len(Workload(folder_config("privacy=client")).shard(0)) == 8
    example = folder_config("privacy=example")
    assert len(Workload(example).shard(0)) == Workload(example).largest_shard == 7


def test_classes_are_a_number_or_names() -> None:
    assert Workload(folder_config("data.classes=3")).model().layout[-1].shape == (3,)
    named = folder_config("data.classes=[cat,7]")
    assert named.data.name == "folder"
    assert named.data.class_names == ("cat", "7")
    with pytest.raises(ConfigError, match=r"data\.classes names a class twice"):
        folder_config("data.classes=[7,cat,'7']")
    with pytest.raises(ConfigError, match=r"data\.classes"):
        folder_config("data.classes=1")
    with pytest.raises(ConfigError, match=r"data\.classes"):
        folder_config("data.classes=[cat]")
