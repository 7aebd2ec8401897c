"""The Gaussian sketch of Fed-SGM (sketched Gaussian mechanism): R (b x d) with independent N(0, 1/b) entries, computed
from a seed and never stored as a whole.

The paper's "1/sqrt(b)" is the standard deviation of an entry. R is divided into tiles of at most 2^18 numbers, each
with its own random stream. So client and server compute bit-equal entries in any order, with any number of threads and
on any device. The tiles are made on the CPU by `threads` workers, while the calling thread multiplies. Sums over tiles
are in float64 and in a fixed order. Products within a tile are computed by the linear algebra library, and their last
bits may differ between machines.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import torch
from torch import Tensor

from fedsketch.sketching.seeded_sketch import PublicStream, Purpose
from fedsketch.sketching.sketch import SEED_BYTES, DigestPart, Sketch, checked_seed

_TILE = 1 << 18  # numbers of a tile: 1 MB, so that it is still in the cache when it is multiplied
_TILE_COLUMNS = 1 << 14

_Tile = tuple[int, int]  # row and column in the grid of tiles


class GaussianSketch(Sketch):
    """forward is R x, and adjoint is R^T y. E[R^T R] = I, so adjoint(forward(x)) is an unbiased estimate of x.

    Most of the time is spent on making b d Gaussians, however many rows are sketched together.
    """

    def __init__(self, b: int, d: int, seed: int, *, threads: int | None = None) -> None:
        super().__init__(b, d)
        self._seed = checked_seed(seed)
        self._threads = torch.get_num_threads() if threads is None else threads
        self._columns = min(d, _TILE_COLUMNS)
        self._rows = max(1, min(b, _TILE // self._columns))

    @property
    def description_bytes(self) -> int:
        return SEED_BYTES

    def row_norms_squared(self) -> Tensor:
        """Return the exact norms of this R, which take as long as a sketch. Their expectation is 1."""
        b, d = self.shape
        total = torch.zeros(d, dtype=torch.float64)
        for (_, column), tile in self._tiles(by_rows=False):
            total[self._span(column, self._columns, d)] += tile.double().square().sum(dim=0)
        return total / b

    def block(self, rows: slice) -> Tensor:
        """Return these rows of R in float32, for inspection."""
        b, d = self.shape
        start, stop, _ = rows.indices(b)
        strip = torch.empty(max(0, stop - start), d)
        for i in range(start // self._rows, -(-stop // self._rows) if stop > start else 0):
            span = self._span(i, self._rows, b)
            low, high = max(start, span.start), min(stop, span.stop)
            for j in range(-(-d // self._columns)):
                part = self._tile((i, j))[low - span.start : high - span.start]
                strip[low - start : high - start, self._span(j, self._columns, d)] = part
        return strip / math.sqrt(b)

    def forward_rows(self, rows: Tensor) -> Tensor:
        b, d = self.shape
        total = torch.zeros(len(rows), b, dtype=torch.float64, device=rows.device)
        for (i, j), tile in self._tiles(by_rows=True):
            part = rows[:, self._span(j, self._columns, d)]
            total[:, self._span(i, self._rows, b)] += part @ tile.to(rows).T
        return (total / math.sqrt(b)).to(rows.dtype)

    def adjoint_rows(self, rows: Tensor) -> Tensor:
        b, d = self.shape
        result = torch.zeros(len(rows), d, dtype=rows.dtype, device=rows.device)
        if b == 0:
            return result
        scaled = rows / math.sqrt(b)
        last = -(-b // self._rows) - 1
        # One strip of columns at a time, so that only the strip needs float64.
        total = torch.zeros(len(rows), self._columns, dtype=torch.float64, device=rows.device)
        for (i, j), tile in self._tiles(by_rows=False):
            if i == 0:
                total.zero_()
            strip = total[:, : tile.shape[1]]
            strip += scaled[:, self._span(i, self._rows, b)] @ tile.to(rows)
            if i == last:
                result[:, self._span(j, self._columns, d)] = strip
        return result

    def digest_parts(self) -> Iterable[DigestPart]:
        return (self._seed,)

    def _tile(self, place: _Tile) -> Tensor:
        """Return one tile of sqrt(b) R."""
        b, d = self.shape
        row, column = self._span(place[0], self._rows, b), self._span(place[1], self._columns, d)
        height, width = row.stop - row.start, column.stop - column.start
        numbers = PublicStream(self._seed, Purpose.GAUSSIAN, *place).gaussian(height * width)
        return torch.from_numpy(numbers).view(height, width)

    def _tiles(self, *, by_rows: bool) -> Iterator[tuple[_Tile, Tensor]]:
        """Yield all tiles with their places, row strip by row strip or column strip by column strip."""
        b, d = self.shape
        height, width = -(-b // self._rows), -(-d // self._columns)
        outer, inner = (height, width) if by_rows else (width, height)
        order = ((a, c) for a in range(outer) for c in range(inner))
        places = order if by_rows else ((i, j) for j, i in order)
        if self._threads <= 1 or height * width == 1:
            yield from ((place, self._tile(place)) for place in places)
            return
        with ThreadPoolExecutor(self._threads, "gaussian-sketch") as pool:
            waiting: deque[tuple[_Tile, Future[Tensor]]] = deque()
            # Two tiles per worker: no worker is idle while this thread multiplies, and memory stays small.
            for place in islice(places, 2 * self._threads):
                waiting.append((place, pool.submit(self._tile, place)))
            while waiting:
                place, future = waiting.popleft()
                tile = future.result()
                for following in islice(places, 1):
                    waiting.append((following, pool.submit(self._tile, following)))
                yield place, tile

    @staticmethod
    def _span(index: int, size: int, limit: int) -> slice:
        return slice(index * size, min((index + 1) * size, limit))
