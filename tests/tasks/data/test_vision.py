"""The image data sets, from tiny files written here in the layouts they come in."""

import functools
import gzip
import hashlib
import http.server
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedsketch.conf import compose
from fedsketch.errors import DataError
from fedsketch.tasks.data import torchvision_import, vision
from fedsketch.tasks.workload import Workload

Bytes = npt.NDArray[np.uint8]

STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@pytest.fixture
def arrays() -> list[Bytes]:
    """Train images, train labels, test images, test labels."""
    rng = np.random.default_rng(0)
    shapes_and_bounds = [((20, 28, 28), 256), ((20,), 10), ((6, 28, 28), 256), ((6,), 10)]
    return [rng.integers(0, b, s, dtype=np.uint8) for s, b in shapes_and_bounds]


def write_idx(folder: Path, arrays: list[Bytes], zipped: bool) -> None:
    folder.mkdir(parents=True)
    for stem, array in zip(STEMS, arrays, strict=True):
        header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        content = header + array.tobytes()
        if zipped:
            (folder / f"{stem}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / stem).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "folder", "mean", "deviation"),
    [
        ("mnist", "MNIST/raw", 0.1307, 0.3081),
        ("fashion_mnist", "FashionMNIST/raw", 0.2860, 0.3530),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_torchvision_layout_below_root(
    tmp_path: Path,
    arrays: list[Bytes],
    name: str,
    folder: str,
    mean: float,
    deviation: float,
    zipped: bool,
) -> None:
    write_idx(tmp_path / folder, arrays, zipped)
    data = vision.find(name, str(tmp_path), ())
    assert (data.name, data.classes, data.train.shape) == (name, 10, (1, 28, 28))
    assert (len(data.train), len(data.test)) == (20, 6)
    expected = (torch.from_numpy(arrays[2]).float().unsqueeze(1) / 255 - mean) / deviation
    assert torch.allclose(data.test.inputs, expected)
    assert data.train.inputs.is_contiguous()
    assert data.train.targets.tolist() == arrays[1].tolist()
    assert data.train.targets.dtype == torch.int64


def test_debian_layout_is_found_without_a_root(tmp_path: Path, arrays: list[Bytes]) -> None:
    write_idx(tmp_path / "fashion-mnist", arrays, zipped=True)
    data = vision.find("fashion_mnist", None, [str(tmp_path)])
    assert data.test.targets.tolist() == arrays[3].tolist()


def test_root_comes_before_the_system(tmp_path: Path, arrays: list[Bytes]) -> None:
    write_idx(tmp_path / "system" / "mnist", arrays, zipped=True)
    write_idx(tmp_path / "root" / "MNIST" / "raw", [arrays[2], arrays[3]] * 2, zipped=False)
    data = vision.find("mnist", str(tmp_path / "root"), (str(tmp_path / "system"),))
    assert len(data.train) == 6


def test_without_root_and_system_data_one_sentence_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        vision.find("fashion_mnist", None, (str(tmp_path),))
    assert str(caught.value) == (
        f"Fashion-MNIST is not in {tmp_path}/fashion-mnist: set data.root to a folder that "
        "contains FashionMNIST/raw, or into which it may be downloaded."
    )


def test_root_in_a_folder_that_does_not_exist_is_refused_without_a_download(
    tmp_path: Path,
) -> None:
    root = tmp_path / "missing" / "data"
    with pytest.raises(DataError, match=r"missing does not exist: set data\.root to a folder"):
        vision.find("mnist", str(root), ())
    assert not root.parent.exists()


def test_files_of_something_else_are_refused(tmp_path: Path, arrays: list[Bytes]) -> None:
    swapped = [arrays[0], arrays[3], arrays[2], arrays[1]]
    write_idx(tmp_path / "MNIST" / "raw", swapped, zipped=False)
    with pytest.raises(DataError, match=r"The train files in .*MNIST/raw are not MNIST"):
        vision.find("mnist", str(tmp_path), ())


@pytest.fixture
def mirror(tmp_path: Path, arrays: list[Bytes]) -> Iterator[tuple[str, Path]]:
    """A web server on this machine that has the four files of MNIST."""
    served = tmp_path / "served"
    write_idx(served, arrays, zipped=True)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(served))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", served
    server.shutdown()
    server.server_close()


def serve_mnist_from(monkeypatch: pytest.MonkeyPatch, address: str, served: Path) -> None:
    mnist = torchvision_import.datasets().MNIST
    md5 = {f.name: hashlib.md5(f.read_bytes()).hexdigest() for f in served.iterdir()}
    monkeypatch.setattr(mnist, "mirrors", [address])
    monkeypatch.setattr(mnist, "resources", [(f"{s}.gz", md5.get(f"{s}.gz")) for s in STEMS])


def test_missing_data_is_downloaded_into_root(
    tmp_path: Path,
    arrays: list[Bytes],
    mirror: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve_mnist_from(monkeypatch, *mirror)
    root = tmp_path / "data"
    data = vision.find("mnist", str(root), ())
    assert data.train.targets.tolist() == arrays[1].tolist()
    assert sorted(p.name for p in root.rglob("*")) == sorted(["MNIST", "raw", *STEMS])


def test_broken_download_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, mirror: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, served = mirror
    (served / f"{STEMS[3]}.gz").unlink()
    serve_mnist_from(monkeypatch, address, served)
    root = tmp_path / "data"
    with pytest.raises(DataError) as caught:
        vision.find("mnist", str(root), ())
    message = str(caught.value)
    assert message.startswith(f"MNIST is not in {root}/MNIST/raw, and downloading it to {root}")
    assert message.endswith("set data.root to a folder that contains MNIST/raw.")
    assert "\n" not in message
    assert not root.exists()


def write_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> Bytes:
    """Six batches of two images; torchvision is told their checksums. Returns the test images."""
    cifar10 = torchvision_import.datasets().CIFAR10
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)

    def write(name: str, content: dict[str, object]) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    def batch() -> dict[str, object]:
        return {"data": rng.integers(0, 256, (2, 3072), dtype=np.uint8), "labels": [3, 9]}

    train = [write(f"data_batch_{i}", batch()) for i in range(1, 6)]
    test = batch()
    monkeypatch.setattr(cifar10, "train_list", train)
    monkeypatch.setattr(cifar10, "test_list", [write("test_batch", test)])
    _, meta_md5 = write("batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(cifar10, "meta", {**cifar10.meta, "md5": meta_md5})
    images = test["data"]
    assert isinstance(images, np.ndarray)
    return images


def test_cifar10_is_read_and_normalised_by_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_cifar(tmp_path, monkeypatch)
    data = vision.find("cifar10", str(tmp_path), ())
    assert (len(data.train), len(data.test), data.train.shape) == (10, 2, (3, 32, 32))
    assert data.test.targets.tolist() == [3, 9]
    assert data.test.inputs.is_contiguous()
    pixels = torch.from_numpy(images).view(2, 3, 32, 32) / 255
    assert torch.allclose(data.test.inputs[:, 2], (pixels[:, 2] - 0.4465) / 0.2616, atol=1e-5)


def test_changed_cifar10_files_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path, monkeypatch)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"not a pickle")
    with pytest.raises(DataError, match="not complete or was changed: delete this folder"):
        vision.find("cifar10", str(tmp_path), ())


