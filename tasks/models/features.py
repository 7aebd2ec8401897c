"""Frozen features: a fixed function of the examples in front of the model. The configuration chooses it by name
(`model.features`).

A feature map processes one example at a time and learns nothing, so it costs no privacy: the gradient that is clipped
is still a function of one example and the model.

Features are as private as the examples. They stay on the machine that has the examples, in a folder of its user
(`kept_in`). There each is computed only once, for all partitions, seeds and runs. A file is named by a hash of the map
and the example. Files that are missing or damaged are computed again, so the folder may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsketch.errors import ModelError
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.plugin_features import own_map
from fedsketch.tasks.models.scattering import CHANNELS, SMALLEST, STRIDE, scattering

CACHE_VARIABLE = "FEDSKETCH_CACHE"
GROUPS = 27  # of the group norm: three channels in each, times the channels of the image
_CHECK = 16  # bytes of a checksum
_PLACES = 64  # the size of the groups on a device that protects examples
_FREE = 0.1  # share of the disk that features leave free

Shape = tuple[int, ...]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeatureMap:
    """A function of examples, (N, *shape) to (N, *after(shape)) in float32, each by itself. `edition` is a version,
    which changes when the values change."""

    name: str
    edition: int | str
    after: Callable[[Shape], Shape]
    of: Callable[[Tensor], Tensor]

    def __call__(self, examples: Examples) -> Examples:
        """Return the features of these examples."""
        folder = _own_folder(self.name)
        if examples.present is not None:
            return self._in_places(examples, folder)
        return Examples(self._found_or_made(examples.inputs, folder), examples.targets)

    def _in_places(self, examples: Examples, folder: Path | None) -> Examples:
        """Return the features, computed for groups of one size (`tasks.gradients.per_example`). An example at which the
        map raises leaves its place blank."""
        padded, found, failed = examples.padded(_PLACES), [], []
        for inputs in torch.split(padded.inputs, _PLACES):
            try:
                found.append(self._found_or_made(inputs, folder, whole=True))
                failed.append(torch.zeros(_PLACES, dtype=torch.bool))
            except Exception as error:  # its text may repeat what a record contains
                log.error(
                    "The features of a record cannot be computed (%s); each is tried by itself",
                    type(error).__name__,
                )
                rows, without = self._one_by_one(inputs)
                found.append(rows)
                failed.append(without)
        made = Examples(torch.cat(found)[: len(examples)], examples.targets, examples.present)
        return made.only(~torch.cat(failed)[: len(examples)])

    def _one_by_one(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of a group, and at which examples the map raised. A map of an installed package gets one
        example at a time in any case."""
        rows = torch.zeros(len(inputs), *self.after(tuple(inputs.shape[1:])))
        failed = torch.zeros(len(inputs), dtype=torch.bool)
        for place in range(len(inputs)):
            try:
                rows[place] = self.of(inputs[place : place + 1])[0]
            except Exception:
                failed[place] = True
        return rows, failed

    def _found_or_made(self, inputs: Tensor, folder: Path | None, *, whole: bool = False) -> Tensor:
        """Return the features of these inputs. `whole`: if one is missing, all are computed, because the size of the
        batch may change how they are rounded."""
        if folder is None:
            return self.of(inputs)
        rows, shape = inputs.contiguous().numpy(), tuple(inputs.shape[1:])
        made = np.empty((len(rows), *self.after(shape)), np.float32)
        head = f"{self.name} {self.edition} {shape}".encode()
        files = [folder / _named(head, row.tobytes()) for row in rows]
        missing = [i for i, file in enumerate(files) if not _read_into(made[i], file)]
        if missing and whole:
            made[missing] = self.of(inputs).numpy()[missing]
        elif missing:
            made[missing] = self.of(inputs[missing]).numpy()
        if missing:
            _write_all([(files[i], made[i]) for i in missing])
        return torch.from_numpy(made)


