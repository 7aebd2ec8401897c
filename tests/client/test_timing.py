"""How long a device takes to reply to a train message says nothing about its data, if its owner wants that."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from fedsketch.client.app import make_app
from fedsketch.client.guard.policy import Policy
from fedsketch.tasks.models.flat_model import FlatModel
from tests.client import fleet
from tests.client.fleet import POLICY, Fleet, npz


class Clock:
    """Time that passes only where something is said to take time."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Training takes as many seconds as the first pixel says."""
    clock = Clock()
    for module in ("client.guard.guard", "secagg.mod"):
        monkeypatch.setattr(f"fedsketch.{module}.time", clock)
    real = FlatModel.loss_and_gradient

    def slow(self: FlatModel, inputs: Any, *others: Any, **more: Any) -> Any:
        clock.sleep(float(inputs.flatten()[0]))
        return real(self, inputs, *others, **more)

    monkeypatch.setattr(FlatModel, "loss_and_gradient", slow)
    return clock


def _times(
    clock: Clock, worlds: Any, folder: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> list[list[float]]:
    """How long the replies to train messages take, in two worlds whose data take 0.25 and 0.75 s."""
    times: list[list[float]] = []

    def timed_app() -> Any:
        app = make_app()

        def answer(message: Message, context: Context) -> Message:
            begun = clock.now
            reply = app(message, context)
            if message.metadata.message_type == "train":
                times[-1].append(clock.now - begun)
            return reply

        times.append([])
        return answer

    def attack(fleet: Fleet) -> list[str]:
        return [fleet.play(fleet.strategy.model.vector.clone())]

    monkeypatch.setattr(fleet, "make_app", timed_app)
    fast, slow = npz(folder / "fast.npz", 0.25), npz(folder / "slow.npz", 0.75)
    told = worlds(attack, fast, slow, policy=policy)
    assert told[0][0] == told[1][0] == ["a sum"]
    return times


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.0, [0.25, 0.75]), (1.0, [1.0, 1.0]), (0.5, [0.5, 1.0])]
)
def test_replies_leave_at_fixed_times(
    clock: Clock,
    worlds: Any,
    tmp_path: Path,
    seconds: float,
    expected: list[float],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The attack is the first case. The last has a device that needs longer than its owner thought."""
    policy = replace(POLICY, reply_seconds=seconds)
    times = _times(clock, worlds, tmp_path, policy, monkeypatch)
    assert times == [pytest.approx([one] * fleet.NODES) for one in expected]
    assert ("raise reply_seconds above that" in caplog.text) == (seconds == 0.5)


def test_what_fails_takes_as_long(
    clock: Clock, worlds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: FlatModel, *_: Any, **__: Any) -> Any:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(FlatModel, "loss_and_gradient", broken)
    times = _times(clock, worlds, tmp_path, replace(POLICY, reply_seconds=1.0), monkeypatch)
    assert times == [pytest.approx([1.0] * fleet.NODES)] * 2
