"""Writes the pages of docs/reference/ about keys, commands, metrics and device files: `python docs/generate`. They are
committed, to be read on a forge like GitHub.

`make prose` compares them with the code, and fails where a key, an option or a metric has no explanation. The pages of
the Python API are made when the site is built (docs/generate/docstrings.py).
"""

from pathlib import Path

import commands_page
import configuration_page
import metrics_page
from device_files_page import device_files
from wrapping import NOTE

FOLDER = Path(__file__).parents[1] / "reference"


def pages() -> dict[str, str]:
    """Every page by its path below docs/reference/."""
    return {
        **configuration_page.configuration(),
        "commands.md": commands_page.commands(),
        "metrics.md": metrics_page.metrics(),
        "device_files.md": device_files(),
    }


def stale() -> list[Path]:
    """Generated pages of groups that are no more."""
    wanted = {FOLDER / name for name in pages()}
    return [
        path
        for path in sorted(FOLDER.rglob("*.md"))
        if path not in wanted and NOTE in path.read_text()
    ]


def gaps() -> list[str]:
    """What a user can set, call or read, and nobody explains."""
    return [
        *configuration_page.unexplained(),
        *commands_page.undocumented(),
        *metrics_page.unexplained(),
        *(f"{name} (no run writes it)" for name in metrics_page.invented()),
    ]


def main() -> None:
    for path in stale():
        path.unlink()
    for name, text in pages().items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text)
    if missing := gaps():
        raise SystemExit("Not explained: " + ", ".join(missing))


if __name__ == "__main__":
    main()
