"""Runs all benchmarks of speed, one after the other, and writes what they print to docs/benchmarks.md.

    python benchmarks/bench.py [--only cohort secagg] [--page docs/benchmarks.md]

With --only, the other sections of the page stay as they are.

Each compares with its peer in the same run. Arguments are such that all of them take about half an hour on two idle
cores. A script that fails is said to have failed on the page, and the exit code is then 1. One whose peer is not
installed is not run, and the page says how to install it.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 3600  # seconds that a script may take
VERSIONS = ("torch", "flwr", "ray", "numpy", "scipy", "cryptography", "dp-accounting", "opacus")


@dataclass(frozen=True)
class Script:
    """A file of this folder, how it is called, and what its table tells."""

    name: str
    tells: str
    arguments: tuple[str, ...] = ()
    needs: str | None = None  # a module without which there is nobody to compare with
    install: str = ""


SCRIPTS = (
    Script("cohort", "Client updates per second, beside plain Flower under Ray", ("--quick",)),
    Script("simulation", "Flower's Ray engine with and without us", ("--rounds", "8")),
    Script("envelope", "Bytes of a round for one client, by what they are for"),
    Script("rings", "The smallest rings that serve, and the noise that they cost"),
    Script("two_trips", "Sums in two round trips, beside pairwise masks and Flower's SecAgg+"),
    Script("pairwise_masks", "Pairwise masks, beside Flower's SecAgg+ and openssl", ("--quick",)),
    Script(
        "per_example",
        "Clipped gradients of single examples, beside Opacus",
        ("--threads", "1", "--batches", "50"),
        needs="opacus",
        install="pip install 'fedsketch[bench]'",
    ),
    Script("sketching", "Sketches, beside the products that bound them", ("--quick",)),
    Script("scale", "The server's work by size of model and sketch", ("--memory", "13")),
    Script("fedceo", "FedCEO's tensor SVD, beside the plain one", ("--speed",)),
    Script("accounting", "Noise by loss distributions, beside Renyi curves", ("--rounds", "20")),
    Script("deployment", "A round on three nodes, beside stock polling", ("--rounds", "3")),
    Script("threads", "One thread or two for a client", ("--rounds", "4")),
)
# What the other files are: measurements of accuracy or of attacks, comparisons of two commits, and pieces.
OTHERS = {
    "accuracy": (
        *("adaptive_clip", "csgm", "dome", "fed_sgm", "fedpcdp", "public_directions", "sgmf"),
        *("flower_strategies", "large_model", "record", "record_tuning", "results", "tuning"),
    ),
    "attacks": ("accounting_gaps", "inversion", "sketch_distinguisher"),
    "comparisons": ("recorded_runs", "traced_round"),
    "pieces": (
        *("bench", "cpu_time", "presets", "run_store"),
        *("results_cells", "results_page", "results_plots"),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[script.name for script in SCRIPTS])
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    asked = parser.parse_args()
    chosen = [script for script in SCRIPTS if not asked.only or script.name in asked.only]
    return run(chosen, asked.page)


def run(scripts: Sequence[Script], page: Path, folder: Path = ROOT / "benchmarks") -> int:
    """Run the scripts of a folder and writes their sections into the page, which keeps its others; returns 1 if any
    failed."""
    sections = _sections_of(page) if page.exists() else {}
    failed = 0
    for script in scripts:
        print(f"{script.name} ...", flush=True)
        sections[script.tells], ok = _section(script, folder)
        failed += not ok
    order = [script.tells for script in SCRIPTS]
    known = sorted(sections, key=lambda tells: order.index(tells) if tells in order else -1)
    page.write_text("\n".join([_head(), *(sections[tells] for tells in known)]))
    state = "all of them ran." if not failed else f"{failed} of {len(scripts)} failed."
    print(f"{page}: {state}")
    return min(failed, 1)


def _sections_of(page: Path) -> dict[str, str]:
    """Return what the page has by now, by title."""
    parts = page.read_text().split("\n## ")[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def _head() -> str:
    lines = [
        "# Benchmarks",
        "",
        "<!-- Made by `make bench`. -->",
        "",
        "For those who want to know how fast fedsketch is, and beside what. `make bench` measures everything here",
        "again and writes this page; ratios are against peers in the same run.",
        "",
        "| | |",
        "|---|---|",
        f"| processor | {_processor()}, {os.cpu_count()} cores |",
        f"| Python | {platform.python_version()} on {platform.system()} |",
        *(f"| {name} | {_version(name)} |" for name in VERSIONS),
        "",
    ]
    return "\n".join(lines)


def _section(script: Script, folder: Path) -> tuple[str, bool]:
    """Return what the page says about a script, and whether it did not fail."""
    command = " ".join(("python", f"benchmarks/{script.name}.py", *script.arguments))
    title = f"## {script.tells}\n`{command}`\n"
    if script.needs and importlib.util.find_spec(script.needs) is None:
        return (
            f"{title}\nNot run: {script.needs} is not installed. `{script.install}` adds it.\n",
            True,
        )
    path = folder / f"{script.name}.py"
    # A fixed width and no colours, so that tables read the same everywhere.
    variables = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    start = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, str(path), *script.arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
    )
    try:
        printed, errors = child.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with the processes that it started
        child.communicate()
        return f"{title}\n**Failed**: not ready after {LIMIT} seconds.\n", False
    seconds = time.monotonic() - start
    table = f"```text\n{printed.strip()}\n```\n" if printed.strip() else ""
    if child.returncode:
        print(errors, file=sys.stderr)  # not on the page: it names files of this machine
        reason = (errors.strip().splitlines() or ["no message"])[-1]
        said = f"**Failed** with exit code {child.returncode}: `{reason}`\n"
        return f"{title}\n{said}{table}", False
    when = f"on {datetime.now(UTC):%Y-%m-%d} at commit {_commit()}; load before: {load}"
    return f"{title}\n{table}In {seconds:.0f} seconds, {when}.\n", True


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return the one that was measured, as far as git knows."""
    try:
        commit, changes = (
            subprocess.run(
                ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
            for arguments in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}, with changes" if changes else commit


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
