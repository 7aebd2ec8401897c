"""FedCEO beside UDP-FedAvg, at the same noise: how much smoothing helps, and what it costs.

    python benchmarks/fedceo.py --data-root DIR [--seeds 3] [--sigmas 1 1.5 2] [--rows NAME ...]
        [--record runs.jsonl] [--overrides ...]
    python benchmarks/fedceo.py --speed

`experiment=paper_fedceo_fashion_mnist`: 100 clients of 600 images, 10 in a round, an mlp 784-64-10 without bias, 60
rounds of 5 local epochs. sigma is the noise multiplier of the sum; noise follows from the seed. Rows named "slots"
start clients from single smoothed models, the others from their mean: there epsilon against `model` is that of
UDP-FedAvg, and with slots it is larger (docs/strategies/fedceo.md). `--speed` times one smoothing of 10 models: ours,
its singular value decompositions alone, and a plain one of all slices.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Some files of this folder have the names of packages, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parent))

import torch
from rich.console import Console
from rich.table import Table
from run_store import Runs, mean_and_error

from fedsketch.sketching.tensor_svd import smooth

COMMON = [
    "experiment=paper_fedceo_fashion_mnist",
    *("privacy.randomness=seeded", "evaluate_every=60", "checkpoint_every=60", "device=cpu"),
    "runtime=cohort",
]
ROWS = {
    "UDP-FedAvg": ["strategy.every=null"],
    "FedCEO": [],
    "FedCEO, edge 1": ["strategy.edge=1"],
    "FedCEO, edge 0.5": ["strategy.edge=0.5"],
    "FedCEO, slots": ["strategy.start=slots"],
    "FedCEO, paper's": ["strategy.start=slots", "strategy.threshold=paper"],
}
SHAPES = {"mlp 784-64": (64, 784), "mlp 3072-256": (256, 3072), "square": (256, 256)}


def table(options: argparse.Namespace) -> None:
    runs = Runs(options.record)
    result = Table("", *(f"sigma {sigma:g}" for sigma in options.sigmas))
    for name in options.rows:
        cells = []
        for sigma in options.sigmas:
            chosen = [
                *COMMON,
                f"data.root={options.data_root}",
                f"privacy.noise_multiplier={sigma}",
                *ROWS[name],
                *options.overrides,
            ]
            values = runs.accuracies(chosen, options.seeds)
            first = runs.play([*chosen, "seed=0"])
            spent, share = first["epsilon"]["model"], first["update_seconds"] / first["seconds"]
            mean, error = mean_and_error(values)
            cells.append(f"{mean:.1f} ± {error:.1f} (epsilon {spent:.3g})")
            told = ", ".join(f"{value:.1f}" for value in values)
            print(
                f"{name}, sigma {sigma:g}: {told}; updates took {share:.1%} of the time", flush=True
            )
        result.add_row(name, *cells)
    Console(width=160).print(result)


def seconds(work: Callable[[], object], repeats: int = 7) -> float:
    """Return the shortest of several timings."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def plain(stack: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return all slices, each by its whole decomposition, as the formula is written."""
    left, values, right = torch.linalg.svd(torch.fft.fft(stack, dim=0), full_matrices=False)
    kept = (values - threshold).clamp(min=0).to(left.dtype)
    return torch.fft.ifft((left * kept[:, None, :]) @ right, dim=0).real


def alone(stack: torch.Tensor) -> Callable[[], object]:
    """Return the decompositions that smoothing cannot do without: those of the K // 2 + 1 slices."""
    slices = torch.fft.rfft(stack, dim=0)
    ends = [0, len(stack) // 2]
    real, paired = slices[ends].real.contiguous(), slices[1 : len(stack) // 2].contiguous()
    return lambda: (
        torch.linalg.svd(real, full_matrices=False),
        torch.linalg.svd(paired, full_matrices=False),
    )


def speed() -> None:
    result = Table("10 models", "smoothing", "its SVDs alone", "ratio", "plain", "share of plain")
    for name, shape in SHAPES.items():
        stack = torch.randn(10, *shape, generator=torch.Generator().manual_seed(0))
        threshold = 0.5 * (shape[0] ** 0.5 + shape[1] ** 0.5) * 10**0.5
        ours = seconds(lambda s=stack, t=threshold: smooth(s, t))  # type: ignore[misc]
        least = seconds(alone(stack))
        all_slices = seconds(lambda s=stack, t=threshold: plain(s, t))  # type: ignore[misc]
        cells = [f"{1e3 * value:.1f} ms" for value in (ours, least)]
        result.add_row(
            name,
            *cells,
            f"{ours / least:.2f}",
            f"{1e3 * all_slices:.1f} ms",
            f"{ours / all_slices:.0%}",
        )
    Console().print(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", help="where Fashion-MNIST lies")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sigmas", type=float, nargs="+", default=[1.0, 1.5, 2.0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["UDP-FedAvg", "FedCEO"])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--overrides", nargs="+", default=[], help="of all rows")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    if options.speed:
        speed()
    elif options.data_root is None:
        parser.error("name the folder of Fashion-MNIST: --data-root DIR")
    else:
        table(options)


if __name__ == "__main__":
    main()
