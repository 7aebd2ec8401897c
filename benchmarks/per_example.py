"""What a step with clipped per-example gradients costs, compared with Opacus, in one run.

    pip install 'fedsketch[bench]'    # or opacus==1.6.0, beside fedsketch
    python benchmarks/per_example.py [--threads 1 2] [--models cnn] [--batches 50]

A step is forward, backward, clip of every example's gradient and their sum, for images of 1 x 28 x 28; every way of
Opacus makes the same sum, which is checked. For the cnn (26,010 parameters) also the step in a subspace of 100
directions per tensor: project, clip, sum, back. Times are the best of several, taken in turns, so that other work on
the machine meets all alike: CPU time on one thread, which such work disturbs less, and time by the clock on several.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

# This file has the name of a module of the package, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsketch.conf.plugins import settings_class
from fedsketch.conf.settings import ModelSettings
from fedsketch.tasks.gradients.per_example import PerExample
from fedsketch.tasks.models import networks
from fedsketch.tasks.models.flat_model import FlatModel

try:
    from opacus.grad_sample import (
        GradSampleModule,
        GradSampleModuleExpandedWeights,
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
except ImportError as missing:
    raise SystemExit("This compares with Opacus: pip install opacus==1.6.0.") from missing

OPTIONS: dict[str, dict[str, int]] = {"logistic": {}, "mlp": {"width": 32}, "cnn": {"width": 16}}
CLIP = 0.5
DIRECTIONS = 100
SECONDS = 5.0  # for the turns of a line, about
Step = Callable[[], Tensor]


def module(name: str) -> nn.Module:
    chosen = cast(ModelSettings, settings_class("model", name)(name=name, **OPTIONS[name]))
    return networks.build(chosen, (1, 28, 28), 10, 0)


def weights(norms: Tensor) -> Tensor:
    return (CLIP / (norms + 1e-6)).clamp(max=1.0)  # as Opacus has it


# ---------------------------------------------------------------------- ours
def clipped(model: FlatModel, inputs: Tensor, targets: Tensor) -> Step:
    found = PerExample(model)
    return lambda: found.clipped_sum(inputs, targets, weights)


def projected(model: FlatModel, inputs: Tensor, targets: Tensor) -> Step:
    found, bases = PerExample(model), []
    for slot in model.layout:
        size = slot.stop - slot.start
        basis, _ = torch.linalg.qr(torch.randn(size, min(DIRECTIONS, size)))
        bases.append(basis.T.contiguous().T)  # one direction after the other, as an SVD makes them
    widths = [basis.shape[1] for basis in bases]

    def step() -> Tensor:
        rows = found.projected(inputs, targets, bases)
        total = weights(rows.square().sum(dim=1).sqrt()) @ rows
        pieces = total.split(widths)  # type: ignore[no-untyped-call]
        return torch.cat([basis @ piece for basis, piece in zip(bases, pieces, strict=True)])

    return step


# ---------------------------------------------------------------------- Opacus
def of_samples(wrapped: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """Return gradients of all samples, then clip and sum."""
    sgd = torch.optim.SGD(wrapped.parameters(), lr=0.0)
    settings = {"noise_multiplier": 0.0, "max_grad_norm": CLIP, "expected_batch_size": 1}
    optimizer = DPOptimizer(sgd, loss_reduction="sum", **settings)

    def step() -> Tensor:
        optimizer.zero_grad()
        functional.cross_entropy(wrapped(inputs), targets, reduction="sum").backward()  # type: ignore[no-untyped-call]
        optimizer.clip_and_accumulate()
        return torch.cat([p.summed_grad.flatten() for p in optimizer.params])

    return step


def of_norms(wrapped: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """Return norms in a first backward pass, the sum in a second."""
    sgd = torch.optim.SGD(wrapped.parameters(), lr=0.0)
    settings = {"noise_multiplier": 0.0, "max_grad_norm": CLIP, "expected_batch_size": 1}
    optimizer = DPOptimizerFastGradientClipping(sgd, loss_reduction="sum", **settings)
    criterion = nn.CrossEntropyLoss(reduction="sum")
    loss = DPLossFastGradientClipping(wrapped, optimizer, criterion, "sum")

    def step() -> Tensor:
        optimizer.zero_grad()
        loss(wrapped(inputs), targets).backward()
        optimizer.accumulate()
        return torch.cat([p.summed_grad.flatten() for p in optimizer.params])

    return step


def opacus(name: str, inputs: Tensor, targets: Tensor) -> dict[str, Step]:
    fast = partial(GradSampleModuleFastGradientClipping, loss_reduction="sum", max_grad_norm=CLIP)
    samples = partial(GradSampleModule, loss_reduction="sum")
    expanded = GradSampleModuleExpandedWeights(module(name), loss_reduction="sum")
    return {
        "hooks": of_samples(samples(module(name)), inputs, targets),
        "functorch": of_samples(samples(module(name), force_functorch=True), inputs, targets),
        "ew": of_samples(expanded, inputs, targets),
        "ghost": of_norms(fast(module(name)), inputs, targets),
        "fast": of_norms(fast(module(name), use_ghost_clipping=False), inputs, targets),
    }


# ---------------------------------------------------------------------- the table
def in_turns(steps: dict[str, Step]) -> dict[str, float]:
    """Return the best time of each step, in seconds."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(steps, math.inf)
    end = time.perf_counter() + SECONDS
    turns = 0
    while turns < 5 or time.perf_counter() < end:
        turns += 1
        for name, step in steps.items():
            start = clock()
            step()
            best[name] = min(best[name], clock() - start)
    return best


def line(name: str, batch: int) -> None:
    model = FlatModel(module(name))
    inputs, targets = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
    peers = opacus(name, inputs, targets)
    ours = clipped(model, inputs, targets)
    expected = ours()
    for peer, step in peers.items():
        assert torch.allclose(step(), expected, rtol=1e-3, atol=1e-4 * batch), peer
    steps = {"ours": ours, **peers}
    if name == "cnn":
        steps["projected"] = projected(model, inputs, targets)
    took = in_turns(steps)
    ratio = took["ours"] / min(took[peer] for peer in peers)
    shown = "".join(f"{1000 * took[one]:>10.2f}" for one in ("ours", *peers))
    print(f"  {name:<10}{batch:>6}{shown}{ratio:>10.2f}", end="")
    if name == "cnn":
        print(f"{1000 * took['projected']:>12.2f}{took['projected'] / took['ours']:>8.2f}", end="")
    print(flush=True)


def table(threads: int, names: Sequence[str], batches: Sequence[int]) -> None:
    torch.set_num_threads(threads)
    heads = ("ours", "hooks", "functorch", "ew", "ghost", "fast", "ratio")
    print(
        f"{threads} thread(s); milliseconds; ratio: ours over the best of Opacus (goal: at most 1)"
    )
    shown = "".join(f"{head:>10}" for head in heads)
    print(f"  {'model':<10}{'batch':>6}{shown}{'projected':>12}{'ratio':>8} (goal: at most 1.5)")
    for name in names:
        for batch in batches:
            line(name, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--models", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--batches", type=int, nargs="+", default=[50, 250, 1000])
    given = parser.parse_args()
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", "Full backward hook is firing")  # those of Opacus
    for threads in given.threads:
        table(threads, given.models, given.batches)


if __name__ == "__main__":
    main()
