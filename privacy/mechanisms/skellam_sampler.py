"""Exact Skellam noise of integer variance mu, from a cryptographic stream, with a table whose size does not depend on
mu.

The integers within `reach` of zero, outside of which the law has less than 2^-128 of its mass, are cut into at most
2^12 cells of 2^w integers each. A proposal takes one 64-bit word. The probabilities of proposals are whole numbers of
words out of 2^64:

- Every integer x of cell c owns b_c words at which x is drawn at once, and h_c - b_c words at which it is drawn with a
  condition, where b_c <= A P(x) <= h_c for all x of the cell. P falls with |x| (DLMF 10.37) and 0 begins a cell, so the
  ends of a cell give these bounds; `FloatPmf` evaluates them, and its error is added to the safe side.
- The condition is U < A P(x), where U is uniform between b_c and h_c. A proposal that fails it starts over, with a new
  word.

So an accepted proposal is x with probability proportional to b_c + (h_c - b_c) (A P(x) - b_c) / (h_c - b_c) = A P(x):
exactly the Skellam law on those integers, whichever bounds and whichever A were chosen. Loose bounds cost time alone.
What must be exact is:

- The words: 2^w times the sum of all h_c is 2^64, in integers, and an alias table over the cells' two parts gives each
  its count.
- The condition: it is decided by `FloatPmf` if the two sides differ by more than its error, else by `exact_pmf`, with
  more bits than are known of U. Where the known bits leave it open, U gets 64 more. The loop ends with probability one,
  never by a guess.

So one draw differs from Skellam's law by the tail that is cut off, and by nothing else: less than 2^-128 in total
variation.
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
_FINER_BITS = 96  # how many more bits of P(x) are computed than are known of U; A takes 64 of them
_BLOCK = 1 << 15  # numbers per step: what is worked on stays in cache


def sample_skellam(mu: int, size: int, stream: Stream) -> NDArray[np.int64]:
    """`size` independent draws of variance `mu` (a whole number up to 2^62; 0 gives zeros)."""
    if mu < 0 or mu != int(mu):
        raise ValueError(f"the variance of Skellam noise is a whole number here, not {mu}.")
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
    """The table for one variance. Its columns are the cells' sure parts and then, in the same order, their conditional
    parts.

    A word is, from its lowest bit: a column, the place in a cell (w bits), and a fraction. The word stays in its column
    if it is below the column's `threshold` (kept in the top bits, so that whole words compare), and goes to the column
    `other` if not.
    """

    mu: int
    reach: int
    cell_bits: int
    width_bits: int
    threshold: NDArray[np.uint64]
    other: NDArray[np.int64]
    sure: NDArray[np.uint64]  # b_c
    most: NDArray[np.uint64]  # h_c
    accepted: int  # A: the words that lead to a draw, of 2^64
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
        """U < A P(x) for each x."""
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
            probability = exact_pmf(self.mu, x, known + _FINER_BITS)  # wrong by less than 4
            if (low + spread) << _FINER_BITS <= self.accepted * (probability - 4):
                return True
            if low << _FINER_BITS >= self.accepted * (probability + 4):
                return False
            word = word << 64 | int(stream.uint64(1)[0])
            known += 64


@lru_cache(maxsize=4)
def _proposals(mu: int) -> _Proposals:
    """About 12 ms and 0.2 MiB, whatever the variance."""
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
    most[0] += budget - sum(most)  # what rounding left over: to a cell that holds almost nothing
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
    """Share out counts that sum to len(counts) columns: column i holds kept[i] of its own, and the rest of it belongs
    to other[i]."""
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
