"""Two worlds of real devices that differ in nothing but their data: the same randomness, the same hostile server."""

import hashlib
import logging
import os
import random
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsketch.client.app import make_app
from fedsketch.client.enroll import enrol
from fedsketch.client.guard import ledger
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.policy import Policy
from fedsketch.privacy.mechanisms import randomness
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.secagg import Malformed
from tests.client.hostile_server import COMMON, NODES, RUNS, Hostile, attack
from tests.secagg.protocol import MessageKind, packed_size, unpack, x25519


class Dice:
    """The operating system's randomness, made repeatable: what is drawn follows from the sequence, the number of the
    message, who asks, and how often it has asked. So a device that draws once more in one place draws the same as
    before in all others."""

    def __init__(self) -> None:
        self._moment: tuple[int, int] = (0, 0)
        self._asked: dict[str, int] = {}

    def turn(self, seed: int, message: int) -> None:
        self._moment, self._asked = (seed, message), {}

    def draw(self, size: int) -> bytes:
        caller = sys._getframe(1)
        while caller.f_back is not None and caller.f_code.co_filename == __file__:
            caller = caller.f_back
        place = f"{caller.f_code.co_filename}:{caller.f_code.co_name}"
        self._asked[place] = self._asked.get(place, 0) + 1
        if caller.f_globals["__name__"] == randomness.__name__:
            # A device that fails late has drawn noise twice: let it be the same.
            self._asked[place] = 1
        label = f"{self._moment} {place} {self._asked[place]}".encode()
        return hashlib.shake_256(label).digest(size)

    def below(self, bound: int) -> int:
        return int.from_bytes(self.draw((bound.bit_length() + 7) // 8 + 16), "big") % bound


@dataclass
class World:
    """Devices that are put back to their first day before every sequence."""

    root: Path
    pristine: dict[Path, bytes]
    dice: Dice
    runs: Sequence[tuple[str, ...]] = RUNS
    common: tuple[str, ...] = tuple(COMMON)
    app: Any = field(default_factory=make_app)

    def play(self, seed: int, data: dict[int, Path | None], hostility: float) -> "Played":
        folders = {node: self.root / f"device{node}" for node in data}
        for path in [file for folder in folders.values() for file in folder.iterdir()]:
            path.unlink()
        for path, content in self.pristine.items():
            path.write_bytes(content)
            path.chmod(0o600)
        rng = random.Random(seed)
        grid = Hostile(self.app, folders, data, rng, lambda number: self.dice.turn(seed, number))
        self.dice.turn(seed, 0)
        run, announced = attack(grid, rng, hostility, self.runs, self.common)
        files = (path for path in sorted(self.root.rglob("*")) if path.is_file())
        kept = {str(path.relative_to(self.root)): path.read_bytes() for path in files}
        return Played(grid, kept, run, announced)


@dataclass
class Played:
    grid: Hostile
    kept: dict[str, bytes]
    run: tuple[str, ...]
    announced: list[Mechanism]


def difference(first: bytes, second: bytes, mechanism: Mechanism) -> NDArray[np.float64] | None:
    """The difference of two vectors under equal masks and noise; None if they are of another mechanism."""
    assert mechanism.ring is not None
    dim, bits, modulus = mechanism.ring
    in_two_trips = first[0] == MessageKind.SHARING_REPLY
    if in_two_trips != bool(modulus % 2):
        return None
    start = 1 + (16 if in_two_trips else 32)  # behind the kind and the name of the round
    try:
        one, other = (
            unpack(data[start : start + packed_size(dim, bits)], dim, bits).astype(np.int64)
            for data in (first, second)
        )
    except Malformed:
        return None
    return (np.mod(one - other + modulus // 2, modulus) - modulus // 2).astype(np.float64)


def within(first: bytes, second: bytes, mechanism: Mechanism) -> bool:
    """Whether two vectors under equal masks and noise could be two sums of clipped rows."""
    apart = difference(first, second, mechanism)
    if apart is None:
        return False
    # The noise is inside, so an upload is anything that fits the ring.
    if isinstance(mechanism, NoisyTraining):
        return float(np.abs(apart).max()) <= 2 * (mechanism.limit * mechanism.scale + 1)
    assert isinstance(mechanism, SkellamRing)
    return float(np.linalg.norm(apart)) <= 2 * mechanism.rows * mechanism.l2_sensitivity


@contextmanager
def enrolled(
    root: Path, dice: Dice, policy: Policy, card: DataCard, *attacked: Any
) -> Iterator[tuple[World, World]]:
    """Two worlds of devices with this policy and this card."""
    (root / "policy.toml").write_text(policy.to_toml())
    folders = {node: root / "here" / f"device{node}" for node in range(2, NODES + 2)}
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SIMULATION_VARIABLE, raising=False)
        patch.setattr(ledger, "_now", lambda: "2026-01-01T00:00:00+00:00")
        patch.setattr(os, "fsync", lambda _: None)  # nothing is cut off here
        for node, folder in folders.items():
            enrol(folder, node, root / "roster.json", root / "policy.toml", card)
        for folder in folders.values():
            enrol(folder, roster=root / "roster.json")
        patch.setattr(os, "urandom", dice.draw)
        patch.setattr(secrets, "randbelow", dice.below)
        patch.setattr(x25519, "new_private", lambda: dice.draw(32))
        logging.disable(logging.CRITICAL)  # thousands of failures are the point
        # In one place, one after the other, so that paths are equal too.
        pristine = {file: file.read_bytes() for file in (root / "here").rglob("*.*")}
        yield tuple(World(root / "here", pristine, dice, *attacked) for _ in range(2))  # type: ignore[misc]
        logging.disable(logging.NOTSET)


@dataclass
class Tally:
    """How much was tried."""

    sequences: int = 0
    messages: int = 0
    vectors: int = 0
    refusals: int = 0
    moved: Counter[tuple[str, ...]] = field(default_factory=Counter)  # vectors that differ, by run
    slowest: float = 0.0

    def add(self, one: Played, two: Played, *kind: str) -> None:
        self.sequences += 1
        self.messages += one.grid.delivered
        self.vectors += len(one.grid.vectors)
        self.refusals += sum("refusal" in str(told) for told in one.grid.told)
        pairs = zip(one.grid.vectors, two.grid.vectors, strict=True)
        self.moved[*kind, *one.run] += sum(first != second for first, second in pairs)
        self.slowest = max(self.slowest, one.grid.slowest, two.grid.slowest)
