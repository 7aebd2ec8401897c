"""Writes docs/reference/ from the code: `python docs/generate`. The pages are committed, to be read on a forge like
GitHub.

A test compares them with the code, and fails where a key, an option or a metric has no explanation.
"""

from pathlib import Path

import commands_page
import configuration_page
import metrics_page
from api_pages import PACKAGES, api
from device_files_page import device_files

FOLDER = Path(__file__).parents[1] / "reference"


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    return {
        "configuration.md": configuration_page.configuration(),
        "commands.md": commands_page.commands(),
        "metrics.md": metrics_page.metrics(),
        "device_files.md": device_files(),
        **{f"{package}.md": api(package) for package in PACKAGES},
    }


def gaps() -> list[str]:
    """What a user can set, call or read, and nobody explains."""
    return [
        *configuration_page.unexplained(),
        *commands_page.undocumented(),
        *metrics_page.unexplained(),
        *(f"{name} (no run writes it)" for name in metrics_page.invented()),
    ]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
    if missing := gaps():
        raise SystemExit("Not explained: " + ", ".join(missing))


if __name__ == "__main__":
    main()
