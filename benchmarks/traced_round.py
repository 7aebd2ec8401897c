"""How far it is from `run` to the gradient, for somebody who reads the code: files, functions and frames.

    python benchmarks/traced_round.py

Two secure rounds of DOME on the embedded data are played in this process, and the second is traced. Printed are the
files and functions of fedsketch that took part in it, the depth of own frames where the gradient is computed, the
modules that the example of an own strategy imports from, and the lines of the files in which the imported names are.
"""

import ast
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

SETTINGS = ["strategy=dome", "rounds=2", "clients.total=6", "clients.per_round=6", "device=cpu"]


def _is_ours(code: CodeType) -> bool:
    if code.co_filename.startswith("<"):
        return False
    path = Path(code.co_filename).resolve()
    return (
        path.is_relative_to(ROOT) and ".venv" not in path.parts and "benchmarks" not in path.parts
    )


class Trace:
    """Listens to all calls of this process."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.deepest: list[str] = []
        self._rounds = 0
        self._inside = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code.co_name == "_round" and event in ("call", "return"):
            self._rounds += event == "call"
            self._inside = event == "call" and self._rounds == 2
        if self._inside and event == "call" and _is_ours(frame.f_code):
            self.functions.add((frame.f_code.co_filename, frame.f_code.co_qualname))
            if frame.f_code.co_name == "loss_and_gradient" and not self.deepest:
                self.deepest = _own_frames(frame)

    @property
    def files(self) -> set[str]:
        """The files in which a function was called."""
        return {file for file, _ in self.functions}


def _own_frames(frame: FrameType | None) -> list[str]:
    found = []
    while frame is not None:
        if _is_ours(frame.f_code):
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return found[::-1]


def imports(folder: Path) -> dict[str, str]:
    """Return what the files of a folder import from fedsketch: the module of each name."""
    return {
        alias.name: node.module
        for path in sorted(folder.glob("**/*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedsketch")
        for alias in node.names
    }


def lines_to_read(names: Iterable[str]) -> dict[str, int]:
    """Return the files in which these names of the surface are written, and how many lines each has."""
    surface = imports(ROOT / "fedsketch")
    places = {ROOT.joinpath(*surface[name].split(".")[1:]) for name in names}
    files = [
        place / "__init__.py" if place.is_dir() else place.with_suffix(".py") for place in places
    ]
    return {
        str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in sorted(files)
    }


def main() -> None:
    """Play the round and print the counts."""
    import logging

    import fedsketch

    logging.getLogger("flwr").setLevel(logging.ERROR)
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(trace)
        try:
            fedsketch.run([*SETTINGS, f"hydra.run.dir={folder}/run"], quiet=True)
        finally:
            sys.setprofile(None)
    print(f"{len(trace.files)} files, {len(trace.functions)} functions in one secure round")
    print(f"{len(trace.deepest)} own frames from run to the gradient:")
    print("  " + " > ".join(trace.deepest))
    example = ROOT / "examples" / "own_strategy" / "own_strategy"
    imported = imports(example)
    print(f"examples/own_strategy imports from {', '.join(sorted(set(imported.values())))}")
    read = lines_to_read(imported)
    print(f"its author reads {sum(read.values())} lines: {read}")


if __name__ == "__main__":
    main()
