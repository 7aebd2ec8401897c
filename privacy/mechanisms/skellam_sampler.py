"""Draws exact Skellam noise of integer variance mu from a cryptographic stream, by rejection sampling with a table.
The size of the table does not depend on mu.

The integers within `reach` of zero are divided into at most 2^12 cells of 2^w integers each. The distribution has less
than 2^-128 of its mass outside of them. A proposal uses one random 64-bit word, so probabilities of proposals are
counts of words out of 2^64:

- Every integer x of cell c has b_c words at which x is accepted immediately, and h_c - b_c words at which x is
  accepted under a condition. Here b_c <= A P(x) <= h_c for all x of the cell. P falls with |x| (DLMF 10.37) and a cell
  starts at 0, so P at the two ends of a cell gives these bounds. `FloatPmf` evaluates them, and its error is added on
  the safe side.
- The condition is U < A P(x), where U is uniform between b_c and h_c. If it fails, the draw starts over with a new
  word.

So an accepted proposal is x with probability proportional to b_c + (h_c - b_c) (A P(x) - b_c) / (h_c - b_c) = A P(x).
This is exactly the Skellam distribution on these integers, for any valid bounds and any A. Loose bounds only cost
time. Two things must be exact:

- The counts of words. 2^w times the sum of all h_c is exactly 2^64, and an alias table over the two parts of every
  cell gives each part its count.
- The condition. `FloatPmf` decides it if the two sides differ by more than its error. Otherwise `exact_pmf` decides,
  with more bits than are known of U. If the known bits of U do not decide, 64 more bits are drawn. The loop ends with
  probability one, and never by a guess.

So a draw differs from the Skellam distribution only by the missing tail: less than 2^-128 in total variation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.privacy.mechanisms.skellam_law import FloatPmf, exact_pmf, largest_value

LARGEST_VARIANCE = 1 << 62
_TAIL_BITS = 128
_CELL_BITS = 12
_FINER_BITS = 96  # bits of P(x) beyond the known bits of U; multiplying by A uses 64 of them
_BLOCK = 1 << 15  # numbers per step, few enough to stay in the cache


def sample_skellam(mu: int, size: int, stream: Stream) -> NDArray[np.int64]:
    """Return `size` independent draws of variance `mu`, a whole number up to 2^62. Variance 0 gives zeros."""
    if mu < 0 or mu != int(mu):
        raise ValueError(f"the variance of Skellam noise must be a whole number, not {mu}.")
    if mu > LARGEST_VARIANCE:
        raise ValueError(
            f"the variance of Skellam noise is at most 2^62, not {mu}: lower the scale."
        )
    out = np.zeros(size, dtype=np.int64)
    if mu == 0:
        return out
    proposals = _proposals(int(mu))
    for start in range(0, size, _BLOCK):
        out[start : start + _BLOCK] = proposals.draw(min(_BLOCK, size - start), stream)
    return out


@dataclass(frozen=True)
class _Proposals:
    """The alias table for one variance. Its columns are the unconditional parts of all cells, followed by their
    conditional parts in the same order.

    A word contains, from its lowest bit: a column, the position in a cell (w bits), and a fraction. If the word is
    below the column's `threshold`, it stays in its column; otherwise it goes to the column `other`. The threshold is
    stored in the top bits, so that whole words can be compared.
    """

    mu: int
    reach: int
    cell_bits: int
    width_bits: int
    threshold: NDArray[np.uint64]
    other: NDArray[np.int64]
    sure: NDArray[np.uint64]  # b_c
    most: NDArray[np.uint64]  # h_c
    accepted: int  # A: how many of the 2^64 words lead to a draw
    pmf: FloatPmf

    def draw(self, n: int, stream: Stream) -> NDArray[np.int64]:
        words = stream.uint64(n)
        column_bits = self.cell_bits + 1
        column = (words & np.uint64((1 << column_bits) - 1)).view(np.int64)
        chosen = np.where(words < self.threshold[column], column, self.other[column])
        words >>= np.uint64(column_bits)
        words &= np.uint64((1 << self.width_bits) - 1)
        values = words.view(np.int64)
        values += chosen << self.width_bits
        values -= self.reach
        conditional = np.flatnonzero(chosen >= 1 << self.cell_bits)
        if conditional.size:
            values[conditional] -= 2 * self.reach
            cells = chosen[conditional] - (1 << self.cell_bits)
            fails = conditional[~self._holds(values[conditional], cells, stream)]
            values[fails] = self.draw(fails.size, stream)
        return values

    def _holds(
        self, x: NDArray[np.int64], cell: NDArray[np.int64], stream: Stream
    ) -> NDArray[np.bool_]:
        """Return whether U < A P(x), for each x."""
        words = stream.uint64(x.size)
        sure, spread = self.sure[cell], self.most[cell] - self.sure[cell]
        u = (sure + spread * (words * 2.0**-64)) / self.accepted
        above = self.pmf(x) - u
        holds = above > 0.0
        for i in np.flatnonzero(np.abs(above) <= self.pmf.error):
            holds[i] = self._holds_exactly(int(x[i]), int(cell[i]), int(words[i]), stream)
        return holds

    def _holds_exactly(self, x: int, cell: int, word: int, stream: Stream) -> bool:
        sure, spread = int(self.sure[cell]), int(self.most[cell] - self.sure[cell])
        known = 64
        while True:
            # In units of 2^-known words, U is at least `low` and below `low + spread`.
            low = (sure << known) + spread * word
            probability = exact_pmf(self.mu, x, known + _FINER_BITS)  # its error is less than 4
            if (low + spread) << _FINER_BITS <= self.accepted * (probability - 4):
                return True
            if low << _FINER_BITS >= self.accepted * (probability + 4):
                return False
            word = word << 64 | int(stream.uint64(1)[0])
            known += 64


@lru_cache(maxsize=4)
def _proposals(mu: int) -> _Proposals:
    """Make the table. It takes about 12 ms and 0.2 MiB for any variance."""
    reach_bits = largest_value(mu, _TAIL_BITS).bit_length()
    reach = 1 << reach_bits
    cell_bits = min(_CELL_BITS, reach_bits + 1)
    width_bits = reach_bits + 1 - cell_bits
    cells = 1 << cell_bits
    pmf = FloatPmf(mu, reach)

    first = (np.arange(cells) << width_bits) - reach
    last = first + ((1 << width_bits) - 1)
    ends = np.sort([pmf(np.abs(first)), pmf(np.abs(last))], axis=0)
    least, largest = ends[0] - pmf.error, ends[1] + pmf.error
    budget = 1 << (64 - width_bits)  # the sum of all h_c
    accepted = int((budget - cells) / float(largest.sum()) * (1.0 - 2.0**-40))
    sure = [max(0, int(p)) for p in least * accepted]
    most = [int(p) + 1 for p in largest * accepted]
    most[0] += budget - sum(most)  # the rest goes to a cell with almost no probability
    column = budget >> (cell_bits + 1)
    kept, other = _alias(sure + [high - low for low, high in zip(sure, most, strict=True)], column)
    shift = cell_bits + 1 + width_bits
    # A full column needs no threshold: it is its own alias.
    threshold = np.array([(words % column) << shift for words in kept], dtype=np.uint64)
    return _Proposals(
        mu=mu,
        reach=reach,
        cell_bits=cell_bits,
        width_bits=width_bits,
        threshold=threshold,
        other=np.array(other),
        sure=np.array(sure, dtype=np.uint64),
        most=np.array(most, dtype=np.uint64),
        accepted=accepted,
        pmf=pmf,
    )


def _alias(counts: list[int], column: int) -> tuple[list[int], list[int]]:
    """Distribute counts that sum to len(counts) * column over columns of equal size (the alias method): column i keeps
    kept[i] of its own, and the rest of it belongs to other[i]."""
    kept, other = list(counts), list(range(len(counts)))
    short = [i for i, count in enumerate(kept) if count < column]
    long = [i for i, count in enumerate(kept) if count > column]
    while short:
        i, giver = short.pop(), long[-1]
        other[i] = giver
        kept[giver] -= column - kept[i]
        if kept[giver] <= column:
            long.pop()
            if kept[giver] < column:
                short.append(giver)
    return kept, other
