"""The break of a design that came before: pairwise masks on a sparse graph, and shares of their seeds that
holders reveal by the list that each is shown, without agreement on it.

Against an honest server it works. A lying one shows one device another list than the rest, and has
its vector in the clear. The same lies give nothing but one sum where holders answer with sums of shares.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count

import numpy as np
from numpy.typing import NDArray

from tests.secagg.two_trips.lying_server import Sharing, judge, learnt

N, COLLUDERS, DROPS, LOSSES, DEGREE, DIM = 100, 10, 5, 5, 16, 8
THRESHOLD = N - DROPS - LOSSES
PRIME = 2**127 - 1
EVERYBODY = frozenset(range(N))
Vector = NDArray[np.uint32]


def _hash(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def mask(seed: int, view: frozenset[int]) -> Vector:
    """The mask that a seed gives among those who are said to take part."""
    data = hashlib.shake_128(_hash(seed, sorted(view))).digest(4 * DIM)
    return np.frombuffer(data, np.uint32)


def value(coefficients: list[int], point: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * point + coefficient) % PRIME
    return total


def rebuilt(shares: dict[int, int]) -> int:
    """The secret of these shares, by Lagrange's formula."""
    total = 0
    for here, share in shares.items():
        above = below = 1
        for there in shares:
            if there != here:
                above, below = above * (there + 1) % PRIME, below * (there - here) % PRIME
        total += share * above * pow(below, -1, PRIME)
    return total % PRIME


@dataclass
class Older:
    """A round of the older design. Each device has two seeds that are shared among all: of its own mask, and
    of a key by which the seeds it has in common with neighbours are locked up."""

    nonce: int
    vectors: NDArray[np.uint32]
    pair_keys: dict[frozenset[int], bytes] = field(default_factory=dict)

    @cached_property
    def order(self) -> list[int]:
        return sorted(range(N), key=lambda i: _hash(self.nonce, i))

    def neighbours(self, i: int) -> frozenset[int]:
        """Half of them on either side, in a ring whose order follows from the server's nonce."""
        at, half = self.order.index(i), DEGREE // 2
        return frozenset(self.order[(at + d) % N] for d in range(-half, half + 1) if d)

    @cached_property
    def shared(self) -> dict[tuple[str, int], list[int]]:
        """The polynomials of the seeds."""
        kinds = [(kind, i) for kind in ("own", "lock") for i in range(N)]
        return {kind: [secrets.randbelow(PRIME) for _ in range(THRESHOLD)] for kind in kinds}

    def pair_seed(self, i: int, j: int) -> int:
        """What two neighbours have in common, by a key that no one else has."""
        key = self.pair_keys.setdefault(frozenset((i, j)), secrets.token_bytes(32))
        return int.from_bytes(_hash(key, self.nonce)[:15], "big")

    def pad(self, lock: int, owner: int, neighbour: int) -> int:
        return int.from_bytes(_hash(lock, owner, neighbour)[:15], "big")

    def locked(self, owner: int, neighbour: int) -> int:
        """What everybody sees of the seed: it opens with the owner's lock."""
        lock = self.shared["lock", owner][0]
        return self.pair_seed(owner, neighbour) ^ self.pad(lock, owner, neighbour)

    def masked(self, i: int, view: frozenset[int]) -> Vector:
        """A device's vector, with masks for all its neighbours who take part as it is told."""
        assert len(view) >= N - DROPS
        assert i in view
        total = self.vectors[i] + mask(self.shared["own", i][0], view)
        for j in self.neighbours(i) & view:
            total = total + _signed(i, j, mask(self.pair_seed(i, j), view))
        return total

    def reveal(
        self, holder: int, view: frozenset[int], alive: frozenset[int]
    ) -> dict[tuple[str, int], int]:
        """A holder's shares: of the mask of whoever is alive, **else** of the lock. Never both."""
        assert alive <= view
        assert len(alive) >= N - DROPS
        kinds = [("own" if i in alive else "lock", i) for i in view]
        return {kind: value(self.shared[kind], holder + 1) for kind in kinds}


