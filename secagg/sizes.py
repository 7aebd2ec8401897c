"""How many clients are in a sum: how many are asked, may drop out, may collude, and are needed.

This is the one place where shares of clients become numbers of clients. They are rounded down.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The numbers of a round with `n` clients in `groups`, whose sizes differ by at most one, with a sum for each.

    `drops` clients of each group may drop out. `colluders` clients may work with the server; they count in every group,
    because they may all be in one. So a released sum is over at least `least` and at most `most` clients, `colluders`
    of whom may work with the server.
    """

    n: int
    drops: int
    colluders: int
    groups: int = 1

    @classmethod
    def of(cls, n: int, drops: int | float, colluders: int | float, groups: int = 1) -> Sizes:
        """Return the numbers of a round with `n` clients. A float is a share (of the smallest group for `drops`, of all
        `n` clients for `colluders`), rounded down; an int is the number itself."""
        return cls(n, _count(drops, n // groups), _count(colluders, n), groups)

    @property
    def fewest(self) -> int:
        """The clients of the smallest group."""
        return self.n // self.groups

    @property
    def most(self) -> int:
        """The clients of the largest group."""
        return -(-self.n // self.groups)

    @property
    def least(self) -> int:
        """The clients that stay in the smallest group if all tolerated drops happen."""
        return self.fewest - self.drops

    @property
    def needed(self) -> int:
        """The smallest threshold and quorum of the largest group. With fewer clients to the end a round stops."""
        return majority(self.most, self.colluders)


def majority(members: int, colluders: int) -> int:
    """Return the smallest threshold or quorum among so many clients, of whom `colluders` answer twice."""
    return (members + colluders) // 2 + 1


def _count(value: int | float, n: int) -> int:
    return int(value * n) if isinstance(value, float) else value
