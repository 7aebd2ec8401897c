"""Examples in a folder: images by class, an .npz file, or a table with its schema (`tasks.data.tabular`).

On a device these are the owner's own data. The path comes from FEDSKETCH_DATA on the device, and never from a message:
a server cannot point a device to another path. Errors in the data are described in the device's log only.

A device reads record by record (`own`): one that cannot be used leaves its place blank, and the others are read as if
nothing were wrong (`tasks.data.bad_records`). A server that reads its test set, and an owner who describes her data,
get an error instead (`read`).
"""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedsketch.conf.data.folder import FolderConfig
from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError
from fedsketch.tasks.data.bad_records import BadRecords, one_record
from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch.tasks.data.tabular import own_table, read_examples, schema_of

if TYPE_CHECKING:
    from PIL import Image

DATA_VARIABLE = "FEDSKETCH_DATA"
SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
MODES = {1: "L", 3: "RGB"}

log = logging.getLogger(__name__)


def load(settings: FolderConfig, seed: int) -> Dataset:
    """Return the server's data set: the test set below `root`, and no training examples."""
    if settings.root is None:
        raise DataError(
            "data=folder needs a test set on the server: set data.root to a folder of images by class or to an .npz "
            "file."
        )
    path, names = Path(settings.root).expanduser(), settings.class_names
    if settings.schema is not None:
        schema = schema_of(settings)
        test, names = read_examples(path, schema), schema.class_names
    else:
        test = read(path, settings.shape, names, kind_of(path))
    none = Examples(test.inputs[:0], test.targets[:0])
    return Dataset("folder", none, test, len(names), class_names=names)


def own(
    shape: Sequence[int],
    classes: Sequence[str],
    kind: Targets,
    most: int | None = None,
    fingerprint: str | None = None,
) -> Examples:
    """Return this device's examples, each in its place: the first `most` records, in the order in which they are
    stored. With a `fingerprint` they are a table, and the schema must have this fingerprint.

    The device's log says what is wrong with the data. The error does not, because the server sees it.
    """
    bad = BadRecords(most)
    try:
        place = os.environ.get(DATA_VARIABLE)
        if not place:
            raise DataError(
                f"The path of this device's data is not set: set {DATA_VARIABLE} to a folder of images by class, an "
                ".npz file or a table."
            )
        if fingerprint is None:
            examples = read(Path(place), shape, classes, kind, bad)
        else:
            examples = own_table(Path(place), fingerprint, bad)
    except DataError as error:
        log.error("%s", error)
        # Without the cause, because this error is sent to the server, and names of files and classes are private.
        raise DataError(
            "This device's data do not fit the run: the log of its node says why."
        ) from None
    bad.report()
    return examples


def kind_of(path: Path) -> Targets:
    """Guess the form of the targets from the type and shape of the data; `read` checks the rest."""
    if path.suffix != ".npz" or not path.is_file():
        return Targets.CLASSES
    _, targets = _arrays(path)
    if np.issubdtype(targets.dtype, np.integer) and targets.ndim == 1:
        return Targets.CLASSES
    return Targets.NUMBERS if targets.ndim == 1 else Targets.LABELS


