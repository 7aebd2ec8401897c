"""Who can tell whether a client took part in a sketched round, measured with the devices' own code: r_secret against
r_public.

    python benchmarks/sketch_distinguisher.py [--trials 10000] [--seed 1]

One client, one round, many times: it sends its clipped and noised sketch, or that of zeros. Three distinguishers look
at it. One sees the noisy sum y only, one also knows the sketch R, one sees nothing but the change of the model, R^T y.
Each draws a line where it does best on one half of the trials; on the other half its hits and false alarms, each with a
Clopper-Pearson bound of 99.9 %, give an epsilon that the mechanism has at least: log((hits - delta) / false alarms),
from either side. Beside it is what fedsketch-plan claims: what is measured above a claim breaks it.

The eavesdropper who sees the noisy sums only is then given many rounds. The model moves along R^T y, and whoever's
gradients depend on the model shows it in the next sums: here all clients have a gradient if the model has moved along
the one client's direction, and none if it has not. That breaks what many rounds of r_secret would claim if their costs
added up, so there is no such claim.

Exits with 1 if r_public breaks, if r_secret breaks for whom it holds, or if it does not break for the others and over
many rounds.
"""

import argparse
import math
import sys
from pathlib import Path

# Some files of this folder have the names of packages, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import stats

from fedsketch.conf import compose
from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import Release
from fedsketch.privacy.accounting.renyi import epsilon
from fedsketch.privacy.accounting.sketched_gaussian import secret_curve
from fedsketch.privacy.mechanisms.clipping import clip_rows
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.strategies.fed_sgm import EAVESDROPPER, FedSgm, make_sketch
from fedsketch.tasks.workload import Workload

CLIENT = [
    "strategy=fed_sgm",
    "strategy.sketch_dim=0.1",
    *("data=synthetic", "data.shape=[1,7,7]", "data.classes=10", "model=logistic"),  # d = 500
    *("clients.total=1", "clients.per_round=1", "rounds=1", "device=cpu", "secagg=none"),
]
PAPERS = "the paper's: clip=before accounting=r_secret epsilon=0.5"
RUNS = {
    PAPERS: [
        "strategy.clip=before",
        "strategy.accounting=r_secret",
        "privacy.epsilon=0.5",
    ],
    "the default: clip=after accounting=r_public epsilon=4": ["privacy.epsilon=4"],
}
ERROR = 1e-3  # of each Clopper-Pearson bound

Floats = NDArray[np.float64]
ALL_SUMS = "all noisy sums, without sketches"
ROUNDS, PUSHED, CLIENTS, ROWS = 100, 60, 50, 2000  # of the run over many rounds
SUM, SKETCH, MODEL = (
    "the noisy sum, without the sketch",
    "the noisy sum and the sketch",
    "the models only",
)


def play(strategy: FedSgm, norm: float, trials: int, source: Stream) -> dict[str, Floats]:
    """Return what each distinguisher makes of a client whose update has this norm, along a direction that all know.
    Sketches and keys of the noise come from `source`."""
    settings, d, clip = strategy.settings, strategy.model.size, strategy.config.privacy.fixed_clip
    assert clip is not None
    direction = torch.zeros(1, d)
    direction[0, 0] = 1.0
    update = norm * direction
    if settings.clip == "before":
        update = clip_rows(update, clip)
    mechanism = strategy.mechanism(1, 1)
    seen = {name: np.empty(trials) for name in (SUM, SKETCH, MODEL)}
    for i in range(trials):
        sketch = make_sketch(settings, d, source.bytes(16))
        sent, expected = sketch.forward(torch.cat([update, direction]))
        with Stream(source.bytes(16)) as stream:
            y = torch.from_numpy(mechanism.protect(sent.unsqueeze(0), stream, 1).vector)
        # Averaged over R, the sum says something by its length only.
        seen[SUM][i] = y.norm()
        # With R it is one of two Gaussians with known means: their likelihood ratio lies along the sketched update.
        seen[SKETCH][i] = y @ expected / expected.norm()
        # The model moves along R^T y, of which the part along the direction is this.
        seen[MODEL][i] = y @ expected
    return seen


def many_rounds(multiplier: float, there: bool, trials: int, source: Stream) -> Floats:
    """Return what the eavesdropper makes of the noisy sums of all rounds, none of which says anything by itself.

    In the first rounds the one client sends an update along one direction, or nothing; the model moves along it by y .
    R u. Then all clients send one if the model has moved beyond a line, and nothing if not, which the lengths of the
    sums show. With one direction u only R u and the noise count, and of them three numbers: |R u|^2, their product, and
    |noise|^2. They are drawn by their laws.
    """
    draw = np.random.default_rng(int.from_bytes(source.bytes(16), "big"))
    moved, lengths = np.zeros(trials), np.zeros(trials)
    for current in range(ROUNDS):
        unit = draw.chisquare(ROWS, trials) / ROWS
        along = draw.standard_normal(trials)  # of the noise, in the direction of R u
        noise = along**2 + draw.chisquare(ROWS - 1, trials)
        if current < PUSHED:
            sent = np.full(trials, float(there))
        else:
            line = 2.0 * multiplier * math.sqrt(PUSHED)
            sent = np.where(moved > line, float(CLIENTS), 0.0)
        product = multiplier * np.sqrt(unit) * along
        if current < PUSHED:
            moved += sent * unit + product
        else:
            lengths += sent**2 * unit + 2 * sent * product + multiplier**2 * noise
    return lengths