def _shape_of_scattering(shape: Shape) -> Shape:
    if len(shape) != 3:
        raise ModelError(
            "model.features=scattering takes images, channels x height x width, and the data has examples of the shape "
            f"{' x '.join(map(str, shape))}: set model.features=null."
        )
    channels, height, width = shape
    if min(height, width) < SMALLEST or height % STRIDE or width % STRIDE:
        raise ModelError(
            f"model.features=scattering takes images whose sides are multiples of {STRIDE} and at least {SMALLEST}, "
            f"and the data has {' x '.join(map(str, shape))} (channels x height x width): crop or pad them, or set "
            "model.features=null."
        )
    return channels * CHANNELS, height // STRIDE, width // STRIDE


def _normalised_scattering(images: Tensor) -> Tensor:
    """Apply group norm without parameters: every group of channels of an example gets mean 0 and variance 1 (less if
    it hardly varies)."""
    return functional.group_norm(scattering(images), GROUPS)


_SCATTERING = FeatureMap("scattering", 1, _shape_of_scattering, _normalised_scattering)


def feature_map(name: str, shape: Shape) -> FeatureMap:
    """Return the map of this name: a built-in one, or one of an installed package for examples of this shape."""
    if name == _SCATTERING.name:
        return _SCATTERING
    own = own_map(name, shape)
    return FeatureMap(name, own.edition, lambda _: own.after, own)


def shape_after(name: str | None, shape: Shape) -> Shape:
    """Return the shape of an example as the model sees it."""
    return shape if name is None else feature_map(name, shape).after(shape)


def own_edition(name: str | None, shape: Shape) -> str | None:
    """Return the edition of a map of an installed package. None for built-in maps, which change only with this
    program."""
    return None if name is None or name == _SCATTERING.name else own_map(name, shape).edition


def seen_through(name: str | None, examples: Examples) -> Examples:
    """Return the examples as the model sees them."""
    return examples if name is None else feature_map(name, examples.shape)(examples)


def kept_in() -> Path:
    """Return the folder for features: below FEDSKETCH_CACHE if it is set, otherwise below the user's cache folder."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own).expanduser() / "features"
    users = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(users).expanduser() / "fedsketch" / "features"


def _own_folder(name: str) -> Path | None:
    """Return the folder for the features of one map, readable by its user alone. None if it cannot be made."""
    try:
        folder = kept_in()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / name).mkdir(exist_ok=True, mode=0o700)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        log.warning(
            "Features are computed anew in every round, because they cannot be stored (%s): set %s to a folder.",
            error,
            CACHE_VARIABLE,
        )
        return None
    return folder / name


def _named(head: bytes, content: bytes) -> str:
    """Return a file name. Files are distributed over 256 folders, because some file systems are slow with large
    folders."""
    digest = hashlib.blake2b(content, key=hashlib.blake2b(head).digest(), digest_size=24)
    name = digest.hexdigest()
    return f"{name[:2]}/{name[2:]}"


def _read_into(row: NDArray[np.float32], file: Path) -> bool:
    """Read a file into the row. Returns whether the file was there, complete and of the right size."""
    try:
        data = file.read_bytes()
    except OSError:
        return False
    values, check = data[:-_CHECK], data[-_CHECK:]
    if len(values) != 4 * math.prod(row.shape) or check != _checksum(values):
        return False
    row[:] = np.frombuffer(values, "<f4").reshape(row.shape)
    return True


def _write_all(
    rows: list[tuple[Path, NDArray[np.float32]]],
) -> None:
    """Write each row to a temporary file and then rename it, so that no other process reads a half-written file. A
    tenth of the disk stays free."""
    try:
        disk = shutil.disk_usage(kept_in())
        if disk.free - sum(row.nbytes for _, row in rows) < _FREE * disk.total:
            raise OSError(errno.ENOSPC, "less than a tenth of the disk would be free")
        for file, row in rows:
            values = row.astype("<f4").tobytes()
            file.parent.mkdir(exist_ok=True, mode=0o700)
            handle, staged = tempfile.mkstemp(dir=file.parent, prefix=".")  # mode 600
            try:
                with os.fdopen(handle, "wb") as open_file:
                    open_file.write(values + _checksum(values))
                os.replace(staged, file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(staged)
                raise
    except OSError as error:
        log.warning(
            "Not all features could be stored (%s): make room, or set %s.", error, CACHE_VARIABLE
        )


def _checksum(values: bytes) -> bytes:
    return hashlib.blake2b(values, digest_size=_CHECK).digest()