def survey(path: Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the shape of the first example and the classes found in the data, for an owner who describes the data;
    `read` checks the rest."""
    if path.is_dir():
        classes = tuple(sorted(p.name for p in path.iterdir() if p.is_dir() and p.name[0] != "."))
        for file, _ in _files(path, classes, strict=True):
            with _image(file) as image:
                return (len(image.getbands()), image.height, image.width), classes
        raise _none(path)
    inputs, targets = _arrays(path)
    if inputs.ndim < 2 or targets.shape[:1] != inputs.shape[:1] or targets.size == 0:
        raise DataError(
            f"{path} has inputs of shape {inputs.shape} and targets of shape {targets.shape}: give (N, ...), such as "
            "(N, channels, height, width), and a target for each."
        )
    kind, count = kind_of(path), 1
    if kind is not Targets.NUMBERS:
        count = max(2, int(targets.max()) + 1) if kind is Targets.CLASSES else targets.shape[1]
    return inputs.shape[1:], tuple(map(str, range(count)))


def read(
    path: Path,
    shape: Sequence[int],
    classes: Sequence[str],
    kind: Targets = Targets.CLASSES,
    bad: BadRecords | None = None,
) -> Examples:
    """Read examples of this shape. Their targets are indices into `classes`, or of another kind (only from an .npz
    file). With `bad`, each is in a place, and those that cannot be used leave theirs blank."""
    try:
        if path.is_dir():
            if kind is not Targets.CLASSES:
                raise DataError(
                    f"{path} is a folder of images by class, but the run learns {kind}: put the examples into an .npz "
                    "file."
                )
            return _read_images(path, tuple(shape), classes, bad)
        if path.suffix == ".npz" and path.is_file():
            if bad is not None:
                return _read_places(path, tuple(shape), len(classes), kind, bad)
            return _read_arrays(path, tuple(shape), len(classes), kind)
    except PermissionError as error:
        raise DataError(f"{error.filename} may not be read: allow it.") from error
    raise DataError(f"{path} is neither a folder nor an .npz file: name one that exists.")


def _read_images(
    root: Path, shape: tuple[int, ...], classes: Sequence[str], bad: BadRecords | None
) -> Examples:
    """Read images, with pixels from 0 to 1. The names of existing folders are looked up among the classes, never the
    other way round, so that a class name from a server cannot open a path."""
    if len(shape) != 3:
        raise DataError(
            f"Images are channels x height x width, but the run expects examples of the shape {shape}: put them into "
            "an .npz file."
        )
    if shape[0] not in MODES:
        raise DataError(
            f"Images have 1 or 3 channels, but the run expects {shape[0]}: put the examples into an .npz file."
        )
    found = list(_files(root, classes, strict=bad is None))
    if bad is None and not found:
        raise _none(root)
    count = len(found) if bad is None else bad.room(len(found))
    pixels = np.zeros((count, *shape), dtype=np.uint8)
    targets = torch.zeros(count, dtype=torch.int64)
    for place, (file, target) in enumerate(islice(found, count)):
        if target is None:
            assert bad is not None  # or the folder would have been refused
            bad.add(place, "of a class that the run does not have")
            continue
        with one_record(bad, place, "that cannot be read as an image of the run's shape"):
            pixels[place] = _pixels(file, shape)
            targets[place] = target
    present = None if bad is None else bad.present(count)
    return Examples(torch.from_numpy(pixels).to(torch.float32).div_(255), targets, present)


def _files(
    root: Path, classes: Sequence[str], *, strict: bool
) -> Iterator[tuple[Path, int | None]]:
    """Yield the images and their classes, in the order of their names. Without `strict`, None stands for a folder that
    is not a class."""
    index = {name: position for position, name in enumerate(classes)}
    for folder in sorted(root.iterdir()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        if strict and folder.name not in index:
            raise DataError(
                f"{folder} is not a class of the run: rename it to one of {', '.join(classes)}, or move it away."
            )
        for file in sorted(folder.iterdir()):
            if file.suffix.lower() in SUFFIXES and not file.name.startswith("."):
                yield file, index.get(folder.name)


def _none(root: Path) -> DataError:
    return DataError(
        f"{root} holds no example: put images into {root}/<class>, as {', '.join(SUFFIXES)}."
    )


def _pixels(file: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    channels, height, width = shape
    with _image(file) as image:
        if (image.mode, image.size) != (MODES[channels], (width, height)):
            raise DataError(
                f"{file} is {image.mode}, {image.width} x {image.height}, but the run expects {MODES[channels]}, "
                f"{width} x {height}: convert it, or move it away."
            )
        return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


@contextmanager
def _image(file: Path) -> Iterator[Image.Image]:
    """Open an image for the duration of the block."""
    # Pillow comes with torchvision. torchvision's own reader needs operators that a CPU build of torch lacks.
    from PIL import Image

    try:
        with Image.open(file, formats=FORMATS) as image:
            yield image
    except PermissionError:
        raise
    except (OSError, SyntaxError) as error:  # Pillow raises SyntaxError for a broken PNG
        raise DataError(f"{file} is not a complete image: replace it, or move it away.") from error


def _read_arrays(file: Path, shape: tuple[int, ...], classes: int, kind: Targets) -> Examples:
    """Read an .npz file. Bytes are scaled to 0 to 1; floats are not changed."""
    inputs, targets = _arrays(file)
    of_each = (classes,) if kind is Targets.LABELS else ()
    if inputs.shape[1:] != shape or targets.shape != (len(inputs), *of_each):
        raise DataError(
            f"{file} has inputs of shape {inputs.shape} and targets of shape {targets.shape}: the run expects "
            f"{('N', *shape)} and {('N', *of_each)}."
        )
    if len(inputs) == 0:
        raise DataError(f"{file} holds no example: put some in.")
    if inputs.dtype != np.uint8 and not np.issubdtype(inputs.dtype, np.floating):
        raise DataError(f"{file} has inputs of type {inputs.dtype}: give bytes or floats.")
    if kind is not Targets.CLASSES:
        known = np.issubdtype(targets.dtype, np.number) and np.isfinite(targets).all()
        wanted = "give finite numbers"
    else:
        known = np.issubdtype(targets.dtype, np.integer) and (
            targets.min() >= 0 and targets.max() < classes
        )
        wanted = f"give integers from 0 to {classes - 1}"
    if not known:
        raise DataError(f"{file} has targets that are not {kind}: {wanted}.")
    numbers = torch.from_numpy(inputs.astype(np.float32))
    if inputs.dtype == np.uint8:
        numbers.div_(255)
    if not torch.isfinite(numbers).all():
        raise DataError(f"{file} has inputs that are infinite or not a number: remove these.")
    number = np.int64 if kind is Targets.CLASSES else np.float32
    return Examples(numbers, torch.from_numpy(targets.astype(number)))


def _read_places(
    file: Path, shape: tuple[int, ...], classes: int, kind: Targets, bad: BadRecords
) -> Examples:
    """Read an .npz file record by record. Only its types, and the shape that all records share, can be an error."""
    inputs, targets = _arrays(file)
    of_each = (classes,) if kind is Targets.LABELS else ()
    real = (np.integer, np.floating)
    if inputs.shape[1:] != shape or targets.ndim < 1 or targets.shape[1:] != of_each:
        raise DataError(
            f"{file} has inputs of shape {inputs.shape} and targets of shape {targets.shape}: the run expects "
            f"{('N', *shape)} and {('N', *of_each)}."
        )
    if inputs.dtype != np.uint8 and not np.issubdtype(inputs.dtype, np.floating):
        raise DataError(f"{file} has inputs of type {inputs.dtype}: give bytes or floats.")
    if not any(np.issubdtype(targets.dtype, known) for known in real):
        raise DataError(f"{file} has targets of type {targets.dtype}: give numbers.")
    count = bad.room(max(len(inputs), len(targets)))
    whole = min(count, len(inputs), len(targets))
    numbers = np.zeros((count, *shape), np.float32)
    learned = np.zeros((count, *of_each), np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers[:whole], learned[:whole] = inputs[:whole], targets[:whole]
        told = learned.astype(np.float32)
    if kind is Targets.CLASSES:
        known = (learned >= 0) & (learned < classes) & (learned == np.floor(learned))
    else:
        known = np.isfinite(told.reshape(count, -1)).all(axis=1)
    finite = np.isfinite(numbers.reshape(count, -1)).all(axis=1)
    for faults, fault in (
        (np.arange(count) >= whole, "without an input or without a target"),
        (~finite, "with inputs that are infinite or not a number"),
        (~known, f"with targets that are not {kind} of the run"),
    ):
        for place in np.flatnonzero(faults).tolist():
            bad.add(place, fault)
    present = bad.present(count)
    numbers[~present.numpy()] = 0
    learned[~present.numpy()] = told[~present.numpy()] = 0
    scaled = torch.from_numpy(numbers)
    if inputs.dtype == np.uint8:
        scaled.div_(255)
    made = learned.astype(np.int64) if kind is Targets.CLASSES else told
    return Examples(scaled, torch.from_numpy(made), present)


def _arrays(file: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the two arrays of an .npz file, unchanged."""
    try:
        with np.load(file, allow_pickle=False) as arrays:  # a pickle would run its code
            return arrays["inputs"], arrays["targets"]
    except PermissionError:
        raise
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{file} is not a complete .npz file with arrays 'inputs' and 'targets': write it again."
        ) from error
