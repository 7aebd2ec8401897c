"""What server and devices derive from one configuration, and what they do not share."""

from pathlib import Path

import numpy as np
import pytest

from fedsketch.conf import Config, ConfigError, compose
from fedsketch.tasks.errors import DataError
from fedsketch.tasks.job import Job

FOLDER = ["data=folder", "data.shape=[1,4,3]", "clients.total=8", "clients.per_round=4"]


def folder_config(*overrides: str) -> Config:
    return compose([*FOLDER, "device=cpu", "data.largest_shard=7", *overrides])


def write(file: Path, examples: int) -> str:
    inputs = np.full((examples, 1, 4, 3), 0.5, np.float32)
    np.savez(file, inputs=inputs, targets=np.arange(examples) % 10)
    return str(file)


def test_clients_share_out_all_examples() -> None:
    job = Job(compose(["clients.total=50", "clients.per_round=50", "device=cpu"]))
    sizes = [len(job.shard(client)) for client in range(50)]
    assert sum(sizes) == job.examples == 1437
    assert max(sizes) == job.largest_shard
    assert job.histogram().sum(1).tolist() == sizes


def test_a_device_reads_its_own_folder_and_never_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "servers.npz", 3)
    monkeypatch.setenv("FEDSKETCH_DATA", write(tmp_path / "own.npz", 5))
    job = Job(folder_config(f"data.root={tmp_path / 'servers.npz'}"))
    assert len(job.shard(0)) == len(job.shard(2**64 - 1)) == 5
    assert len(job.dataset.test) == 3
    (tmp_path / "servers.npz").unlink()
    other = Job(folder_config(f"data.root={tmp_path / 'servers.npz'}"))
    assert len(other.shard(0)) == 5
    assert other.model().size == job.model().size  # needs no data at all


def test_a_device_without_a_folder_does_not_take_the_one_that_the_server_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDSKETCH_DATA", raising=False)
    job = Job(folder_config(f"data.root={write(tmp_path / 'servers.npz', 3)}"))
    with pytest.raises(DataError, match="This device's data do not fit the run"):
        job.shard(0)


def test_what_devices_hold_is_planned_by_a_public_bound() -> None:
    job = Job(folder_config())
    assert (job.largest_shard, job.examples) == (7, 56)
    assert job.histogram().tolist() == []


def test_the_bound_binds_where_examples_are_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSKETCH_DATA", write(tmp_path / "own.npz", 8))
    assert len(Job(folder_config("privacy=client")).shard(0)) == 8
    with pytest.raises(DataError):
        Job(folder_config("privacy=example")).shard(0)


def test_classes_are_a_number_or_names() -> None:
    assert Job(folder_config("data.classes=3")).model().layout[-1].shape == (3,)
    named = folder_config("data.classes=[cat,7]")
    assert named.data.name == "folder"
    assert named.data.class_names == ("cat", "7")
    with pytest.raises(ConfigError, match=r"data\.classes names a class twice"):
        folder_config("data.classes=[7,cat,'7']")
    with pytest.raises(ConfigError, match=r"data\.classes"):
        folder_config("data.classes=1")
    with pytest.raises(ConfigError, match=r"data\.classes"):
        folder_config("data.classes=[cat]")
