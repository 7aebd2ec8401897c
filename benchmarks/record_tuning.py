"""Chooses clip and rate of the no-trust record on 5,000 held-out training examples; the test set is not read.

    python benchmarks/record_tuning.py --data-root DIR [--data fashion_mnist] [--epsilons 3 1] [--clips ...]
        [--rates ...] [--full]

A stand-in for runs of conf/experiment/record_*.yaml that works in the sketch's own 5,130 coordinates, where a linear
model is one too: Z = X P is computed once, and a run of 100 rounds takes seconds. Rows are clipped and summed as on
devices, in float32. The noise is Gaussian of the same deviation, that of all 100 clients with 90 honest ones. Clips
are in units of the mean length m of a row of Z, rates in units of 1 / m^2, of steps by a velocity v = 0.9 v + g.
(strategy=dome divides v by its weights, so its rate is ten times as large.)

--full is the same without directions, for record_*_no_public.
"""

import argparse
import math
import sys
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedsketch.conf import compose
from fedsketch.privacy.accounting.calibration import calibrate
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    Gaussian,
    NoSampling,
    Release,
    Unit,
)
from fedsketch.tasks.models.features import seen_through
from fedsketch.tasks.workload import Workload

PUBLIC, HELD_OUT, RANK, SCALING = 1_000, 5_000, 512, 0.8
ROUNDS, MOMENTUM, DELTA = 100, 0.9, 1e-5
CLIENTS, HONEST = 100, 90


def directions(public: Tensor) -> Tensor:
    """Return directions as `strategies.dome.public_directions`."""
    _, values, rows = torch.linalg.svd(public.double(), full_matrices=False)
    return (rows[:RANK].T * (values[:RANK] / values[0]) ** -SCALING).float()


def noise_multiplier(epsilon: float) -> float:
    """Return the deviation of the noise of all clients, over the clip."""

    def release(z: float) -> Release:
        return Release(
            Gaussian(z), NoSampling(), Adjacency.ZERO_OUT, Unit.EXAMPLE, Adversary.SERVER
        )

    z = calibrate(release, rounds=ROUNDS, epsilon=epsilon, delta=DELTA)
    return z * math.sqrt(CLIENTS / HONEST)


def trained(
    inputs: Tensor, targets: Tensor, clips: Tensor, rates: Tensor, noises: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weights (settings, classes, inputs) and offsets (settings, classes) after all rounds, for each setting of
    clip, rate and noise. They are trained side by side: the inputs are the most to read, and are read once for all."""
    generator, classes, settings = torch.Generator().manual_seed(0), 10, len(clips)
    n, k = inputs.shape
    weights, velocity = (torch.zeros(settings, classes, k) for _ in range(2))
    offset, drift = (torch.zeros(settings, classes) for _ in range(2))
    lengths = (inputs.square().sum(dim=1) + 1.0)[:, None]
    wanted = torch.nn.functional.one_hot(targets, classes).float()[:, None]
    scale = (noises * clips)[:, None, None]
    for _ in range(ROUNDS):
        outputs = (inputs @ weights.flatten(0, 1).T).view(n, settings, classes) + offset
        errors = torch.softmax(outputs, 2) - wanted
        norms = (errors.square().sum(dim=2) * lengths).sqrt()
        errors *= (clips / norms).clamp(max=1.0)[:, :, None]
        # The same draw for all, times the noise of each: settings differ by what they do, not by luck.
        drawn = torch.randn(classes, k + 1, generator=generator)
        total = (errors.flatten(1).T @ inputs).view(settings, classes, k) + scale * drawn[:, :k]
        velocity = MOMENTUM * velocity + total / n
        drift = MOMENTUM * drift + (errors.sum(dim=0) + scale[:, :, 0] * drawn[:, k]) / n
        weights -= rates[:, None, None] * velocity
        offset -= rates[:, None] * drift
    return weights, offset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--data", default="fashion_mnist", choices=("fashion_mnist", "mnist"))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, 1.0])
    parser.add_argument("--clips", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    parser.add_argument("--rates", type=float, nargs="+", default=[10.0, 20.0, 40.0])
    parser.add_argument("--full", action="store_true", help="without public directions")
    asked = parser.parse_args()
    workload = Workload(compose([f"data={asked.data}", f"data.root={asked.data_root}"]))
    train = seen_through("scattering", workload.dataset.train)
    inputs, targets = train.inputs.flatten(1), train.targets
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    public, held_out, own = torch.split(order, [PUBLIC, HELD_OUT, len(order) - PUBLIC - HELD_OUT])
    if not asked.full:
        inputs = inputs @ directions(inputs[public])
    of_clients, of_server = inputs[own], inputs[held_out]
    length = float(of_clients[:1000].norm(dim=1).mean())
    print(f"mean length of a row: {length:.1f}", flush=True)
    table = Table(title=f"{asked.data}: % correct on {HELD_OUT:,} held-out training examples")
    for heading in ("clip", "rate", *(f"epsilon {epsilon:g}" for epsilon in asked.epsilons)):
        table.add_column(heading, justify="right")
    settings = list(product(asked.rates, asked.epsilons))
    rates = torch.tensor([rate for rate, _ in settings]) / length**2
    by_epsilon = {epsilon: noise_multiplier(epsilon) for epsilon in asked.epsilons}
    noises = torch.tensor([by_epsilon[epsilon] for _, epsilon in settings])
    for clip in asked.clips:
        clips = torch.full_like(rates, clip * length)
        weights, offset = trained(of_clients, targets[own], clips, rates, noises)
        answers = (torch.einsum("nk,sck->snc", of_server, weights) + offset[:, None]).argmax(dim=2)
        right = 100 * (answers == targets[held_out]).float().mean(dim=1)
        for rate, row in zip(asked.rates, right.view(len(asked.rates), -1).tolist(), strict=True):
            cells = [f"{value:.1f}" for value in row]
            print(clip, rate, *cells, flush=True)
            table.add_row(f"{clip:g}", f"{rate:g}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