def lower_bound(there: Floats, missing: Floats, delta: float) -> float:
    """Return an epsilon below which the mechanism is not, from draws of a statistic in either world."""
    half = len(there) // 2
    best, line, sign = -math.inf, 0.0, 1.0
    for direction in (1.0, -1.0):
        # Either world may be the one that is recognised.
        for quantile in np.geomspace(2e-4, 0.5, 60):
            place = float(np.quantile(direction * missing[:half], 1.0 - quantile))
            found = _bound(direction * there[:half], direction * missing[:half], place, delta)
            if found > best:
                best, line, sign = found, place, direction
    return max(0.0, _bound(sign * there[half:], sign * missing[half:], line, delta))


def _bound(there: Floats, missing: Floats, line: float, delta: float) -> float:
    """Return whichever of "it took part" and "it did not" tells more, beyond this line."""
    hits, false = int(np.sum(there > line)), int(np.sum(missing > line))
    n, m = len(there), len(missing)
    sides = [(hits, n, false, m), (m - false, m, n - hits, n)]
    values = []
    for often, of, rarely, of_others in sides:
        surely = float(stats.beta.ppf(ERROR, often, of - often + 1)) if often else 0.0
        at_most = float(stats.beta.ppf(1 - ERROR, rarely + 1, of_others - rarely))
        values.append(math.log((surely - delta) / at_most) if surely > delta else -math.inf)
    return max(values)


def made(overrides: list[str]) -> FedSgm:
    config = compose([*CLIENT, *overrides])
    workload = Workload(config)
    return FedSgm(config, workload, workload.model())


def claimed_over_rounds() -> tuple[float, float]:
    """Return the noise multiplier for which the Renyi curves of all rounds add up to epsilon 0.5, and that epsilon."""
    low, high = 0.1, 100.0
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        fits = epsilon(ROUNDS * secret_curve(middle, ROWS, CLIENTS), 1e-5) <= 0.5
        low, high = (low, middle) if fits else (middle, high)
    return high, epsilon(ROUNDS * secret_curve(high, ROWS, CLIENTS), 1e-5)


def spent(release: Release, delta: float) -> float:
    accountant = Accountant(delta)
    accountant.record(release)
    return accountant.epsilon().epsilon


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000, help="in each of the two worlds")
    parser.add_argument("--seed", type=int, help="the same draws again; without it they are new")
    arguments = parser.parse_args()
    trials = arguments.trials
    source = Stream(None if arguments.seed is None else derived_key(arguments.seed))
    torch.set_num_threads(1)
    table = Table(title=f"{trials:,} trials in each world, d = 500, b = 50, delta 1e-5")
    for column in ("mechanism", "who sees", "measured", "r_secret", "r_public"):
        table.add_column(column, justify="left" if column in ("mechanism", "who sees") else "right")
    as_said = True
    for name, overrides in RUNS.items():
        strategy = made(overrides)
        delta = strategy.config.privacy.delta
        shown = strategy.releases(1, 1, 1)
        public = spent(shown[Against.SERVER], delta)
        secret = spent(shown[EAVESDROPPER], delta) if EAVESDROPPER in shown else None
        missing, there = (play(strategy, norm, trials, source) for norm in (0.0, 100.0))
        for who in (SUM, SKETCH, MODEL):
            measured = lower_bound(there[who], missing[who], delta)
            breaks = secret is not None and measured > secret
            claim = "not claimed" if secret is None else f"{secret:.2f}"
            table.add_row(
                name,
                who,
                f"{measured:.2f}",
                f"{claim} (broken)" if breaks else claim,
                f"{public:.2f}",
            )
            name = ""
            as_said &= measured <= public
            as_said &= secret is None or breaks == (who != SUM)
    multiplier, naive = claimed_over_rounds()
    present, absent = (
        many_rounds(multiplier, there, 30 * trials, source) for there in (True, False)
    )
    measured = lower_bound(present, absent, delta)
    claim = f"would be {naive:.2f}{' (broken)' if measured > naive else ''}"
    name = f"r_secret over {ROUNDS} rounds of {CLIENTS} clients, b = {ROWS:,}"
    table.add_row(name, ALL_SUMS, f"{measured:.2f}", claim, "not asked")
    as_said &= measured > naive
    Console(width=140).print(table)
    return 0 if as_said else 1


if __name__ == "__main__":
    sys.exit(main())
