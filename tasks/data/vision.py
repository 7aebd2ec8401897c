"""Fashion-MNIST, MNIST, EMNIST and CIFAR-10: read from disk, or downloaded (except EMNIST, which is large).

They are searched for below `root` in torchvision's layout, then in the folders where a Linux distribution installs
data sets (Debian's package dataset-fashion-mnist). If they are not found, they are downloaded into `root`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedsketch.conf.settings import DataSettings
from fedsketch.errors import DataError
from fedsketch.tasks.data import idx, torchvision_import
from fedsketch.tasks.data.examples import Dataset, Examples, normalise_

SYSTEM_FOLDERS = ("/usr/share/datasets",)
DOWNLOAD_TIMEOUT = 30.0  # seconds without an answer


@dataclass(frozen=True)
class _Source:
    """Where the files of a data set are and how its pixels are normalised.

    Mean and standard deviation per channel are the published ones of the training set, with pixels in [0, 1]. They are
    constants, because computing statistics of clients' data would be one more release.
    """

    title: str
    torchvision_class: str
    folder: str  # below root
    system_folder: str  # below a system folder
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    classes: int = 10
    shape: tuple[int, int, int] = (1, 28, 28)
    sizes: tuple[int, int] = (60_000, 10_000)  # of training and test set
    splits: tuple[str, str] = ("train", "t10k")  # prefixes of the files of the two
    downloadable: bool = True

    def has_files(self, folder: Path) -> bool:
        """Return whether all four files are there, for data sets in the format `idx`."""
        kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
        return all(idx.find(folder, f"{split}-{kind}") for split in self.splits for kind in kinds)


_SOURCES = {
    "fashion_mnist": _Source(
        "Fashion-MNIST", "FashionMNIST", "FashionMNIST/raw", "fashion-mnist", (0.2860,), (0.3530,)
    ),
    "mnist": _Source("MNIST", "MNIST", "MNIST/raw", "mnist", (0.1307,), (0.3081,)),
    "emnist": _Source(
        "EMNIST (byclass)",
        "EMNIST",
        "EMNIST/raw",
        "emnist",
        (0.1736,),
        (0.3317,),
        classes=62,
        sizes=(697_932, 116_323),
        splits=("emnist-byclass-train", "emnist-byclass-test"),
        downloadable=False,
    ),
    "cifar10": _Source(
        "CIFAR-10",
        "CIFAR10",
        "cifar-10-batches-py",
        "cifar-10-batches-py",
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        shape=(3, 32, 32),
        sizes=(50_000, 10_000),
    ),
}

_Pixels = tuple[torch.Tensor, torch.Tensor]  # (N, C, H, W) in uint8, (N)


def load(settings: DataSettings, seed: int) -> Dataset:
    """Return one of these data sets, the same for every seed. Every channel has about zero mean and unit variance."""
    return find(settings.name, settings.root, SYSTEM_FOLDERS)


def outline(name: str) -> Dataset:
    """Return what is known about a data set without its files, for plans: shape, classes and sizes. Classes have equal
    sizes, and the pixels are zero."""
    source = _SOURCES[name]
    train, test = (
        Examples(torch.zeros(1).expand(size, *source.shape), torch.arange(size) % source.classes)
        for size in source.sizes
    )
    return Dataset(name, train, test, source.classes, source.mean, source.deviation)


def is_here(settings: DataSettings) -> bool:
    """Return whether the files of a data set are in one of its folders, so that nothing would be downloaded."""
    source = _SOURCES[settings.name]
    whole = Path.is_dir if source.torchvision_class == "CIFAR10" else source.has_files
    return any(whole(folder) for folder in _folders(source, settings.root, SYSTEM_FOLDERS))


def find(name: str, root: str | None, system_folders: Sequence[str]) -> Dataset:
    """Return the data set of this name, from `root` or a folder of the system, or downloaded to `root`."""
    source = _SOURCES[name]
    base = Path(root).expanduser() if root is not None else None
    folders = _folders(source, root, system_folders)
    splits = _first_found(source, folders)
    if splits is None:
        searched = " or ".join(map(str, folders))
        if base is None or not source.downloadable:
            more = ", or into which it may be downloaded" if source.downloadable else ""
            raise DataError(
                f"{source.title} is not in {searched}: set data.root to a folder that contains "
                f"{source.folder}{more}."
            )
        _download(source, base, searched)
        splits = _first_found(source, folders[:1])
        if splits is None:
            raise DataError(
                f"{source.title} was downloaded but is not complete in {folders[0]}: "
                "delete this folder and start again."
            )
    train, test = (_normalised(source, *split) for split in splits)
    return Dataset(name, train, test, source.classes, source.mean, source.deviation)


def _folders(source: _Source, root: str | None, system_folders: Sequence[str]) -> list[Path]:
    folders = [Path(folder) / source.system_folder for folder in system_folders]
    if root is not None:
        folders.insert(0, Path(root).expanduser() / source.folder)
    return folders


def _first_found(source: _Source, folders: Sequence[Path]) -> tuple[_Pixels, _Pixels] | None:
    read = _read_cifar if source.torchvision_class == "CIFAR10" else _read_idx
    try:
        return next((splits for folder in folders if (splits := read(source, folder))), None)
    except PermissionError as error:
        raise DataError(
            f"{source.title} cannot be read ({error}): allow reading it or set another data.root."
        ) from error


def _read_idx(source: _Source, folder: Path) -> tuple[_Pixels, _Pixels] | None:
    """Return both splits, or None if the folder does not have all four files."""

    def split(prefix: str) -> _Pixels | None:
        images = idx.find(folder, f"{prefix}-images-idx3-ubyte")
        labels = idx.find(folder, f"{prefix}-labels-idx1-ubyte")
        if images is None or labels is None:
            return None
        pixels, targets = idx.read(images), idx.read(labels)
        fits = pixels.ndim == 3 and targets.shape == pixels.shape[:1]
        if not fits or int(targets.max()) >= source.classes:
            raise DataError(
                f"The {prefix} files in {folder} are not {source.title} (images of shape "
                f"{tuple(pixels.shape)}, labels of shape {tuple(targets.shape)}): replace them."
            )
        return pixels.unsqueeze(1), targets

    train, test = map(split, source.splits)
    return (train, test) if train and test else None


def _read_cifar(source: _Source, folder: Path) -> tuple[_Pixels, _Pixels] | None:
    """Return both splits, or None if there is no such folder.

    The files are pickles, which can run code when opened. torchvision checks their checksums first.
    """
    if not folder.is_dir():
        return None
    cifar10 = torchvision_import.datasets().CIFAR10

    def split(train: bool) -> _Pixels:
        try:
            data = cifar10(folder.parent, train=train, download=False)
        except RuntimeError as error:
            raise DataError(
                f"{source.title} in {folder} is not complete or was changed: delete this folder "
                "and start again, or put a good copy there."
            ) from error
        return torch.from_numpy(data.data).permute(0, 3, 1, 2), torch.tensor(data.targets)

    return split(True), split(False)


def _normalised(source: _Source, pixels: torch.Tensor, targets: torch.Tensor) -> Examples:
    inputs = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
    return Examples(normalise_(inputs, source.mean, source.deviation), targets.to(torch.int64))


def _download(source: _Source, root: Path, searched: str) -> None:
    """Download into a temporary folder below `root`, then move file by file into place.

    So a failed download leaves nothing behind, and processes that download at the same time do not read each other's
    incomplete files.
    """
    advice = f"set data.root to a folder that contains {source.folder}"
    if not root.absolute().parent.is_dir():
        raise DataError(
            f"{source.title} is not in {searched}, and cannot be downloaded to {root} because "
            f"{root.absolute().parent} does not exist: {advice}."
        )
    fetch = getattr(torchvision_import.datasets(), source.torchvision_class)
    is_new = not root.exists()
    try:
        root.mkdir(exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=root, prefix=".download-") as staging,
            _socket_timeout(DOWNLOAD_TIMEOUT),
        ):
            fetch(staging, download=True)
            for file in Path(staging).rglob("*"):
                if file.is_file() and file.suffix != ".gz":
                    goal = root / file.relative_to(staging)
                    goal.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(file, goal)
    except (OSError, RuntimeError) as error:
        if is_new:
            with contextlib.suppress(OSError):
                root.rmdir()
        reason = textwrap.shorten(" ".join(str(error).split()), 160)
        raise DataError(
            f"{source.title} is not in {searched}, and downloading it to {root} failed "
            f"({reason}): {advice}."
        ) from error


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """Set a timeout for the duration of the block. torchvision sets none, so it would wait for minutes behind a
    firewall that does not answer."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
