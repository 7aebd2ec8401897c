"""A device's copy of the server's state, which it brings up to date by itself (`broadcast=replay`, see `replay.parcels`).

A real device keeps the copy in its folder, between rounds and restarts. Processes that simulate many clients share one in memory.
Nothing private is in it: it is what the server has released.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flwr.app import RecordDict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedsketch.client.workspace import job_of
from fedsketch.conf import Config
from fedsketch.privacy.mechanisms.unsafe import UnsafeUpdateError
from fedsketch.replay.parcels import Replayed, open_steps, open_whole
from fedsketch.strategies import replica
from fedsketch.strategies.shared.messages import Broadcast, decoded

FILE = "replica.safetensors"

_Shared = tuple[Config, Replayed, str]
_shared: _Shared | None = None  # the last state that this process made, and its fingerprint
_completed: tuple[str, Broadcast] | None = None


def receive(content: RecordDict, folder: Path | None) -> str | None:
    """Bring the replica to the version that the broadcast names; or say why this parcel does not get it there."""
    global _shared
    broadcast = decoded(content)
    config, goal = broadcast.config, str(broadcast.numbers["fingerprint"])
    if _shared is not None and _shared[0] == config and _shared[2] == goal:
        return None  # another client of this process was here
    whole = open_whole(content)
    if whole is not None:
        state = _version_0(config)
        state.load_state_dict(whole)
        if state.fingerprint() != goal:
            raise UnsafeUpdateError(
                "the state that came is not the one that all devices were told."
            )
        _keep(config, state, goal, folder)
        return None
    held, steps = open_steps(content)
    shared, _shared = _shared, None  # the steps change it in place
    tried = False
    for state in _starts(config, shared, folder, range(held, held + len(steps) + 1)):
        for step in steps[state.version - held :]:
            state.apply(step)
        if state.fingerprint() == goal:
            _keep(config, state, goal, folder)
            return None
        tried = True
    return "another result" if tried else f"version {held} is not here"


def completed(broadcast: Broadcast) -> Broadcast:
    """The broadcast with the arrays that the replica gives; as it is, if it brought its own."""
    global _completed
    goal = broadcast.numbers.get("fingerprint")
    if goal is None:
        return broadcast
    if _completed is None or _completed[0] != goal or _completed[1].round != broadcast.round:
        if _shared is None or _shared[2] != goal:
            raise UnsafeUpdateError(
                "the broadcast names a state that came with no parcel: set strategy.broadcast=full."
            )
        arrays = {
            name: x.clone() for name, x in _shared[1].broadcast_arrays(broadcast.round).items()
        }
        _completed = (str(goal), replace(broadcast, arrays=arrays))
    return _completed[1]


def _starts(
    config: Config, shared: _Shared | None, folder: Path | None, versions: range
) -> Iterator[Replayed]:
    """States of these versions from which the steps may lead to the goal."""
    if shared is not None and shared[0] == config and shared[1].version in versions:
        yield shared[1]
    if folder is not None:
        kept = _kept(config, folder)
        if kept is not None and kept.version in versions:
            yield kept
    if 0 in versions:
        yield _version_0(config)


def _version_0(config: Config) -> Replayed:
    return replica(config, job_of(config).model())


def _keep(config: Config, state: Replayed, fingerprint: str, folder: Path | None) -> None:
    global _shared
    _shared = (config, state, fingerprint)
    if folder is not None:
        unfinished = folder / f"{FILE}.unfinished"
        tensors = {name: x.contiguous() for name, x in state.state_dict().items()}
        save_file(tensors, unfinished)
        unfinished.rename(folder / FILE)


def _kept(config: Config, folder: Path) -> Replayed | None:
    """What the device's folder holds, if it fits this run: a fingerprint decides whether it is of use."""
    state = _version_0(config)
    try:
        state.load_state_dict(load_file(folder / FILE))
    except (OSError, SafetensorError, KeyError, RuntimeError, ValueError):
        return None  # none yet, or of another model
    return state
