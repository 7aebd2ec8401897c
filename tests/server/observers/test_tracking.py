"""A tracker is told what the display is told, before it, and its errors end the run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsketch.client.app import app
from fedsketch.conf import Config, compose
from fedsketch.conf.settings import TrackingSettings
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.server.observers.tracking import TrackerAndDisplay, tracked
from fedsketch.server.rounds import Rounds
from tests.small import plain


class _Noted:
    """An observer that notes its name with every event, in a list that it shares, and fails at one of them."""

    def __init__(self, name: str, events: list[str], fails_at: str = "") -> None:
        self._name, self._events, self._fails_at = name, events, fails_at

    def began(self, config: Config, done: int, guarantee: str) -> None:
        self._note("began")

    def notes(self, sentence: str) -> None: ...

    def round_done(self, row: dict[str, Any]) -> None:
        self._note("played")

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        self._note("ended")

    def _note(self, event: str) -> None:
        if event == self._fails_at:
            raise RuntimeError("the tracker does not answer")
        self._events.append(f"{self._name} {event}")


@pytest.fixture
def config() -> Config:
    return replace(compose(plain("rounds=1")), tracking=TrackingSettings(name="own"))


def _installed(monkeypatch: pytest.MonkeyPatch, make: Callable[..., object]) -> None:
    monkeypatch.setattr(
        "fedsketch.server.observers.tracking.implementation", lambda group, name: make
    )


def _play(config: Config, folder: Path, display: _Noted) -> None:
    with simulated_devices(config):
        Rounds(config, folder, display).run(LocalGrid(app, config.clients.total))


def test_a_tracker_is_not_told_what_has_no_noise() -> None:
    """The share of values that csgm cuts is counted on uploads before any noise."""
    rows: dict[str, list[dict[str, Any]]] = {"tracker": [], "display": []}

    class Rows(_Noted):
        def round_done(self, row: dict[str, Any]) -> None:
            rows[self._name].append(row)

    both = TrackerAndDisplay(Rows("tracker", []), Rows("display", []))
    row = {"round": 1, "clipped_fraction": 0.25}
    both.round_done(row)
    assert rows == {"tracker": [{"round": 1}], "display": [row]}


def test_both_are_told_and_the_tracker_first(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    made: list[object] = []

    def make(settings: TrackingSettings, folder: Path) -> _Noted:
        made.extend((settings, folder))
        return _Noted("tracker", events)

    _installed(monkeypatch, make)
    _play(config, tmp_path, _Noted("display", events))
    assert made == [config.tracking, tmp_path]
    assert events == [
        f"{who} {event}" for event in ("began", "played", "ended") for who in ("tracker", "display")
    ]


@pytest.mark.parametrize("event", ["began", "played", "ended"])
def test_a_tracker_that_raises_ends_the_run_with_its_error(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    events: list[str] = []
    _installed(monkeypatch, lambda settings, folder: _Noted("tracker", events, fails_at=event))
    with pytest.raises(RuntimeError, match="the tracker does not answer"):
        _play(config, tmp_path, _Noted("display", events))
    assert f"display {event}" not in events


def test_without_a_tracker_the_display_is_alone(tmp_path: Path) -> None:
    display = _Noted("display", [])
    assert tracked(compose(plain()), tmp_path, display) is display