def test_a_folder_that_may_not_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(DataError, match=r"MNIST cannot be read .*MNIST/raw.*: allow reading it"):
        vision.find("mnist", str(tmp_path), ())


def test_torchvision_is_not_imported_for_data_on_disk(tmp_path: Path, arrays: list[Bytes]) -> None:
    write_idx(tmp_path / "MNIST" / "raw", arrays, zipped=False)
    script = (
        "import sys; from fedsketch.tasks import workload; from fedsketch.tasks.data import vision;"
        f"vision.find('mnist', {str(tmp_path)!r}, ());"
        "sys.exit('torchvision' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_emnist_has_its_own_file_names_and_62_classes_and_is_not_downloaded(
    tmp_path: Path, arrays: list[Bytes]
) -> None:
    with pytest.raises(DataError, match=r"set data\.root to a folder that contains EMNIST/raw\.$"):
        vision.find("emnist", str(tmp_path), ())
    arrays[1][0] = 61
    folder = tmp_path / "EMNIST" / "raw"
    write_idx(folder, arrays, zipped=False)
    for file in folder.iterdir():
        split, _, rest = file.name.partition("-")
        file.rename(folder / f"emnist-byclass-{'train' if split == 'train' else 'test'}-{rest}")
    found = vision.find("emnist", str(tmp_path), ())
    assert (found.classes, len(found.train), len(found.test)) == (62, 20, 6)


@pytest.mark.parametrize("name", ["fashion_mnist", "mnist", "emnist", "cifar10"])
def test_a_plan_takes_what_is_published_and_downloads_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: object) -> None:
        raise AssertionError("a plan downloads nothing")

    monkeypatch.setattr(vision, "_download", download)
    monkeypatch.setattr(vision, "SYSTEM_FOLDERS", ())
    asked = [f"data={name}", f"data.root={tmp_path}", "device=cpu"]
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)  # a folder without files is no data set
    workload = Workload(compose(asked), only_to_plan=True)
    color = name == "cifar10"
    assert workload.data_shape.shape == ((3, 32, 32) if color else (1, 28, 28))
    assert workload.data_shape.classes == (62 if name == "emnist" else 10)
    assert workload.examples == {"cifar10": 50_000, "emnist": 697_932}.get(name, 60_000)


@pytest.mark.parametrize("more", ["privacy=example", "data.public=10"])
def test_a_plan_that_needs_contents_says_so(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vision, "SYSTEM_FOLDERS", ())
    workload = Workload(compose(["data=mnist", f"data.root={tmp_path}", more]), only_to_plan=True)
    with pytest.raises(DataError, match="downloads nothing"):
        _ = workload.dataset


def test_a_plan_takes_the_files_if_they_are_there(
    arrays: list[Bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vision, "SYSTEM_FOLDERS", ())
    write_idx(tmp_path / "MNIST" / "raw", arrays, zipped=True)
    asked = ["data=mnist", f"data.root={tmp_path}", "clients.total=4", "clients.per_round=4"]
    assert Workload(compose(asked), only_to_plan=True).examples == 20
