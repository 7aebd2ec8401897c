"""What the comments of a YAML file say: of the whole file, and of each of its keys."""

import re
from dataclasses import dataclass, field
from pathlib import Path

_KEY = re.compile(r"^(?P<indent> *)(?P<key>\w+):(?: +(?P<value>[^#]*?))? *(?:# (?P<comment>.*))?$")


@dataclass
class Commented:
    """`about` is the comment at the head; keys are full paths such as `local.steps`."""

    about: str = ""
    values: dict[str, str] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)


def read(file: Path) -> Commented:
    """Of a file with mappings, values and comments behind them, which is all that our configuration has."""
    found = Commented()
    path: list[tuple[int, str]] = []
    for line in file.read_text().splitlines():
        if line.startswith("# @package"):
            continue
        if line.startswith("#") and not found.values:
            found.about = f"{found.about} {line.lstrip('# ')}".strip()
        if not (match := _KEY.match(line)):
            continue
        depth = len(match["indent"])
        path = [(d, name) for d, name in path if d < depth]
        path.append((depth, match["key"]))
        key = ".".join(name for _, name in path)
        if key.split(".")[0] in ("defaults", "hydra"):
            continue
        if match["comment"]:
            found.comments[key] = match["comment"]
        if match["value"]:
            found.values[key] = match["value"].strip()
    return found
