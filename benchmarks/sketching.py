"""What sketches cost, beside the work that bounds them, in one run.

    python benchmarks/sketching.py [--quick]

The Gaussian sketch is compared with generating as many Gaussians with the same generator and threads, the update of the
learned sketch with torch's QR of the same matrix and with the bare product d x (k + 1) x k, the Walsh-Hadamard
transform with a Python loop over its butterflies and with 20 passes over memory, one for each of its levels. Times are
the best of several, taken in turns, so that other work on the machine meets all alike (the long Gaussian ones in
tenths); threads are torch's (OMP_NUM_THREADS). --quick makes the Gaussian sketch a tenth as long.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

# This file has the name of the package that it measures, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from fedsketch.sketching.cholesky_qr import orthonormalise
from fedsketch.sketching.count_sketch import CountSketch
from fedsketch.sketching.gaussian import GaussianSketch
from fedsketch.sketching.hadamard import HadamardSketch, walsh_hadamard
from fedsketch.sketching.seeded_sketch import PublicStream, Purpose
from fedsketch.sketching.streaming_pca import StreamingPCA

D = 1_000_000
K = 64
TILE = 1 << 18
TURNS = 10
LEVELS = 20  # of the Walsh-Hadamard transform


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the best of so many."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def peak_memory() -> int:
    """Return the largest this process has been, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def row(what: str, took: float, note: str = "") -> None:
    print(f"  {what:<48}{took:>10.3f} s   {note}")


def generate(count: int) -> None:
    """Draw this many Gaussians and discard them, on torch's number of threads."""

    def tile(index: int) -> None:
        PublicStream(1, Purpose.GAUSSIAN, index).gaussian(min(TILE, count - index * TILE))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for _ in pool.map(tile, range(-(-count // TILE))):
            pass


def gaussian(b: int) -> None:
    x = torch.randn(D)
    part = GaussianSketch(b // TURNS, D, 1)
    generate(TILE)
    before = peak_memory()
    there = bare = back = float("inf")
    for _ in range(TURNS):
        there = min(there, TURNS * seconds(partial(part.forward, x), 1))
        bare = min(bare, TURNS * seconds(partial(generate, b // TURNS * D), 1))
        back = min(back, TURNS * seconds(partial(part.adjoint, torch.ones(b // TURNS)), 1))
    whole = seconds(partial(GaussianSketch(b, D, 1).forward, x), 1)
    memory = (peak_memory() - before) / 1e6
    print(f"Gaussian sketch, d = {D:,}, b = {b:,}")
    row("generating as many Gaussians", bare, f"{1e9 * bare / b / D:.2f} ns each")
    row("forward", there, f"{there / bare:.2f} times (goal: at most 2)")
    row("adjoint", back, f"{back / bare:.2f} times")
    row("forward, all at once and once only", whole, f"{whole / bare:.2f} times the best above")
    print(f"  memory above the vector {memory:.0f} MB (goal: at most 200)")


def generators(repeats: int) -> None:
    """One tile from each, on one thread; only ours is the same on every machine."""
    out = np.empty(TILE, dtype=np.float32)
    tensor = torch.empty(TILE)
    peers: dict[str, Callable[[], object]] = {
        "ours (SFC64, table)": lambda: PublicStream(1, Purpose.GAUSSIAN).gaussian(TILE),
        "torch.randn (Mersenne twister)": tensor.normal_,
    }
    for kind in (np.random.SFC64, np.random.Philox):
        normal = np.random.Generator(kind(1)).standard_normal
        peers[f"numpy, {kind.__name__}"] = partial(normal, dtype=np.float32, out=out)
    print(f"Gaussian generators, {TILE:,} numbers")
    times = {name: seconds(work, repeats) for name, work in peers.items()}
    ours = next(iter(times.values()))
    for name, took in times.items():
        row(name, took, f"{1e9 * took / TILE:.2f} ns each, {took / ours:.2f} times ours")


def structured(repeats: int) -> None:
    x = torch.randn(D)
    print(f"Structured sketches, d = {D:,}, k = 10,000")
    kinds: tuple[type[HadamardSketch | CountSketch], ...] = (HadamardSketch, CountSketch)
    for kind in kinds:
        sketch = kind(10_000, D, 1)
        y = sketch.forward(x)
        made = seconds(partial(kind, 10_000, D, 1), repeats)
        there = seconds(partial(sketch.forward, x), repeats)
        back = seconds(partial(sketch.adjoint, y), repeats)
        row(f"{kind.__name__} forward", there, f"made in {made:.3f} s, adjoint {back:.3f} s")


def butterflies(values: list[float]) -> list[float]:
    """Return the Walsh-Hadamard transform of a list, number by number."""
    half = 1
    while half < len(values):
        for start in range(0, len(values), 2 * half):
            for i in range(start, start + half):
                a, b = values[i], values[i + half]
                values[i], values[i + half] = a + b, a - b
        half *= 2
    return values


def transform(repeats: int) -> None:
    size = 1 << LEVELS
    x, there = torch.randn(1, size), torch.empty(16 * size)
    memory = torch.randn(16 * size)  # more than any cache holds
    passes = ours = float("inf")
    for _ in range(repeats):
        passes = min(passes, LEVELS / 16 * seconds(partial(there.copy_, memory), 1))
        ours = min(ours, seconds(partial(walsh_hadamard, x), 1))
    loop = seconds(partial(butterflies, x[0].tolist()), 1)
    print(f"Walsh-Hadamard transform of {size:,} numbers of float32")
    row(f"{LEVELS} passes over memory, reading and writing", passes)
    row("Python loop over butterflies", loop)
    row("walsh_hadamard", ours, f"{ours / passes:.2f} times the passes (goal: at most 4)")
    row("", ours, f"{loop / ours:.0f} times faster than the loop (goal: at least 20)")


def learned(repeats: int) -> None:
    pca = StreamingPCA(D, K, 0.98)
    pca.update(torch.randn(K, D))
    vectors = torch.randn(4, D)
    matrix, factor = torch.randn(D, K + 1), torch.randn(K + 1, K)
    square = matrix[:, :K].contiguous()
    # In turns, so that other work on the machine meets all three.
    product = update = factorised = float("inf")
    for i in range(repeats):
        product = min(product, seconds(partial(torch.mm, matrix, factor), 2))
        update = min(update, seconds(partial(pca.update, vectors[i % 4]), 3))
        factorised = min(factorised, seconds(partial(torch.linalg.qr, square), 1))
    repaired = seconds(partial(orthonormalise, pca.basis.T), 3)
    print(f"Update of the learned sketch, d = {D:,}, k = {K}")
    row(f"bare product {D:,} x {K + 1} x {K}", product)
    row("torch.linalg.qr", factorised, f"{factorised / product:.2f} times the product")
    row("update", update, f"{update / product:.2f} times the product (goal: at most 3)")
    row("", update, f"{factorised / update:.2f} times faster than the QR (goal: at least 4)")
    row("re-orthonormalisation, every 128th update", repaired)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a Gaussian sketch of b = 1,000")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    print(f"{torch.get_num_threads()} thread(s)")
    gaussian(1_000 if quick else 10_000)
    generators(20)
    structured(10)
    transform(20)
    learned(5)


if __name__ == "__main__":
    main()
