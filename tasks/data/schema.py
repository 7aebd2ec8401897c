"""The schema of a table: a small YAML file that describes the columns and what is public about them
(docs/how-to/own_tables.md).

    columns:
      age: {number: [0, 110]}
      sex: {category: [f, m]}
      note: {text: 1024, ngrams: 2}
      name: ignore
    target: {column: diagnosis, class: [benign, malignant]}
    client: hospital

Bounds, categories and class names are public. They are written by people and never computed from the data: a statistic
of clients' data would be one more release, which the accountant does not know about. So a number without bounds is
refused.

The fingerprint is a hash of everything that determines the examples: the input columns, in their order, and the
target. Two schemas with the same fingerprint turn a row into the same vector.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import yaml

from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError

SUFFIX = ".schema.yaml"
_MOST_BUCKETS = 2**20
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Number:
    """A column of numbers. It is scaled so that the bounds become -1 and 1; values outside are moved to the nearer
    bound."""

    least: float
    most: float
    width = 1

    @property
    def unit(self) -> float:
        """The length of 1 on the new scale, in the units of the table."""
        return (self.most - self.least) / 2

    def original(self, scaled: Any) -> Any:
        """Convert numbers or tensors from the new scale back to the units of the table."""
        return (scaled + 1) * self.unit + self.least


@dataclass(frozen=True)
class Category:
    """A column of categories, one-hot: an input for each value, and a last one for values that are unknown or
    missing."""

    values: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.values) + 1


@dataclass(frozen=True)
class Text:
    """A column of texts. Sequences of up to `ngrams` words, or of characters, are hashed into buckets with signs. Each
    text has norm 1."""

    buckets: int
    ngrams: int = 1
    characters: bool = False

    @property
    def width(self) -> int:
        return self.buckets


Column = Number | Category | Text


@dataclass(frozen=True)
class Target:
    """What is learned: a class, with names; a number, with bounds; or labels, with a column of 0 and 1 for each."""

    kind: Targets
    columns: tuple[str, ...]
    values: tuple[str, ...] = ()
    bounds: Number | None = None


@dataclass(frozen=True)
class Schema:
    """The columns of a table. Those that are `ignored` may differ between tables with the same fingerprint."""

    inputs: dict[str, Column]
    target: Target
    ignored: frozenset[str] = frozenset()
    client: str | None = None  # the column with the client that a row belongs to
    test: str | None = None  # the column that says whether a row belongs to the test set
    delimiter: str = ","

    @property
    def shape(self) -> tuple[int]:
        """The shape of an example, which is a vector."""
        return (sum(column.width for column in self.inputs.values()),)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes or labels, or the name of the number."""
        return self.target.values or self.target.columns

    @property
    def public_classes(self) -> tuple[str, ...]:
        """The same in a form that may be sent in messages: names of classes, but numbers instead of the names of
        columns."""
        return self.target.values or tuple(map(str, range(len(self.target.columns))))

    @property
    def unit(self) -> float | None:
        """The length of 1 in the targets, in the units of the table. None if the targets are not numbers."""
        return None if self.target.bounds is None else self.target.bounds.unit

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint: 32 hexadecimal digits."""
        inputs = [[name, type(one).__name__, _facts(one)] for name, one in self.inputs.items()]
        hashed = [inputs, {"target": self.target.kind, **_facts(self.target)}]
        return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        return (*self.inputs, *self.target.columns)

    def to_yaml(self) -> str:
        """Return a schema file with the same fingerprint. Besides what the fingerprint covers, it has only the
        delimiter."""
        columns = {name: _written(one) for name, one in self.inputs.items()}
        target: dict[str, Any] = {"labels": list(self.target.columns)}
        if self.target.kind is Targets.CLASSES:
            target = {"column": self.target.columns[0], "class": list(self.target.values)}
        elif self.target.bounds is not None:
            target = {"column": self.target.columns[0], **_written(self.target.bounds)}
        content = {"columns": columns, "target": target, "delimiter": self.delimiter}
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def beside(data: Path) -> Path:
    """Return the default path of the schema of a file or folder: patients.schema.yaml for patients.csv."""
    return data.with_name(data.name.removesuffix(data.suffix) + SUFFIX)


def load_schema(path: Path) -> Schema:
    """Read and check a schema file. Raises `DataError` with a message that names the file and the column."""
    try:
        content = _plain(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"There is no schema {path}: write one, as docs/how-to/own_tables.md says, or name it by data.schema."
        ) from error
    except RecursionError:
        raise DataError(f"{path} is not readable YAML: its lists are too deep.") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path} is not readable YAML: {' '.join(str(error).split())}.") from error
    return _Reader(path).schema(content)


def _plain(text: str) -> Any:
    """Return the content of YAML without aliases. With them, a few lines can stand for a list of billions of values."""
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            line = event.start_mark.line + 1
            raise yaml.YAMLError(f"line {line}: write the value out instead of an alias (*name)")
    return yaml.safe_load(text)


def _facts(one: Any) -> dict[str, Any]:
    """Return the fields of an object, for a fingerprint."""
    return {
        name: _facts(value) if isinstance(value, Number) else value
        for name, value in vars(one).items()
    }


def _written(column: Column) -> dict[str, Any]:
    if isinstance(column, Number):
        return {"number": [column.least, column.most]}
    if isinstance(column, Category):
        return {"category": list(column.values)}
    return {"text": column.buckets, "ngrams": column.ngrams, "characters": column.characters}


def _shown(content: Any) -> str:
    """Return a value for an error message, which stays short whatever the value is."""
    if isinstance(content, str):
        return repr(content[:40])
    return str(content) if type(content) in (bool, float) else f"a {type(content).__name__}"


class _Reader:
    """Makes a schema from the content of a YAML file. Every error message names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def schema(self, content: Any) -> Schema:
        known = ("columns", "target", "client", "test", "delimiter")
        self._keys(content, "it", known, ("columns", "target"))
        columns = content["columns"]
        if not isinstance(columns, dict) or not columns:
            self._refuse("columns is a mapping from the name of a column to what it is")
        inputs: dict[str, Column] = {}
        ignored = set()
        for name, what in ((self._name(key), what) for key, what in columns.items()):
            if what == "ignore":
                ignored.add(name)
            else:
                inputs[name] = self._column(name, what)
        target = self._target(content["target"])
        client, test = (self._optional(content, key) for key in ("client", "test"))
        others = [*target.columns, *(name for name in (client, test) if name is not None)]
        for name in others:
            if name in inputs or others.count(name) > 1:
                self._refuse(f"column {name} has two uses: name it once")
        if not inputs:
            self._refuse("it has no column to learn from: describe one under columns")
        delimiter = content.get("delimiter", ",")
        if not isinstance(delimiter, str) or len(delimiter) != 1:
            self._refuse("delimiter is one character, in quotes")
        return Schema(inputs, target, frozenset(ignored), client, test, delimiter)

    def _column(self, name: str, what: Any) -> Column:
        if what == "number":
            self._no_bounds(name)
        makers: dict[str, Callable[[str, dict[str, Any]], Column]] = {
            "number": self._number,
            "category": self._category,
            "text": self._text,
        }
        kinds = [kind for kind in makers if isinstance(what, dict) and kind in what]
        if len(kinds) != 1:
            self._refuse(
                f"column {name} is one of {{number: [least, most]}}, {{category: [names]}}, {{text: buckets}} or ignore"
            )
        return makers[kinds[0]](name, what)

    def _number(self, name: str, what: dict[str, Any]) -> Number:
        bounds = what["number"]
        if not isinstance(bounds, list) or len(bounds) != 2 or None in bounds:
            self._no_bounds(name)
        real = all(type(bound) in (int, float) and abs(bound) <= _LARGEST for bound in bounds)
        if set(what) != {"number"} or not real or not bounds[0] < bounds[1]:
            self._refuse(
                f"column {name} has no bounds that are two numbers, the smaller one first: write {{number: [0, 110]}}"
            )
        return Number(float(bounds[0]), float(bounds[1]))

    def _no_bounds(self, name: str) -> NoReturn:
        self._refuse(
            f"column {name} is a number without bounds: write {{number: [least, most]}}, from public knowledge and "
            "not from the data, because a statistic of the clients' data would be one more release"
        )

    def _category(self, name: str, what: dict[str, Any]) -> Category:
        self._keys(what, f"column {name}", ("category",))
        return Category(self._values(name, what["category"], least=1))

    def _text(self, name: str, what: dict[str, Any]) -> Text:
        self._keys(what, f"column {name}", ("text", "ngrams", "characters"))
        buckets, ngrams = what["text"], what.get("ngrams", 1)
        characters = what.get("characters", False)
        fits = type(buckets) is int and 1 < buckets <= _MOST_BUCKETS
        if not fits or type(ngrams) is not int or not 1 <= ngrams <= 8:
            self._refuse(
                f"column {name} is {{text: buckets, ngrams: n}}, with 2 to {_MOST_BUCKETS:,} buckets and n from 1 to 8"
            )
        if type(characters) is not bool:
            self._refuse(f"characters of column {name} is true or false")
        return Text(buckets, ngrams, characters)

    def _target(self, content: Any) -> Target:
        self._keys(content, "target", ("column", "class", "number", "labels"))
        if set(content) == {"labels"}:
            return Target(Targets.LABELS, self._values("target", content["labels"], least=1))
        if set(content) == {"column", "class"}:
            name = self._name(content["column"])
            values = self._values(name, content["class"], least=2)
            return Target(Targets.CLASSES, (name,), values)
        if "column" in content and len(content) == 1:
            self._no_bounds(self._name(content["column"]))
        if set(content) != {"column", "number"}:
            self._refuse(
                "target is one of {column: NAME, class: [names]}, {column: NAME, number: [least, most]} "
                "or {labels: [columns]}"
            )
        name = self._name(content["column"])
        return Target(
            Targets.NUMBERS, (name,), bounds=self._number(name, {"number": content["number"]})
        )

    def _values(self, name: str, content: Any, least: int) -> tuple[str, ...]:
        if not isinstance(content, list) or len(content) < least:
            self._refuse(f"{name} needs a list of its public values, at least {least}")
        if any(type(value) not in (str, int) for value in content):
            self._refuse(
                f"the values of {name} are texts or whole numbers: put others, and words such as yes and no, "
                "into quotes"
            )
        values = tuple(str(value).strip() for value in content)
        if len(set(values)) < len(values):
            self._refuse(f"a value of {name} occurs twice: remove one")
        return values

    def _name(self, content: Any) -> str:
        if type(content) not in (str, int):
            self._refuse(f"{_shown(content)} is not a column name: put it into quotes")
        return str(content).strip()

    def _optional(self, content: dict[str, Any], key: str) -> str | None:
        return None if content.get(key) is None else self._name(content[key])

    def _keys(
        self, content: Any, what: str, known: tuple[str, ...], needed: tuple[str, ...] = ()
    ) -> None:
        if not isinstance(content, dict):
            self._refuse(f"{what} is a mapping with the keys {', '.join(known)}")
        for key in content:
            if key not in known:
                self._refuse(f"{what} has no key {_shown(key)}: the keys are {', '.join(known)}")
        for key in needed:
            if key not in content:
                self._refuse(f"{what} lacks the key {key}")

    def _refuse(self, what: str) -> NoReturn:
        raise DataError(f"{self._path}: {what}.")
