"""Public examples are the server's: no client has them, and they are no test."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsketch.conf import Config, compose
from fedsketch.errors import ConfigError, DataError
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.data.public_examples import draw_for_server, read_public
from fedsketch.tasks.workload import Workload

CLIENTS = 20
ONE = ("0",)


def digits(*overrides: str) -> Workload:
    few = [f"clients.total={CLIENTS}", f"clients.per_round={CLIENTS}", "device=cpu"]
    return Workload(compose([*few, *overrides]))


def rows(examples: Examples) -> set[bytes]:
    return {row.numpy().tobytes() for row in examples.inputs}


def images(*values: float) -> Examples:
    """One-pixel images."""
    inputs = torch.tensor(values, dtype=torch.float32).view(-1, 1, 1, 1)
    return Examples(inputs, torch.zeros(len(values), dtype=torch.int64))


def saved(path: Path, examples: Examples) -> str:
    np.savez(path, inputs=examples.inputs.numpy(), targets=examples.targets.numpy())
    return str(path)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards", "by_size"])
def test_held_out_examples_are_in_no_shard_and_in_no_test(partition: str) -> None:
    workload = digits("data.public=100", f"data/partition={partition}")
    shards = [workload.shard(client) for client in range(CLIENTS)]
    assert len(workload.public) == 100
    assert workload.examples == sum(map(len, shards)) == 1437 - 100
    assert workload.histogram().sum() == 1337
    for other in (*shards, workload.dataset.test):
        assert not rows(workload.public) & rows(other)


def test_one_example_for_each_client_leaves_public_ones_alone() -> None:
    workload = digits("data.public=1400", "data/partition=one_example")
    assert not rows(workload.public) & set().union(
        *(rows(workload.shard(c)) for c in range(CLIENTS))
    )


def test_without_public_data_shards_stay_as_they_were() -> None:
    with_none, plain = digits("data.public=0", "seed=3"), digits("seed=3")
    assert torch.equal(with_none.shard(4).inputs, plain.shard(4).inputs)
    assert plain.examples == 1437


def test_a_device_makes_the_same_shards_from_the_configuration_alone() -> None:
    server, device = digits("data.public=50", "seed=2"), digits("data.public=50", "seed=2")
    assert len(server.public) == 50
    assert torch.equal(server.shard(1).inputs, device.shard(1).inputs)
    assert not torch.equal(server.public.inputs, digits("data.public=50", "seed=1").public.inputs)


def test_examples_that_occur_twice_are_never_public() -> None:
    dataset = Dataset("toy", images(1, 1, 2, 3, 4), images(3, 9), classes=2)
    for seed in range(20):
        (public,), rest = draw_for_server(dataset, [2], seed)
        assert public.tolist() == [2, 4]
        assert rest.tolist() == [0, 1, 3]
    with pytest.raises(DataError, match=r"lower data\.public"):
        draw_for_server(dataset, [3], 0)


def test_clients_need_examples_too() -> None:
    with pytest.raises(DataError, match=r"lower data\.public"):
        draw_for_server(Dataset("toy", images(1, 2), images(3), classes=2), [2], 0)


def test_a_folder_of_public_examples_leaves_the_training_set_to_the_clients(tmp_path: Path) -> None:
    other = Examples(torch.rand(7, 1, 8, 8), torch.arange(7))
    workload = digits(f"data.public_root={saved(tmp_path / 'public.npz', other)}")
    assert torch.equal(workload.public.inputs, other.inputs)
    assert workload.public.targets.tolist() == list(range(7))
    assert workload.examples == 1437


@pytest.mark.parametrize("which", ["test", "training"])
def test_a_folder_with_examples_of_the_data_set_itself_is_refused(
    tmp_path: Path, which: str
) -> None:
    plain = digits()
    own = plain.dataset.test if which == "test" else plain.dataset.train
    workload = digits(
        f"data.public_root={saved(tmp_path / 'public.npz', own.take(torch.tensor([5])))}"
    )
    with pytest.raises(DataError, match=f"1 examples of the {which} set: take them out"):
        _ = workload.public


def test_pixels_of_a_folder_are_normalised_as_the_data_set_is(tmp_path: Path) -> None:
    dataset = Dataset("toy", images(5), images(6), 2, mean=(0.5,), deviation=(0.25,))
    public = read_public(saved(tmp_path / "public.npz", images(0, 1)), dataset, (1, 1, 1), ONE)
    assert public.inputs.flatten().tolist() == [-2, 2]
    # So one of the data set's own examples is known again.
    with pytest.raises(DataError, match="1 examples of the test set"):
        read_public(saved(tmp_path / "own.npz", images(2)), dataset, (1, 1, 1), ONE)


def test_where_devices_hold_the_data_the_server_alone_has_public_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSKETCH_DATA", saved(tmp_path / "own.npz", images(1)))
    public = saved(tmp_path / "public.npz", images(2, 3))
    config = folder(f"data.root={saved(tmp_path / 'test.npz', images(4))}", public)
    assert len(Workload(config).public) == 2
    (tmp_path / "public.npz").unlink()
    assert len(Workload(config).shard(0)) == 1  # a device does not open it


def folder(root: str, public: str) -> Config:
    few = ["clients.total=3", "clients.per_round=3", "device=cpu", "data.classes=2"]
    return compose(["data=folder", "data.shape=[1,1,1]", root, f"data.public_root={public}", *few])


def test_a_run_without_public_data_names_the_keys() -> None:
    with pytest.raises(DataError, match=r"set data\.public to .* or data\.public_root to"):
        _ = digits().public
    with pytest.raises(DataError, match=r"needs public data: set data\.public_root"):
        _ = Workload(folder("data.root=null", "null")).public


def test_public_examples_come_from_one_place() -> None:
    with pytest.raises(ConfigError, match="set one of them"):
        digits("data.public=1", "data.public_root=somewhere")
