"""A device's copy of the server's state, which the device itself brings up to date (`broadcast=replay`, see
`delivery.parcels`).

A real device keeps the copy in its folder, between rounds and restarts. Clients in one process share a copy in memory.
It contains nothing private, only what the server has released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import RecordDict
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedsketch.delivery.kept_file import keep
from fedsketch.delivery.parcels import Replayed, open_steps, open_whole, size_of
from fedsketch.errors import UnsafeUpdateError
from fedsketch.tasks.workload import Assignment

FILE = "replica.safetensors"


@dataclass(frozen=True)
class _Copy:
    """A state that was brought up to date for a run, and its fingerprint."""

    task: Assignment
    fingerprint: str
    state: Replayed


class Replicas:
    """The newest state that this process has computed, for all its clients. `version_0` makes the state that all start
    from."""

    def __init__(self, version_0: Callable[[Assignment], Replayed]) -> None:
        self._version_0 = version_0
        self._copy: _Copy | None = None
        self._arrays: tuple[str, int, dict[str, torch.Tensor]] | None = None

    def receive(
        self, parcel: RecordDict, task: Assignment, goal: str, folder: Path | None
    ) -> str | None:
        """Bring the replica to the state with the fingerprint `goal`; returns why this parcel does not get it there, or
        None."""
        if self._holds(task, goal):
            return None  # another client of this process has done it
        whole = open_whole(parcel)
        if whole is not None:
            state = self._version_0(task)
            state.load_state_dict(whole)
            if state.fingerprint() != goal:
                raise UnsafeUpdateError(
                    "the state that came is not the one that all devices were told."
                )
            self._keep(task, state, goal, folder)
            return None
        first, steps = open_steps(parcel)
        before, self._copy = self._copy, None  # the steps change the state in place
        tried = False
        for state in self._starts(task, before, folder, range(first, first + len(steps) + 1)):
            # The server sends the whole state if that is shorter, so more steps than this are not needed.
            if sum(step.scalars for step in steps) > size_of(state):
                raise UnsafeUpdateError("the steps that came are longer than the whole state.")
            for step in steps[state.version - first :]:
                state.apply(step)
            if state.fingerprint() == goal:
                self._keep(task, state, goal, folder)
                return None
            tried = True
        return "another result" if tried else f"version {first} is not here"

    def arrays(self, task: Assignment, goal: str, server_round: int) -> dict[str, torch.Tensor]:
        """Return the arrays that a device takes from the replica in a round, instead of receiving them."""
        if self._copy is None or not self._holds(task, goal):
            raise UnsafeUpdateError(
                "the broadcast names a state that came with no parcel: set strategy.broadcast=full."
            )
        if self._arrays is None or self._arrays[:2] != (goal, server_round):
            made = self._copy.state.broadcast_arrays(server_round)
            copies = {name: tensor.clone() for name, tensor in made.items()}
            self._arrays = (goal, server_round, copies)
        return self._arrays[2]

    def _holds(self, task: Assignment, goal: str) -> bool:
        copy = self._copy
        return copy is not None and copy.fingerprint == goal and copy.task == task

    def _starts(
        self, task: Assignment, copy: _Copy | None, folder: Path | None, versions: range
    ) -> Iterator[Replayed]:
        """Yield states of these versions from which the steps may lead to the goal."""
        if copy is not None and copy.task == task and copy.state.version in versions:
            yield copy.state
        if folder is not None:
            kept = self._kept(task, folder)
            if kept is not None and kept.version in versions:
                yield kept
        if 0 in versions:
            yield self._version_0(task)

    def _keep(self, task: Assignment, state: Replayed, goal: str, folder: Path | None) -> None:
        self._copy = _Copy(task, goal, state)
        if folder is not None:
            keep(state.state_dict(), folder / FILE)

    def _kept(self, task: Assignment, folder: Path) -> Replayed | None:
        """Return the state in the device's folder, if it fits this run; its fingerprint decides whether it can be
        used."""
        state = self._version_0(task)
        try:
            state.load_state_dict(load_file(folder / FILE))
        except (OSError, SafetensorError, KeyError, RuntimeError, ValueError):
            return None  # there is none yet, or it belongs to another model
        return state
