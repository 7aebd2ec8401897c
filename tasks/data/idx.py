"""Reads the idx files of MNIST and its relatives, plain or gzipped.

The format: two zero bytes, a type byte (8: unsigned bytes), the number of dimensions, each dimension as a big-endian
32-bit number, then the bytes. torchvision is not used, because it cannot read gzipped files in place and takes seconds
to import.
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import torch

from fedsketch.errors import DataError


def find(folder: Path, stem: str) -> Path | None:
    """Return the file of this name in the folder, preferably not gzipped. None if there is none."""
    for candidate in (folder / stem, folder / f"{stem}.gz"):
        if candidate.is_file():
            return candidate
    return None


def read(path: Path) -> torch.Tensor:
    """Return the array in an idx file, as uint8."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"The file {path} cannot be read ({error}): replace it.") from error
    header = 4 + 4 * content[3] if len(content) >= 4 else 4
    if content[:3] != b"\0\0\x08" or len(content) < header:
        raise DataError(f"The file {path} is not an idx file of bytes: replace it.")
    dimensions = struct.unpack(f">{content[3]}I", content[4:header])
    if not 0 < math.prod(dimensions) == len(content) - header:
        raise DataError(
            f"The file {path} has {len(content) - header:,} bytes of data where its header says "
            f"{math.prod(dimensions):,}, or none at all: replace it."
        )
    # A bytearray, because torch warns about read-only memory.
    return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8).reshape(dimensions)
