"""A device that follows by replay: it comes to the server's state from whatever it holds, or says that it cannot."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
import torch
from flwr.app import RecordDict
from safetensors.torch import load_file, save_file

from fedsketch.client.workspace import Workspace
from fedsketch.conf import compose
from fedsketch.delivery import parcels, replica
from fedsketch.delivery.parcels import Parcels, open_steps, steps_parcel
from fedsketch.delivery.records import PARCEL_ARRAYS
from fedsketch.delivery.steps import Step
from fedsketch.errors import UnsafeUpdateError
from fedsketch.runtime.environment import simulated_devices
from fedsketch.strategies.algorithm import Aggregate
from fedsketch.strategies.dome.state import DomeState
from fedsketch.strategies.dome.strategy import Dome
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.messages import Broadcast, announced
from fedsketch.tasks.workload import Assignment, Workload
from tests.small import LARGER, plain

REPLAY = (
    "strategy=dome strategy.sketch_dim=120 strategy.broadcast=replay strategy.keep=all rounds=40"
)
Make = Callable[..., Dome]


@pytest.fixture
def device() -> Workspace:
    """The workspace of a process that has just started."""
    return Workspace()


@pytest.fixture
def server() -> Iterator[Make]:
    with ExitStack() as stack:

        def build(rounds: int, seed: int = 0) -> Dome:
            """A server after some rounds, with random sums."""
            config = compose(plain(REPLAY, *LARGER, f"seed={seed}"))
            stack.enter_context(simulated_devices(config))
            workload = Workload(config)
            strategy = make_strategy(config, workload, workload.model())
            _rounds(cast(Dome, strategy), range(1, rounds + 1))
            return cast(Dome, strategy)

        yield build


def _rounds(strategy: Dome, rounds: range) -> None:
    generator = torch.Generator().manual_seed(rounds.start)
    for round in rounds:
        strategy.update(round, Aggregate(torch.randn(120, generator=generator), 6, 0.1))


def _parcels(strategy: Dome) -> Parcels:
    assert strategy.parcels is not None
    return strategy.parcels


def _message(strategy: Dome, parcel: RecordDict, round: int) -> RecordDict:
    """What a node is sent in a round."""
    head = _parcels(strategy).head()
    mechanism = strategy.mechanism(round, 6)
    common = Broadcast(strategy.config, round, mechanism, {}, head).to_records()
    return RecordDict({**common, **parcel})


def _receive(device: Workspace, content: RecordDict, folder: Path | None) -> str | None:
    """What a device finds wrong with the parcel of a message."""
    config, numbers = announced(content)
    return device._replicas.receive(
        content,
        Assignment(config),
        bytes(numbers["fingerprint"]).hex(),
        folder,  # type: ignore[arg-type]
    )


def _arrays(device: Workspace, content: RecordDict) -> dict[str, torch.Tensor]:
    broadcast = Broadcast.from_records(content)
    return dict(device.completed(broadcast, Assignment(broadcast.config)).arrays)


def _check(strategy: Dome, device: Workspace, content: RecordDict, round: int) -> None:
    expected = strategy.state.broadcast_arrays(round)
    got = _arrays(device, content)
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


def test_everybody_holds_version_0(server: Make, device: Workspace) -> None:
    strategy = server(0)
    content = _message(strategy, _parcels(strategy).parcel(0), 1)
    assert _receive(device, content, None) is None
    _check(strategy, device, content, 1)
    assert open_steps(content)[1] == []  # and so nothing has to be sent
    assert PARCEL_ARRAYS not in content


@pytest.mark.parametrize("missed", [1, 3])
def test_a_device_that_missed_rounds_catches_up(
    server: Make, device: Workspace, tmp_path: Path, missed: int
) -> None:
    """From its folder, in a new process; the learned directions among what it makes."""
    strategy = server(2)
    assert _receive(device, _message(strategy, _parcels(strategy).parcel(0), 3), tmp_path) is None
    _rounds(strategy, range(3, 3 + missed))
    device = Workspace()
    parcel = _parcels(strategy).parcel(2)
    assert len(open_steps(parcel)[1]) == missed
    content = _message(strategy, parcel, 3 + missed)
    assert _receive(device, content, tmp_path) is None
    _check(strategy, device, content, 3 + missed)
    assert "basis-0" in _arrays(device, content)


@pytest.mark.parametrize("loss", ["none kept", "another run's", "damaged"])
def test_a_device_that_lost_its_copy_asks_for_the_whole(
    server: Make, device: Workspace, tmp_path: Path, loss: str
) -> None:
    strategy = server(3)
    if loss == "another run's":
        other = server(2, seed=1)
        assert _receive(device, _message(other, _parcels(other).parcel(0), 3), tmp_path) is None
        device = Workspace()
    elif loss == "damaged":
        (tmp_path / replica.FILE).write_bytes(b"not a state")
    content = _message(strategy, _parcels(strategy).parcel(2), 4)
    assert _receive(device, content, tmp_path) is not None
    content = _message(strategy, _parcels(strategy).whole(), 4)
    assert _receive(device, content, tmp_path) is None
    _check(strategy, device, content, 4)


def test_a_copy_that_went_astray_is_found_out_and_replaced(
    server: Make, device: Workspace, tmp_path: Path
) -> None:
    """As when one machine's arithmetic differs from the server's in a bit that survives rounding."""
    strategy = server(2)
    assert _receive(device, _message(strategy, _parcels(strategy).parcel(0), 3), tmp_path) is None
    tensors = load_file(tmp_path / replica.FILE)
    tensors["vector"][7] += 1e-6
    save_file(tensors, tmp_path / replica.FILE)
    device = Workspace()
    _rounds(strategy, range(3, 4))
    assert (
        _receive(device, _message(strategy, _parcels(strategy).parcel(2), 4), tmp_path) is not None
    )
    content = _message(strategy, _parcels(strategy).whole(), 4)
    assert _receive(device, content, tmp_path) is None
    _check(strategy, device, content, 4)


def test_a_copy_that_a_broken_step_has_changed_is_not_used_again(
    server: Make, device: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = server(3)
    assert _receive(device, _message(strategy, _parcels(strategy).parcel(0), 4), None) is None
    _rounds(strategy, range(4, 5))
    content = _message(strategy, _parcels(strategy).parcel(3), 5)
    _, (good,) = replica.open_steps(content)
    broken = Step(5, torch.ones(7), 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(replica, "open_steps", lambda content: (3, [good, broken]))
        with pytest.raises(ValueError, match="a sketch of 120 numbers"):
            _receive(device, content, None)
    assert _receive(device, content, None) == "version 3 is not here"
    content = _message(strategy, _parcels(strategy).parcel(0), 5)
    assert _receive(device, content, None) is None
    _check(strategy, device, content, 5)


def test_a_newer_copy_than_the_servers_is_not_used(
    server: Make, device: Workspace, tmp_path: Path
) -> None:
    """The server resumed from an older checkpoint: from version 0 on, if that is what it sends."""
    ahead = server(4)
    assert _receive(device, _message(ahead, _parcels(ahead).parcel(0), 5), tmp_path) is None
    strategy = server(2)
    content = _message(strategy, _parcels(strategy).parcel(0), 3)
    assert _receive(device, content, tmp_path) is None
    _check(strategy, device, content, 3)


def test_a_whole_that_is_not_what_all_were_told_is_refused(server: Make, device: Workspace) -> None:
    """A server cannot give one device another model than it tells the others (under signed settings)."""
    strategy, other = server(2), server(3)
    content = _message(strategy, _parcels(other).whole(), 3)
    with pytest.raises(UnsafeUpdateError, match="not the one that all devices were told"):
        _receive(device, content, None)


def test_a_server_cannot_ask_for_any_number_of_steps(
    server: Make, device: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 steps without numbers are not longer than the whole state, and took 4.3 s before anything was charged."""
    strategy = server(1)
    applied: list[Step] = []
    monkeypatch.setattr(DomeState, "apply", lambda _, step: applied.append(step))
    empty = [Step(round, torch.zeros(0), 0.0) for round in range(1, 20_001)]
    content = _message(strategy, steps_parcel(0, empty), 2)
    with pytest.raises(ValueError, match="more than the 1000 steps"):
        _receive(device, content, None)
    assert not applied


def test_a_device_that_missed_more_steps_than_that_is_sent_the_whole(
    server: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcels, "MOST_STEPS", 2)
    strategy = server(3)
    assert replica.open_whole(_parcels(strategy).parcel(0)) is not None
    assert replica.open_whole(_parcels(strategy).parcel(1)) is None


def test_a_broadcast_without_its_parcel_is_refused(server: Make, device: Workspace) -> None:
    """As under Flower's own loop, which knows no parcels."""
    strategy = server(1)
    with pytest.raises(UnsafeUpdateError, match=r"set strategy\.broadcast=full"):
        _arrays(device, _message(strategy, RecordDict(), 2))


def test_clients_of_one_process_share_one_copy(
    server: Make, device: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = server(3)
    content = _message(strategy, _parcels(strategy).parcel(0), 4)
    assert _receive(device, content, None) is None
    first = _arrays(device, content)
    monkeypatch.setattr(DomeState, "__init__", lambda *_: pytest.fail("made a second copy"))
    for _ in range(3):
        again = RecordDict(dict(content))
        assert _receive(device, again, None) is None
        assert all(tensor is first[name] for name, tensor in _arrays(device, again).items())