def _signed(i: int, j: int, one: Vector) -> Vector:
    return one if i < j else -one


@dataclass
class Revealed:
    """What a server has from enough holders."""

    shares: dict[int, dict[tuple[str, int], int]]

    def seed(self, kind: str, i: int) -> int:
        return rebuilt({holder: shares[kind, i] for holder, shares in self.shares.items()})


def a_round(nonce: int) -> Older:
    rng = np.random.default_rng(nonce)
    return Older(nonce, rng.integers(0, 2**32, (N, DIM), np.uint32))


def test_the_older_design_sums_what_an_honest_server_gets() -> None:
    older, gone = a_round(1), frozenset({3, 50, 99})
    alive = EVERYBODY - gone
    total = sum((older.masked(i, EVERYBODY) for i in alive), np.zeros(DIM, np.uint32))
    revealed = Revealed({h: older.reveal(h, EVERYBODY, alive) for h in sorted(alive)[:THRESHOLD]})
    for i in alive:
        total = total - mask(revealed.seed("own", i), EVERYBODY)
    for gone_one in gone:
        lock = revealed.seed("lock", gone_one)
        for i in older.neighbours(gone_one) & alive:
            seed = older.locked(gone_one, i) ^ older.pad(lock, gone_one, i)
            total = total - _signed(i, gone_one, mask(seed, EVERYBODY))
    np.testing.assert_array_equal(total, older.vectors[sorted(alive)].sum(axis=0, dtype=np.uint32))


def ground() -> tuple[Older, int, list[int]]:
    """A nonce, and a victim with so many colluders among its neighbours that the rest can be said to be gone."""
    honest = range(COLLUDERS, N)
    for nonce in count():
        older = a_round(nonce)
        for victim in honest:
            rest = sorted(older.neighbours(victim) & set(honest))
            if len(rest) <= 2 * DROPS:
                return older, victim, rest
    raise AssertionError


def test_two_lists_give_a_lying_server_the_vector_of_one_device() -> None:
    """No list is smaller than devices allow, and no holder gives both shares of anyone."""
    older, victim, honest_neighbours = ground()
    hidden, gone = frozenset(honest_neighbours[:DROPS]), frozenset(honest_neighbours[DROPS:])
    view = EVERYBODY - hidden
    vector = older.masked(victim, view)  # the victim is told that these never came
    asked = [h for h in range(N) if h != victim and h not in gone][:THRESHOLD]
    revealed = Revealed({h: older.reveal(h, EVERYBODY, EVERYBODY - gone) for h in asked})
    vector = vector - mask(revealed.seed("own", victim), view)
    for j in older.neighbours(victim) & view:
        if j < COLLUDERS:
            seed = older.pair_seed(victim, j)  # the colluder tells
        else:
            seed = older.locked(j, victim) ^ older.pad(revealed.seed("lock", j), j, victim)
        vector = vector - _signed(victim, j, mask(seed, view))
    np.testing.assert_array_equal(vector, older.vectors[victim])


def test_the_same_lies_give_one_sum_where_holders_answer_with_sums() -> None:
    _, victim, honest_neighbours = ground()
    dealers = [i for i in EVERYBODY if i >= COLLUDERS]
    lists = np.ones((1, len(dealers), len(dealers)), np.bool_)
    gone = [dealers.index(i) for i in honest_neighbours[DROPS:]]
    hidden = [dealers.index(i) for i in honest_neighbours[:DROPS]]
    lists[0][:, gone] = False
    lists[0, dealers.index(victim)] = True
    lists[0, dealers.index(victim), hidden] = False
    found = judge(learnt(Sharing(N, DROPS, LOSSES, 30, COLLUDERS), np.arange(len(dealers)), lists))
    assert found.learns.all()
    assert not found.breaks.any()
    assert found.fewest == len(dealers) - len(gone) >= N - COLLUDERS - DROPS
