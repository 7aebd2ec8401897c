"""A device's own data: read whole and right, or refused in one sentence that tells the server nothing."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError
from fedsketch.tasks.data import folder

Choose = Callable[..., Any]
SHAPE, CLASSES = (1, 4, 3), ("cat", "dog", "emu")


def write_image(file: Path, value: int, mode: str = "L", size: tuple[int, int] = (3, 4)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255)).save(file)


def write_arrays(file: Path, **changes: object) -> Path:
    rng = np.random.default_rng(0)
    arrays = {"inputs": rng.integers(0, 256, (5, *SHAPE), np.uint8), "targets": np.arange(5) % 3}
    np.savez(file, **{**arrays, **changes})  # type: ignore[arg-type]
    return file


def test_images_get_the_class_of_their_folder_also_where_a_device_lacks_one(tmp_path: Path) -> None:
    write_image(tmp_path / "emu" / "b.png", 255)
    write_image(tmp_path / "emu" / "a.PNG", 51)
    write_image(tmp_path / "cat" / "c.jpeg", 0)
    examples = folder.read(tmp_path, SHAPE, CLASSES)
    assert examples.targets.tolist() == [0, 2, 2]
    assert examples.shape == SHAPE
    assert examples.inputs[:, 0, 0, 0].tolist() == pytest.approx([0.0, 0.2, 1.0])
    assert examples.inputs.dtype == torch.float32


def test_rows_and_columns_and_channels_stay_where_they_are(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 3, 3), np.uint8)
    (tmp_path / "dog").mkdir()
    Image.fromarray(pixels, "RGB").save(tmp_path / "dog" / "a.png")
    examples = folder.read(tmp_path, (3, 4, 3), CLASSES)
    expected = torch.from_numpy(pixels).permute(2, 0, 1) / 255
    assert torch.equal(examples.inputs[0], expected)


def test_what_is_no_image_or_hidden_is_passed_over(tmp_path: Path) -> None:
    write_image(tmp_path / "cat" / "a.png", 7)
    write_image(tmp_path / "cat" / ".b.png", 7)
    write_image(tmp_path / ".thumbnails" / "a.png", 7)
    (tmp_path / "cat" / "notes.txt").write_text("a cat")
    (tmp_path / "README").write_text("cats")
    assert len(folder.read(tmp_path, SHAPE, CLASSES)) == 1


def test_bytes_in_an_npz_become_zero_to_one_and_floats_stay(tmp_path: Path) -> None:
    file = write_arrays(tmp_path / "bytes.npz")
    examples = folder.read(file, SHAPE, CLASSES)
    assert torch.equal(examples.inputs, torch.from_numpy(np.load(file)["inputs"]) / 255)
    assert examples.targets.tolist() == [0, 1, 2, 0, 1]
    floats = np.linspace(-3, 3, 60).reshape(5, *SHAPE)
    examples = folder.read(write_arrays(tmp_path / "floats.npz", inputs=floats), SHAPE, CLASSES)
    assert torch.equal(examples.inputs, torch.from_numpy(floats.astype(np.float32)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"inputs": np.zeros((5, 1, 3, 4), np.uint8)}, r"\(5, 1, 3, 4\).*\('N', 1, 4, 3\)"),
        ({"targets": np.arange(4)}, r"targets of shape \(4,\)"),
        ({"targets": np.array([0, 1, 2, 3, 0])}, "integers from 0 to 2"),
        ({"targets": np.array([0, 1, -1, 2, 0])}, "integers from 0 to 2"),
        ({"targets": np.zeros(5)}, "integers from 0 to 2"),
        ({"inputs": np.zeros((5, *SHAPE), np.int64)}, "bytes or floats"),
        ({"inputs": np.full((5, *SHAPE), np.nan)}, "infinite or not a number"),
        ({"inputs": np.full((5, *SHAPE), 1e300)}, "infinite or not a number"),
        ({"inputs": np.zeros((0, *SHAPE), np.uint8), "targets": np.arange(0)}, "no example"),
        ({"inputs": np.array([{}] * 5, dtype=object)}, "not a complete .npz"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    file = write_arrays(tmp_path / "a.npz", **changes)
    with pytest.raises(DataError, match=complaint) as caught:
        folder.read(file, SHAPE, CLASSES)
    assert "\n" not in str(caught.value)


def test_a_broken_or_foreign_npz_is_named(tmp_path: Path) -> None:
    file = write_arrays(tmp_path / "a.npz")
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"a\.npz is not a complete \.npz"):
        folder.read(file, SHAPE, CLASSES)
    np.savez(file, x=np.zeros(3))
    with pytest.raises(DataError, match="arrays 'inputs' and 'targets'"):
        folder.read(file, SHAPE, CLASSES)


@pytest.mark.parametrize(
    ("name", "mode", "size", "complaint"),
    [
        ("cat/a.png", "L", (4, 3), r"is L, 4 x 3, but the run expects L, 3 x 4"),
        ("cat/a.png", "RGB", (3, 4), r"is RGB, 3 x 4, but the run expects L, 3 x 4"),
        ("bird/a.png", "L", (3, 4), r"bird is not a class of the run: .*cat, dog, emu"),
    ],
)
def test_images_that_do_not_fit_are_named(
    tmp_path: Path, name: str, mode: str, size: tuple[int, int], complaint: str
) -> None:
    write_image(tmp_path / name, 9, mode, size)
    with pytest.raises(DataError, match=complaint):
        folder.read(tmp_path, SHAPE, CLASSES)


@pytest.mark.parametrize("damage", [slice(0, 40), slice(0, 50), slice(3, None)])
def test_a_broken_image_is_named(tmp_path: Path, damage: slice) -> None:
    file = tmp_path / "cat" / "a.png"
    write_image(file, 9)
    file.write_bytes(file.read_bytes()[damage])
    with pytest.raises(DataError, match=r"a\.png is not a complete image"):
        folder.read(tmp_path, SHAPE, CLASSES)


def test_only_two_formats_are_parsed_whatever_a_file_is_called(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("L", (3, 4), 9).save(tmp_path / "cat" / "a.png", format="BMP")
    with pytest.raises(DataError, match=r"a\.png is not a complete image"):
        folder.read(tmp_path, SHAPE, CLASSES)


def test_nothing_to_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no example"):
        folder.read(tmp_path, SHAPE, CLASSES)
    with pytest.raises(DataError, match=r"neither a folder nor an \.npz file"):
        folder.read(tmp_path / "absent", SHAPE, CLASSES)
    with pytest.raises(DataError, match="Images have 1 or 3 channels"):
        folder.read(tmp_path, (2, 4, 3), CLASSES)


def test_what_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    file = write_arrays(tmp_path / "own.npz")
    monkeypatch.setattr(np, "load", refuse)
    with pytest.raises(DataError, match=f"{file} may not be read"):
        folder.read(file, SHAPE, CLASSES)
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match=f"{tmp_path} may not be read"):
        folder.read(tmp_path, SHAPE, CLASSES)


def test_a_class_that_a_server_names_opens_no_other_folder(tmp_path: Path) -> None:
    write_image(tmp_path / "secret" / "a.png", 9)
    own = tmp_path / "own"
    write_image(own / "cat" / "a.png", 9)
    names = ("cat", "../secret", str(tmp_path / "secret"))
    assert folder.read(own, SHAPE, names).targets.tolist() == [0]


def test_the_environment_alone_says_where_a_device_has_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(folder.DATA_VARIABLE, str(write_arrays(tmp_path / "own.npz")))
    assert len(folder.own(SHAPE, CLASSES, Targets.CLASSES)) == 5
    assert len(folder.own(SHAPE, CLASSES, Targets.CLASSES, most=5)) == 5


@pytest.mark.parametrize(
    ("place", "most", "reason"),
    [
        (None, None, "set FEDSKETCH_DATA"),
        ("", None, "set FEDSKETCH_DATA"),
        ("absent", None, "neither a folder nor an .npz"),
        ("other.npz", None, "other.npz has inputs of shape"),
    ],
)
def test_what_is_wrong_is_told_to_the_owner_and_not_to_the_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str | None,
    most: int | None,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_arrays(tmp_path / "other.npz", inputs=np.zeros((5, 1, 3, 4), np.uint8))
    monkeypatch.delenv(folder.DATA_VARIABLE, raising=False)
    if place is not None:
        monkeypatch.setenv(folder.DATA_VARIABLE, place)
    with caplog.at_level(logging.ERROR), pytest.raises(DataError) as caught:
        folder.own(SHAPE, CLASSES, Targets.CLASSES, most)
    assert reason in caplog.text
    assert (
        str(caught.value) == "This device's data do not fit the run: the log of its node says why."
    )
    # Or a traceback would tell it after all.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_server_has_a_test_set_and_nothing_to_train_on(tmp_path: Path, choose: Choose) -> None:
    file = write_arrays(tmp_path / "test.npz")
    data = folder.load(choose("data", "folder", root=str(file), shape=SHAPE, classes=CLASSES), 0)
    assert (len(data.train), len(data.test), data.classes) == (0, 5, 3)
    assert data.train.shape == data.test.shape == SHAPE


def test_a_server_without_a_test_set_is_told_what_to_set(choose: Choose) -> None:
    with pytest.raises(DataError, match=r"set data\.root"):
        folder.load(choose("data", "folder", shape=SHAPE, classes=CLASSES), 0)


def test_an_npz_file_may_hold_vectors_with_numbers_or_labels(tmp_path: Path) -> None:
    file = tmp_path / "own.npz"
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.savez(file, inputs=table, targets=np.array([0.5, 1, 2, 3]))
    assert folder.kind_of(file) is Targets.NUMBERS
    assert folder.survey(file) == ((3,), ("0",))
    numbers = folder.read(file, (3,), ["0"], Targets.NUMBERS)
    assert numbers.targets.tolist() == [0.5, 1, 2, 3]
    np.savez(file, inputs=table, targets=np.eye(4, 2))
    assert folder.survey(file) == ((3,), ("0", "1"))
    assert folder.read(file, (3,), ["0", "1"], Targets.LABELS).targets.shape == (4, 2)
    with pytest.raises(DataError, match=r"targets of shape .4, 2.: the run expects"):
        folder.read(file, (3,), ["0", "1"])
    np.savez(file, inputs=table, targets=np.array([0.5, 1, 2, np.nan]))
    with pytest.raises(DataError, match="not numbers: give finite numbers"):
        folder.read(file, (3,), ["0"], Targets.NUMBERS)
