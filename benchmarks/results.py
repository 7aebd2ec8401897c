"""Plays the presets at five budgets over several seeds, and writes docs/results.md with its tables and pictures.

    make results DATA=DIR                                        # or:
    python benchmarks/results.py --data-root DIR [--seeds 3] [--data fashion_mnist mnist]
        [--presets NAME ...] [--workers 2]
    python benchmarks/results.py --data-root DIR --so-far        # the page from what was played so far
    python benchmarks/results.py --page-only                     # the page again, from the records that are committed
    python benchmarks/results.py --data-root DIR --bytes         # the same, with bytes measured again

Every finished run is a line of outputs/results.jsonl. Interrupt it when you like: the same command resumes it. A run
is played again when its preset, or any default that it rests on, has changed since. The records that the page shows
are copied to docs/results.jsonl. Files in docs/results/ are put at the end of the page: other benchmarks may write
their sections there.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Other files of this folder have the names of packages: look for those above it first.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))

from presets import EPSILONS, PRESETS
from results_cells import Results
from results_page import page
from results_plots import draw
from run_store import Record, Runs, read_records

from fedsketch.server.run_folder import versions

ROOT = Path(__file__).parents[1]
HOW = (
    *("runtime=cohort", "runtime.workers=1", "runtime.memory=16", "privacy.randomness=seeded"),
    *("device=cpu", "evaluate_every=1000", "checkpoint_every=1000"),
)


def all_runs(options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Yield the overrides of all runs; first all of one seed, so that an interrupted table is even."""
    for seed in range(options.seeds):
        for data in options.data:
            for name in options.presets:
                for epsilon in options.epsilons:
                    yield (
                        *(f"experiment={name}", f"data={data}", f"privacy.epsilon={epsilon:g}"),
                        *(f"seed={seed}", *HOW, *options.overrides),
                    )


def play(options: argparse.Namespace) -> list[Record]:
    """Play what is missing; returns the records of all."""
    runs = Runs(options.records, data_root=options.data_root)
    wanted = list(all_runs(options))
    began = time.monotonic()
    missing = [] if options.so_far else wanted
    for done, row in enumerate(runs.play_all(missing, options.workers), start=1):
        minutes = (time.monotonic() - began) / 60
        print(
            f"{done} in {minutes:.0f} min:",
            *row["overrides"][:4],
            f"{row['accuracy']:.1f} %",
            flush=True,
        )
    found = (runs.known(run) for run in wanted)
    return [record for record in found if record is not None]


def measure_bytes(options: argparse.Namespace) -> None:
    """Play one run of each preset and data set of docs/results.jsonl, and put its bytes into the records of all its
    budgets and seeds, whose vectors are as long."""
    file = options.docs / "results.jsonl"
    first, *records = read_records(file)
    chosen = {
        tuple(record["overrides"][:2]): tuple(record["overrides"])
        for record in records
        if record["overrides"][2:4] == ["privacy.epsilon=2", "seed=0"]
    }
    runs = Runs(options.records, data_root=options.data_root)
    for _ in runs.play_all(list(chosen.values()), options.workers):
        pass
    for record in records:
        played = runs.known(chosen[tuple(record["overrides"][:2])])
        assert played is not None
        record |= {key: played[key] for key in ("uplink_bytes", "downlink_bytes")}
    again = origin(1, len(chosen), len(chosen))
    told = f"{again['Date']} at {again['Commit']}: one run of each, for all budgets and seeds; accuracies are of before"
    save(file, {**first["origin"], "Bytes": told}, records)


def origin(seeds: int, played: int, wanted: int) -> dict[str, str]:
    """Return how, when and where the records were made, and how many of them are missing."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = " with changes" if _git("status", "--porcelain", "--untracked-files=no") else ""
    runs = f"{played}, with {seeds} seed{'s' if seeds > 1 else ''}"
    if played < wanted:
        runs = f"{played} of {wanted}. **The page is not finished**: play the rest with the same command"
    return {
        "Command": "`make results`",
        "Runs": runs,
        "Date": time.strftime("%Y-%m-%d", time.gmtime()),
        "Commit": f"{commit}{changed}",
        "Machine": f"{_processor()}, {os.cpu_count()} cores, one thread in each of two processes",
        "Versions": ", ".join(f"{name} {number}" for name, number in versions().items()),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or ("unknown" if arguments[0] == "rev-parse" else "")


def _processor() -> str:
    """Return the name of the processor, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def save(file: Path, told: Mapping[str, str], records: Sequence[Record]) -> None:
    """What the page shows: its origin in the first line, then the records."""
    lines = [{"origin": dict(told)}, *records]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def write_page(docs: Path) -> None:
    """The page and its pictures, from docs/results.jsonl."""
    first, *records = read_records(docs / "results.jsonl")
    results = Results(records)
    images = draw(results, docs / "images")
    (docs / "results.md").write_text(page(results, first["origin"], images, docs / "results"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", default="data", help="where the data sets lie")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="+", default=["fashion_mnist", "mnist"])
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread")
    parser.add_argument("--records", type=Path, default=ROOT / "outputs" / "results.jsonl")
    parser.add_argument(
        "--docs", type=Path, default=ROOT / "docs", help="where the page is written"
    )
    parser.add_argument("--overrides", nargs="+", default=[], help="of all runs")
    parser.add_argument("--so-far", action="store_true", help="play nothing more")
    parser.add_argument("--bytes", action="store_true", help="measure bytes only")
    parser.add_argument("--page-only", action="store_true", help="of docs/results.jsonl as it is")
    options = parser.parse_args(arguments)
    if options.bytes:
        measure_bytes(options)
    elif not options.page_only:
        records, wanted = play(options), len(list(all_runs(options)))
        told = origin(options.seeds, len(records), wanted)
        save(options.docs / "results.jsonl", told, records)
    write_page(options.docs)


if __name__ == "__main__":
    main()
