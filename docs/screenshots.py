"""Makes docs/images/report.png: the report of the demo in a real browser. `python docs/screenshots.py`, or with the
folder of a run.

Needs Chromium on the PATH. Look at the picture before you commit it.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parent / "images" / "report.png"
WIDTH, HEIGHT = 1280, 1616  # tiles in one row, the guarantee, and two rows of plots
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
)


def browser() -> str:
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if found is None:
        raise SystemExit(f"No browser: install one of {', '.join(_BROWSERS)}.")
    return found


def picture(report: Path, out: Path) -> None:
    """The upper part of a page, as a browser shows it."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser(),
                *_QUIET,
                f"--user-data-dir={profile}",
                f"--window-size={WIDTH},{HEIGHT}",
                f"--screenshot={out.resolve()}",
                report.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the screenshot of the docs.")
    parser.add_argument(
        "folder", type=Path, nargs="?", help="a run; the demo is run if none is named"
    )
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as place:
        if folder is None:
            folder = Path(place) / "demo"
            command = Path(sys.executable).with_name("fedsketch")
            subprocess.run([str(command), f"hydra.run.dir={folder}"], check=True)
        picture(folder / "report.html", PICTURE)
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
