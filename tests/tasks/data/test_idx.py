"""The idx reader refuses what is not whole."""

import gzip
from pathlib import Path

import pytest

from fedsketch.errors import DataError
from fedsketch.tasks.data import idx

WHOLE = b"\0\0\x08\x02" + b"\0\0\0\x02" + b"\0\0\0\x03" + bytes(range(6))


@pytest.mark.parametrize("name", ["plain", "zipped.gz"])
def test_reads_plain_and_gzipped_files(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(WHOLE) if name.endswith(".gz") else WHOLE)
    assert idx.read(file).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_finds_plain_before_gzipped(tmp_path: Path) -> None:
    assert idx.find(tmp_path, "a") is None
    (tmp_path / "a.gz").touch()
    assert idx.find(tmp_path, "a") == tmp_path / "a.gz"
    (tmp_path / "a").touch()
    assert idx.find(tmp_path, "a") == tmp_path / "a"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0",
        WHOLE[:-1],
        WHOLE + b"\0",
        WHOLE[:7],
        b"\0\0\x0d" + WHOLE[3:],
        b"\0\0\x08\x01" + b"\0\0\0\0",
    ],
    ids=["empty", "no header", "short", "long", "half a header", "floats", "no data"],
)
def test_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte .*: replace it\."):
        idx.read(file)


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    file = tmp_path / "labels.gz"
    file.write_bytes(gzip.compress(WHOLE)[:-4])
    with pytest.raises(DataError, match=r"labels\.gz cannot be read"):
        idx.read(file)
