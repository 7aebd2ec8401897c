"""Small TOML files that the owner of a device writes, and that no message can change.

A subclass is a frozen dataclass whose fields carry their explanation, which the file repeats above each key. An unknown
key is refused, because a misspelt limit would not limit anything.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from fedsketch.secagg import SettingsError


def key(default: Any, explanation: str) -> Any:
    """Declare a field of such a file, with its default and explanation."""
    return field(default=default, metadata={"explanation": explanation})


def needed(explanation: str) -> Any:
    """Declare a field without a default: the file must have it."""
    return key(MISSING, explanation)


class OwnersFile:
    """Reads and writes such a file. `what` is the name of the file in messages, `head` its first line."""

    what: ClassVar[str]
    head: ClassVar[str]

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            self._need_type(one.name, getattr(self, one.name), str(one.type))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; raises SettingsError with a sentence that names the key."""
        try:
            table = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"This device's {cls.what} is not TOML: {error}.") from error
        known = {one.name: one for one in fields(cls)}  # type: ignore[arg-type]
        for name in table:
            cls.need(name in known, f"there is no key {name!r}; the keys are {', '.join(known)}.")
        for name, one in known.items():
            cls.need(name in table or one.default is not MISSING, f"the key {name!r} is missing.")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in table.items()
        }
        for name, value in values.items():
            if known[name].type == "float" and type(value) is int:
                values[name] = float(value)  # TOML distinguishes 1 from 1.0, and people do not
        return cls(**values)

    def to_toml(self) -> str:
        """Return the text of the file, with an explanation of every key."""
        parts = [f"# {self.head}\n"]
        for one in fields(self):  # type: ignore[arg-type]
            comment = "\n".join(f"# {line}" for line in one.metadata["explanation"].split("\n"))
            parts.append(f"{comment}\n{one.name} = {_toml(getattr(self, one.name))}\n")
        return "\n".join(parts)

    @classmethod
    def need(cls, condition: bool, rule: str) -> None:
        if not condition:
            raise SettingsError(f"In this device's {cls.what}, {rule}")

    def _need_type(self, name: str, value: object, kind: str) -> None:
        right, words = {
            "bool": (type(value) is bool, "true or false"),
            "int": (type(value) is int, "a whole number"),
            "float": (type(value) is float, "a number"),
            "str": (type(value) is str, "a text"),
            "tuple[int, ...]": (_all(value, int), "a list of whole numbers"),
            "tuple[str, ...]": (_all(value, str), "a list of texts"),
        }[kind]
        self.need(right, f"{name} is {words}.")


def _all(value: object, kind: type) -> bool:
    return isinstance(value, tuple) and all(type(item) is kind for item in value)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # TOML's basic strings have JSON's escapes
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)
