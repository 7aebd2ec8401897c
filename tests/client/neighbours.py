"""Data of a device, and the same data with one record more, fewer or broken: of every kind that a device can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from fedsketch.client.guard.card import DataCard
from fedsketch.tasks.data.schema import load_schema
from tests.client import fragile

BOUND = 8
REPLACED = (
    "another",
    "an overflow in the model",
)  # neighbours with another record in the place of one
SHAPE = (1, 2, 2)
TABLE = """
columns:
  age: {number: [0, 100]}
  town: {category: [a, b]}
target: {column: ill, class: ["no", "yes"]}
"""
TEXT = """
columns: {note: {text: 16}}
target: {column: label, class: ["0", "1"]}
"""
ROWS = ["50,a,yes", "20,b,no", "70,a,yes", "90,b,no", "35,x,yes"]


@dataclass(frozen=True)
class Kind:
    """One kind of data: what the card and the run say of it, the usual data, and neighbours of these, by name."""

    card: DataCard
    run: tuple[str, ...]
    usual: Path
    neighbours: dict[str, Path] = field(default_factory=dict)


def kinds(root: Path) -> dict[str, Kind]:
    """Write data of every kind below a folder."""
    return {make.__name__: make(root) for make in (arrays, images, table, texts)}


def arrays(root: Path) -> Kind:
    rng = np.random.default_rng(0)
    inputs = rng.random((BOUND + 2, *SHAPE), dtype=np.float32)
    targets = rng.integers(0, 2, BOUND + 2)

    def write(
        name: str,
        count: int = 5,
        change: Callable[..., object] | None = None,
        dtype: type = np.int64,
    ) -> Path:
        own = inputs[:count].copy(), targets[:count].astype(dtype)
        if change is not None:
            change(*own)
        np.savez(root / f"{name}.npz", inputs=own[0], targets=own[1])
        return root / f"{name}.npz"

    return Kind(
        DataCard("folder", SHAPE, ("0", "1"), BOUND),
        ("data.shape=[1,2,2]", "data.classes=2"),
        write("five"),
        {
            "one more": write("six", 6),
            "one fewer": write("four", 4),
            "another": write("another", 5, lambda x, y: x[1].fill(0.5)),
            "nan": write("nan", 5, lambda x, y: x[1].fill(np.nan)),
            "inf": write("inf", 5, lambda x, y: x[0, 0, 0].fill(np.inf)),
            "a class that does not exist": write("class", 5, lambda x, y: y[2:3].fill(7)),
            "a negative class": write("negative", 5, lambda x, y: y[4:].fill(-1)),
            "a class that is nan": write("label", 5, lambda x, y: y[1:2].fill(np.nan), np.float32),
            "an overflow in the model": write("huge", 5, lambda x, y: x[3].fill(3e38)),
        },
    )


def packages(root: Path) -> Kind:
    """Arrays for a task, a model and a feature map of an installed package, which raise for some records."""
    rng = np.random.default_rng(2)
    inputs = rng.random((BOUND + 2, *SHAPE), dtype=np.float32) * 0.5
    targets = rng.integers(0, 2, BOUND + 2)

    def write(name: str, count: int = 5, pixel: float = 0.0, target: int = 0) -> Path:
        own = inputs[:count].copy(), targets[:count].copy()
        own[0][1, 0, 0, 0] += pixel
        own[1][1] += target
        np.savez(root / f"{name}.npz", inputs=own[0], targets=own[1])
        return root / f"{name}.npz"

    return Kind(
        DataCard("folder", SHAPE, ("0", "1", "2"), BOUND),
        ("data.shape=[1,2,2]", "data.classes=3", *fragile.RUN[1:]),
        write("packages5"),
        {
            "one more": write("packages6", 6),
            "one fewer": write("packages4", 4),
            "one at which the map raises": write("map", pixel=fragile.FOR_THE_MAP),
            "one at which the model raises": write(
                "model", pixel=fragile.FOR_THE_MODEL - inputs[1, 0, 0, 0]
            ),
            "one at which the task raises": write("task", target=fragile.FOR_THE_TASK),
        },
    )


def images(root: Path) -> Kind:
    pixels = np.random.default_rng(1).integers(0, 256, (BOUND + 2, 2, 2), np.uint8)

    def write(name: str, count: int = 5) -> Path:
        for number in range(count):
            file = root / name / _class_of(number) / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[number], "L").save(file)
        return root / name

    cut, large, foreign = (write(name) for name in ("cut", "large", "foreign"))
    (cut / "0" / "2.png").write_bytes((cut / "0" / "2.png").read_bytes()[:40])
    Image.new("L", (3, 3), 9).save(large / "1" / "1.png")
    (foreign / "0extra").mkdir()
    Image.new("L", (2, 2), 9).save(foreign / "0extra" / "a.png")
    return Kind(
        DataCard("folder", SHAPE, ("0", "1"), BOUND),
        ("data.shape=[1,2,2]", "data.classes=2"),
        write("images5"),
        {
            "one more": write("images6", 6),
            "one fewer": write("images4", 4),
            "an image that is cut off": cut,
            "an image of another size": large,
            "an image of another class": foreign,
        },
    )


def table(root: Path) -> Kind:
    def write(name: str, rows: list[str], more: bytes = b"") -> Path:
        (root / f"{name}.schema.yaml").write_text(TABLE)
        text = "age,town,ill\n" + "".join(f"{row}\n" for row in rows)
        (root / f"{name}.csv").write_bytes(text.encode() + more)
        return root / f"{name}.csv"

    def other(name: str, row: str) -> Path:
        return write(name, [ROWS[0], row, *ROWS[2:]])

    usual = write("rows", ROWS)
    schema = load_schema(root / "rows.schema.yaml")
    return Kind(
        DataCard("folder", schema.shape, ("no", "yes"), BOUND, "classes", schema.fingerprint),
        (f"data.schema={root / 'rows.schema.yaml'}",),
        usual,
        {
            "one more": write("rows6", [*ROWS, "44,b,no"]),
            "one fewer": write("rows4", ROWS[:-1]),
            "another": other("elder", "99,a,yes"),
            "not a number": other("cell", "fifty,a,yes"),
            "a class that does not exist": other("maybe", "20,b,maybe"),
            "no class": other("none", "20,b,"),
            "a cell too few": other("short", "20,b"),
            "a cell too many": other("long", "20,b,no,no"),
            "a quote that is never closed": other("quote", '20,"b,no'),
            "a quote in the wrong place": other("quoted", '20,"b"b,no'),
            "bytes that are not UTF-8": write("bytes", ROWS[:4], b"35,\xff,yes\n"),
        },
    )


def _class_of(number: int) -> str:
    """More of one class, so that they do not cancel."""
    return str(int(number % 4 == 1))


def texts(root: Path) -> Kind:
    (root / "texts.yaml").write_text(TEXT)

    def write(name: str, count: int = 5) -> Path:
        (root / f"{name}.schema.yaml").write_text(TEXT)
        for number in range(count):
            file = root / name / _class_of(number) / f"{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"the text of number {number} {'abc'[number % 3]}")
        return root / name

    broken, foreign = write("broken_texts"), write("foreign_texts")
    (broken / "1" / "1.txt").write_bytes(b"\xff\xfe\xff")
    (foreign / "0b").mkdir()
    (foreign / "0b" / "a.txt").write_text("of no class")
    schema = load_schema(root / "texts.yaml")
    return Kind(
        DataCard("folder", schema.shape, ("0", "1"), BOUND, "classes", schema.fingerprint),
        (f"data.schema={root / 'texts.yaml'}",),
        write("texts5"),
        {
            "one more": write("texts6", 6),
            "one fewer": write("texts4", 4),
            "a text that is not UTF-8": broken,
            "a text of another class": foreign,
        },
    )
