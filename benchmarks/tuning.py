"""Tunes the one rate of every preset, on validation examples, and writes the rates that were chosen into the presets.

    python benchmarks/tuning.py --data-root DIR [--presets NAME ...] [--workers 2]

Fashion-MNIST, a seed that no table uses. 5,000 examples of the training set, which no client has then, choose: the
test set has no part in it, and its accuracy is not even recorded. Three rates are tried, a factor of 2 apart, and
more in the direction of the best until the best has neighbours on both sides. That is done at epsilon 0.5, 2 and 8
for every preset alike. Epsilon 1 and 4 take the geometric means of their neighbours. MNIST, and any other data set,
takes the rates of Fashion-MNIST.

With --also KEY=VALUE the same rates are tried in another setting, such as rounds=50: recorded, and not chosen from.
Lines with `set_aside` are tries of settings that were given up, and say why.

Every try is a line of benchmarks/tuning.jsonl. What is there already is not played again, so an interrupted search
can be resumed, and `tests/conf/test_presets.py` checks that the presets hold what this file says.
"""

import argparse
import math
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

# Other files of this folder have the names of packages: look for those above it first.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))

from presets import PRESETS, Preset
from run_store import Record, Runs, read_records

TRIES = Path(__file__).parent / "tuning.jsonl"
EXPERIMENTS = Path(__file__).parents[1] / "conf" / "experiment"
TUNED = (0.5, 2.0, 8.0)
MIDDLE = 2.0
SEED = 100
FARTHEST = 5  # factors of 2 from where the search begins
HOW = (
    *("data=fashion_mnist", "validation.examples=5000", f"seed={SEED}", "runtime=cohort"),
    *("runtime.workers=1", "runtime.memory=16", "privacy.randomness=seeded", "device=cpu"),
    *("evaluate_every=1000", "checkpoint_every=1000"),
)
NOT_YET = " # not tuned yet"
_TABLE = re.compile(r"\$\{nearest:\$\{privacy\.epsilon\},\{[^}]*\}\}" + f"(?:{NOT_YET})?")


def two_digits(number: float) -> float:
    """Return rounded to two significant digits."""
    return float(f"{number:.2g}")


def rate(preset: Preset, epsilon: float, step: int) -> float:
    """Return the rate so many factors of 2 from where the search begins."""
    return two_digits(preset.start * (epsilon / 2) ** preset.follows * 2.0**step)


def overrides(preset: Preset, epsilon: float, step: int) -> tuple[str, ...]:
    """Return a try, as on the command line."""
    wanted = f"{preset.rate}={rate(preset, epsilon, step):g}"
    return (f"experiment={preset.name}", f"privacy.epsilon={epsilon:g}", wanted, *HOW)


Scores = dict[tuple[str, ...], float]


def scores(records: Sequence[Record]) -> Scores:
    """Return validation accuracies by overrides; of a run that was played twice the later."""
    return {tuple(row["overrides"]): float(row["validation"]) for row in records}


def best_step(preset: Preset, epsilon: float, known: Scores) -> int | None:
    """Return the step of the best rate among those that were tried, and of equal ones the smallest; None if none
    was."""
    steps = range(-FARTHEST, FARTHEST + 1)
    tried = {s: known[o] for s in steps if (o := overrides(preset, epsilon, s)) in known}
    return max(tried, key=lambda step: (tried[step], -step)) if tried else None


def missing(preset: Preset, epsilon: float, known: Scores) -> list[tuple[str, ...]]:
    """Return what is to be tried next: the best so far and its neighbours."""
    centre = best_step(preset, epsilon, known) or 0
    steps = (step for step in (centre, centre - 1, centre + 1) if abs(step) <= FARTHEST)
    wanted = (overrides(preset, epsilon, step) for step in steps)
    return [one for one in wanted if one not in known]


def best(preset: Preset, epsilon: float, known: Scores) -> float:
    """Return the best rate at one of the epsilons of `TUNED`."""
    step = best_step(preset, epsilon, known)
    if step is None:
        raise ValueError(f"{preset.name} was not tuned at epsilon {epsilon:g}")
    return rate(preset, epsilon, step)


def chosen(preset: Preset, known: Scores) -> dict[float, float]:
    """Return the rates of a preset by epsilon, with geometric means between those that were tuned."""
    rates = {epsilon: best(preset, epsilon, known) for epsilon in TUNED}
    for low, high in pairwise(TUNED):
        rates[math.sqrt(low * high)] = math.sqrt(rates[low] * rates[high])
    return {epsilon: two_digits(rates[epsilon]) for epsilon in sorted(rates)}


def complete(preset: Preset, known: Scores) -> bool:
    """Return whether nothing is left to try."""
    return not any(missing(preset, epsilon, known) for epsilon in TUNED)


def table(rates: dict[float, float]) -> str:
    """Return the value as a preset has it."""
    cells = ",".join(f"{epsilon:g}:{value:g}" for epsilon, value in rates.items())
    return f"${{nearest:${{privacy.epsilon}},{{{cells}}}}}"


def write(preset: Preset, rates: dict[float, float]) -> None:
    """Put the table into the preset's file."""
    file = EXPERIMENTS / f"{preset.name}.yaml"
    text, times = _TABLE.subn(lambda _: table(rates), file.read_text())
    if times != 1:
        raise SystemExit(f"{file.name} has {times} tables for privacy.epsilon, and should have one")
    file.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", default="data", help="where Fashion-MNIST lies")
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--also", nargs="+", help="another setting to try at epsilon 2")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread")
    options = parser.parse_args()
    kept = ("validation", "seconds")
    runs = Runs(TRIES, data_root=options.data_root, kept=kept)
    presets = [PRESETS[name] for name in options.presets]
    if options.also is not None:
        steps = [
            (*overrides(p, MIDDLE, step), *options.also) for p in presets for step in (-1, 0, 1)
        ]
        for row in runs.play_all(steps, options.workers):
            print(*row["overrides"][:3], *options.also, f"{row['validation']:.2f} %", flush=True)
        return
    # One after the other: what is finished when the search is interrupted can be used.
    for preset in presets:
        while tries := [try_ for e in TUNED for try_ in missing(preset, e, _known_tries())]:
            for row in runs.play_all(tries, options.workers):
                print(*row["overrides"][:3], f"{row['validation']:.2f} %", flush=True)
        write(preset, chosen(preset, _known_tries()))


def _known_tries() -> Scores:
    return scores(read_records(TRIES)) if TRIES.exists() else {}


if __name__ == "__main__":
    main()
