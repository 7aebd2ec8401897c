"""Writes docs/reference/ from the code: `python docs/generate`. The pages are committed, to be read on a forge like
GitHub.

A test compares them with the code, and fails where a key, an option or a metric has no explanation.
"""

from pathlib import Path

import commands_page
import configuration_page
import metrics_page
from api_pages import PACKAGES, package_pages, top_level
from device_files_page import device_files
from wrapping import NOTE

FOLDER = Path(__file__).parents[1] / "reference"


def pages() -> dict[str, str]:
    """Every page by its path below docs/reference/."""
    found = {
        **configuration_page.configuration(),
        "commands.md": commands_page.commands(),
        "metrics.md": metrics_page.metrics(),
        "device_files.md": device_files(),
        "fedsketch.md": top_level(),
    }
    for package in PACKAGES:
        found |= package_pages(package)
    return found


def stale() -> list[Path]:
    """Generated pages of modules and groups that are no more."""
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
