"""Broadcast by replay: a device with the state of version v computes version v + 1 itself, from the last aggregate.

A strategy whose server step is a deterministic function of (state, aggregate) need not send the result. It sends a
parcel: the steps that a device has missed, or the whole state if that is shorter. Version 0 follows from the
configuration, so every device has it. All devices of a round are told the same fingerprint of the state (to which
secure aggregation commits); each device has its own parcel. A device that does not arrive at the fingerprint says so,
and gets the whole state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import torch
from flwr.app import ConfigRecord, RecordDict

from fedsketch.delivery.records import PARCEL, PARCEL_ARRAYS, STALE
from fedsketch.delivery.tensor_records import tensors_in, with_tensors

FINGERPRINT = "fingerprint"  # in the head of a broadcast
# A device that missed more steps is sent the whole state. Each step costs it time, however short, before it charges
# anything.
MOST_STEPS = 1000


@dataclass(frozen=True)
class Step:
    """Everything that a server step depends on beside the state: its round, the released mean, and the noise of each
    number.

    `given` are parts of the state that only the server can compute, for example from public data: their values after
    the step.
    """

    round: int
    mean: torch.Tensor
    deviation: float
    given: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def scalars(self) -> int:
        """How many numbers are sent for this step."""
        return self.mean.numel() + sum(tensor.numel() for tensor in self.given.values())


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
            self._made[version] = _steps_parcel(version, steps) if known else self.whole()
        return self._made[version]

    def whole(self) -> RecordDict:
        """Return the parcel for a device that has no usable state."""
        if -1 not in self._made:
            head = ConfigRecord({"kind": "whole"})
            self._made[-1] = with_tensors(PARCEL, head, self._state.state_dict(), PARCEL_ARRAYS)
        return self._made[-1]


def open_whole(content: RecordDict) -> dict[str, torch.Tensor] | None:
    """Return the state in a parcel; None if it holds steps."""
    whole = content.config_records[PARCEL]["kind"] == "whole"
    return tensors_in(content, PARCEL, PARCEL_ARRAYS) if whole else None


def open_steps(content: RecordDict) -> tuple[int, list[Step]]:
    """Return the version from which the steps of a parcel start, and the steps."""
    head = content.config_records[PARCEL]
    rounds: list[int] = list(head["rounds"])  # type: ignore[arg-type]
    if len(rounds) > MOST_STEPS:
        raise ValueError(f"The parcel has {len(rounds)} steps, and {MOST_STEPS} are allowed.")
    if any(later <= earlier for earlier, later in pairwise(rounds)):
        raise ValueError("The steps of a parcel are not in the order of their rounds.")
    deviations: list[float] = list(head["deviations"])  # type: ignore[arg-type]
    parts: dict[int, dict[str, torch.Tensor]] = {current: {} for current in rounds}
    for name, tensor in tensors_in(content, PARCEL, PARCEL_ARRAYS).items():
        current, _, part = name.partition(".")
        parts[int(current)][part] = tensor
    steps = [
        Step(current, parts[current].pop(""), deviation, parts[current])
        for current, deviation in zip(rounds, deviations, strict=True)
    ]
    return int(head["held"]), steps  # type: ignore[arg-type]


def _steps_parcel(version: int, steps: list[Step]) -> RecordDict:
    head = ConfigRecord(
        {
            "kind": "steps",
            "held": version,
            "rounds": [step.round for step in steps],
            "deviations": [step.deviation for step in steps],
        }
    )
    tensors = {str(step.round): step.mean for step in steps}
    for step in steps:
        tensors |= {f"{step.round}.{name}": part for name, part in step.given.items()}
    return with_tensors(PARCEL, head, tensors, PARCEL_ARRAYS)


def size_of(state: Replayed) -> int:
    """Return how many numbers the whole state has."""
    return sum(tensor.numel() for tensor in state.state_dict().values())


def asks_for_the_whole(problem: str) -> RecordDict:
    """Return the answer of a device that its parcel does not bring up to date."""
    return RecordDict({PARCEL: ConfigRecord({STALE: problem})})
