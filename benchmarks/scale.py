"""How the server's work grows with the size of the model and of the sketch, on synthetic updates.

    python benchmarks/scale.py [--quick] [--device auto] [--memory GB]

- The learned sketch with d x k numbers (streaming PCA): an update by one vector beside the bare product d x (k + 1) x
  k, what it needs of memory besides the d x k numbers, and desketching.
- Decoding: a sum of ring integers as real numbers.
- Sketches for d x k numbers that no memory holds: their matrix is made from a seed while it is used and never formed,
  or, layer-wise, it is one small matrix for each layer.

Every size is measured in a process of its own, so that its memory is its own: the largest beyond what the process
held before the call. Growth is the slope in a plot of logarithms: 1 is proportional, 2 quadratic. Sizes that need
more than `--memory` (half of what is free, unless given) are not run; the table says what they would need. The
directions that the PCA begins with are random, nearly orthogonal. --quick takes smaller sizes, and leaves out those
of more than 10^12 multiplications.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Other files of this folder have the names of packages: look for those above it first.
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.sketching.count_sketch import CountSketch
from fedsketch.sketching.folding import folds_of_rank
from fedsketch.sketching.gaussian import GaussianSketch
from fedsketch.sketching.hadamard import HadamardSketch
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch
from fedsketch.sketching.sketch import Sketch
from fedsketch.sketching.streaming_pca import StreamingPCA
from fedsketch.sketching.subspace import SubspaceSketch, blocks_of

SIZES = (10**5, 10**6, 10**7)
RANKS = (64, 256, 4_096)
QUICK = (10**5, 3 * 10**5, 10**6), (16, 64, 256)
SHORT = 10**12  # multiplications
BLOCK = 1 << 24  # numbers: the bare product is measured on so many, and its time scaled up
CLIENTS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--memory", type=float, help="GB that a size may need")
    parser.add_argument("--one", help="measure one case, and print JSON")
    asked = parser.parse_args()
    device = asked.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if asked.one:
        name, *numbers = asked.one.split(",")
        print(json.dumps(CASES[name](device, *map(int, numbers))))
        return
    room = asked.memory or _free_memory() / 2e9
    print(f"device {device}, {torch.get_num_threads()} thread(s), sizes up to {room:.1f} GB")
    sizes, ranks = QUICK if asked.quick else (SIZES, RANKS)
    _learned_table(device, sizes, ranks, room, asked.quick)
    _decode_table(device, [*ranks, *sizes])
    seeded = (sizes[-1], 1_000) if asked.quick else (SIZES[-1], RANKS[-1])
    _seeded_table(device, *seeded)


# ---------------------------------------------------------------------- what is measured, each in a process of its own
def learned(device: str, d: int, k: int) -> dict[str, float]:
    torch.manual_seed(0)
    pca = StreamingPCA(d, k, 0.98, device=device)
    directions = torch.randn(k, d, device=device).div_(math.sqrt(d))
    values = torch.linspace(2.0, 1.0, k, dtype=torch.float64)
    pca.load_state_dict({"directions": directions[:0], "eigenvalues": values[:0], "updates": 0})
    # Not by its state, which would be copied: the largest sizes fill most of the memory.
    pca._directions, pca._eigenvalues = directions, values.to(pca._eigenvalues)
    del directions
    vector = torch.randn(d, device=device)
    width = max(1, min(d, BLOCK // k))
    block = torch.randn(k + 1, width, device=device)
    factor, product = torch.randn(k, k + 1, device=device), torch.empty(k, width, device=device)
    peak = _peak_beyond(device, partial(pca.update, vector))
    update = bare = math.inf
    for _ in range(5 if d * k * k < SHORT else 1):  # in turns, so that other work meets both
        bare = min(
            bare, _seconds(device, partial(torch.mm, factor, block, out=product)) * d / width
        )
        update = min(update, _seconds(device, partial(pca.update, vector)))
    sketch = SubspaceSketch(blocks_of([(0, d)], k), [pca.basis.T])
    back = min(_seconds(device, partial(sketch.adjoint, vector[:k])) for _ in range(3))
    return {"update": update, "bare": bare, "memory": peak, "desketch": back}


def decode(device: str, dim: int) -> dict[str, float]:
    ring = choose_ring(dim=dim, clients=CLIENTS, clip=1.0, noise=lambda l2, l1: l2**2)
    total = np.random.default_rng(0).integers(0, 2**ring.bits, dim, dtype=np.uint64)
    peak = _peak_beyond("cpu", partial(ring.total, [total], 1))
    times = [_seconds("cpu", partial(ring.total, [total], 1)) for _ in range(5)]
    return {"seconds": min(times), "memory": peak}


def seeded(device: str, kind: int, d: int, k: int) -> dict[str, float]:
    sketch, vector = _sketch(kind, d, k, device), torch.randn(d, device=device)
    there: list[torch.Tensor] = []
    times: list[float] = []  # of one pass: at the largest size it takes minutes

    def work() -> None:
        times.append(_seconds(device, lambda: there.append(sketch.forward(vector))))

    peak = _peak_beyond(device, work)
    (forward,) = times
    back = _seconds(device, partial(sketch.adjoint, there[0]))
    numbers = float(sketch.shape[0])
    return {"numbers": numbers, "forward": forward, "adjoint": back, "memory": peak}


CASES: dict[str, Callable[..., dict[str, float]]] = {
    "learned": learned,
    "decode": decode,
    "seeded": seeded,
}
KINDS = ("Gaussian, from a seed", "Hadamard, from a seed", "count sketch", "layer-wise, 10 layers")


def _sketch(kind: int, d: int, k: int, device: str) -> Sketch:
    if kind < 3:
        return (GaussianSketch, HadamardSketch, CountSketch)[kind](k, d, 1)
    rows, size = k // 10, d // 10
    columns = size // rows
    layout = [((rows, columns), i * rows * columns, (i + 1) * rows * columns) for i in range(10)]
    rest = d - 10 * rows * columns
    if rest:
        layout.append(((rest, 1), d - rest, d))
    folds = folds_of_rank(layout, 1)
    return LayerwiseSketch(folds, [None] * len(folds), 1)


def _seconds(device: str, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _peak_beyond(device: str, work: Callable[[], object]) -> float:
    """Return bytes that a call needs at its worst, beyond what is held before it."""
    if device != "cpu":
        allocated = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated() - allocated
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the largest so far is forgotten
        before = _status("VmRSS")
        work()
        return _status("VmHWM") - before
    except OSError:  # not Linux: the largest of the process, which may have been before the call
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        return 1024.0 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - largest)


def _status(field: str) -> float:
    line = next(
        x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field)
    )
    return 1024.0 * int(line.split()[1])


def _free_memory() -> float:
    """Return bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    free = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    return 1024.0 * free[0] if free else 8e9


