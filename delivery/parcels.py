"""Broadcast by replay: a device with the state of version v computes version v + 1 itself, from the last aggregate.

A strategy whose server step is a deterministic function of (state, aggregate) need not send the result. It sends a
parcel: the steps that a device has missed, or the whole state if that is shorter. Version 0 follows from the
configuration, so every device has it. All devices of a round are told the same fingerprint of the state (to which
secure aggregation commits); each device has its own parcel. A device that does not arrive at the fingerprint says so,
and gets the whole state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import torch
from flwr.app import ConfigRecord, RecordDict

from fedsketch.delivery.records import PARCEL, PARCEL_ARRAYS, STALE
from fedsketch.delivery.steps import MOST_STEPS, Step, packed, unpacked
from fedsketch.delivery.tensor_records import tensors_in, with_tensors

FINGERPRINT = "fingerprint"  # in the head of a broadcast
STEPS = "steps"


class Replayed(Protocol):
    """The state of a strategy that can be replayed: on the server, and the same on every device that follows it."""

    @property
    def version(self) -> int:
        """How many steps were taken."""

    def apply(self, step: Step) -> None:
        """Take the server's step."""

    def broadcast_arrays(self, server_round: int) -> dict[str, torch.Tensor]:
        """Return the arrays of the state that a device needs in a round."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the whole state."""

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None: ...

    def fingerprint(self) -> str:
        """Return a hash of the whole state."""


class Parcels:
    """What the server sends to each device. It remembers steps as long as some device may need them."""

    def __init__(self, state: Replayed) -> None:
        self._state = state
        self._steps: list[Step] = []
        # Parcels to the present version, by the version that a device has.
        self._made: dict[int, RecordDict] = {}

    @property
    def version(self) -> int:
        return self._state.version

    def head(self) -> dict[str, int | str | bool | float | bytes]:
        """Return what every device is told of the state, in the common part of the broadcast."""
        return {FINGERPRINT: bytes.fromhex(self._state.fingerprint())}

    def arrays(self, server_round: int) -> dict[str, torch.Tensor]:
        """Return the arrays that devices make themselves in a round."""
        return self._state.broadcast_arrays(server_round)

    def remember(self, step: Step) -> None:
        """Remember a step that the state has just taken."""
        self._steps.append(step)
        self._made.clear()
        whole = size_of(self._state)
        while len(self._steps) > MOST_STEPS or sum(old.scalars for old in self._steps) > whole:
            del self._steps[0]

    def parcel(self, version: int) -> RecordDict:
        """Return the parcel for a device with this version: the steps that it has missed if they are remembered, else
        the whole state."""
        if version not in self._made:
            missed = self.version - version
            known = 0 <= missed <= len(self._steps)
            steps = self._steps[len(self._steps) - missed :]
            self._made[version] = steps_parcel(version, steps) if known else self.whole()
        return self._made[version]

    def whole(self) -> RecordDict:
        """Return the parcel for a device that has no usable state."""
        if -1 not in self._made:
            self._made[-1] = with_tensors(
                PARCEL, ConfigRecord(), self._state.state_dict(), PARCEL_ARRAYS
            )
        return self._made[-1]


def open_whole(content: RecordDict) -> dict[str, torch.Tensor] | None:
    """Return the state in a parcel; None if it holds steps."""
    whole = STEPS not in content.config_records[PARCEL]
    return tensors_in(content, PARCEL, PARCEL_ARRAYS) if whole else None


def open_steps(content: RecordDict) -> tuple[int, list[Step]]:
    """Return the version from which the steps of a parcel start, and the steps."""
    head = content.config_records[PARCEL]
    steps = unpacked(head[STEPS])  # type: ignore[arg-type]
    if any(later.round <= earlier.round for earlier, later in pairwise(steps)):
        raise ValueError("The steps of a parcel are not in the order of their rounds.")
    parts: dict[int, dict[str, torch.Tensor]] = {step.round: {} for step in steps}
    for name, tensor in tensors_in(content, PARCEL, PARCEL_ARRAYS).items():
        current, _, part = name.partition(".")
        parts[int(current)][part] = tensor
    return int(head["held"]), [replace(step, given=parts[step.round]) for step in steps]  # type: ignore[arg-type]


def steps_parcel(held: int, steps: list[Step]) -> RecordDict:
    """Return the parcel with the steps that follow the version `held`."""
    head = ConfigRecord({"held": held, STEPS: packed(steps)})
    given = {f"{step.round}.{name}": part for step in steps for name, part in step.given.items()}
    return with_tensors(PARCEL, head, given, PARCEL_ARRAYS) if given else RecordDict({PARCEL: head})


def size_of(state: Replayed) -> int:
    """Return how many numbers the whole state has."""
    return sum(tensor.numel() for tensor in state.state_dict().values())


def asks_for_the_whole(problem: str) -> RecordDict:
    """Return the answer of a device that its parcel does not bring up to date."""
    return RecordDict({PARCEL: ConfigRecord({STALE: problem})})