# ---------------------------------------------------------------------- tables
def _apart(device: str, *case: object) -> dict[str, Any]:
    command = [sys.executable, __file__, "--device", device, "--one", ",".join(map(str, case))]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _learned_table(
    device: str, sizes: tuple[int, ...], ranks: tuple[int, ...], room: float, quick: bool
) -> None:
    table = _table(
        "Learned sketch, one update and one desketch",
        *("d", "k", "d x k, GB", "update, s", "bare product, s", "ratio (at most 3)"),
        *("memory beyond, of d x k", "desketch, s"),
    )
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for d in sizes:
        for k in ranks:
            state = 4e-9 * d * k
            start = (f"{d:,}", f"{k:,}", f"{state:.2f}")
            if 1.2 * state > room:
                table.add_row(*start, f"does not fit: {1.2 * state:.0f} GB")
            elif quick and d * k * k > SHORT:
                table.add_row(*start, "left out by --quick")
            else:
                case = found[d, k] = _apart(device, "learned", d, k)
                ratio, share = case["update"] / case["bare"], 1e-9 * case["memory"] / state
                measured = (f"{case['update']:.3f}", f"{case['bare']:.3f}", f"{ratio:.2f}")
                table.add_row(*start, *measured, f"{share:.2f}", f"{case['desketch']:.4f}")
    Console(width=140).print(table)
    for name in ("update", "desketch"):
        for k in ranks:
            _tell_growth(
                f"{name}, k = {k:,}", "d", {d: c[name] for (d, at), c in found.items() if at == k}
            )
        for d in sizes:
            _tell_growth(
                f"{name}, d = {d:,}", "k", {k: c[name] for (at, k), c in found.items() if at == d}
            )


def _decode_table(device: str, lengths: list[int]) -> None:
    table = _table("Decoding a ring sum", "numbers", "seconds", "memory beyond, bytes a number")
    times = {}
    for length in lengths:
        case = _apart(device, "decode", length)
        times[length] = case["seconds"]
        table.add_row(f"{length:,}", f"{case['seconds']:.6f}", f"{case['memory'] / length:.1f}")
    Console(width=140).print(table)
    _tell_growth("decode", "numbers", {n: t for n, t in times.items() if n >= 10**5})


def _seeded_table(device: str, d: int, k: int) -> None:
    table = _table(
        f"d = {d:,}, k = {k:,}: the matrix would have {4e-9 * d * k:.0f} GB, and is never formed",
        *("sketch", "numbers sent", "forward, s", "adjoint, s", "memory beyond, MB"),
    )
    for kind, name in enumerate(KINDS):
        case = _apart(device, "seeded", kind, d, k)
        times = (f"{case['forward']:.3f}", f"{case['adjoint']:.3f}")
        table.add_row(name, f"{case['numbers']:,.0f}", *times, f"{1e-6 * case['memory']:.0f}")
    Console(width=140).print(table)


def _tell_growth(what: str, by: str, points: dict[int, float]) -> None:
    if len(points) > 1:
        x, y = np.log(list(points)), np.log(list(points.values()))
        print(f"  {what}: time grows as {by} to the power {np.polyfit(x, y, 1)[0]:.2f}")


if __name__ == "__main__":
    main()
