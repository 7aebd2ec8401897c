"""What a person sees, on a terminal and in a log file."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedsketch.conf import compose
from fedsketch.server.observers.console import ConsoleProgress
from fedsketch.server.report.number_format import short_epsilons

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
CONFIG = compose(["rounds=20", "secagg=none"])
SUMMARY: dict[str, Any] = {
    "rounds": 20,
    "accuracy": 0.9123,
    "epsilon": {"model": 3.456, "client": 4.567, "server": None},
    "adversaries": {"server": "who runs it", "model": "who sees models", "client": "2 of them"},
    "private": True,
    "not_private": None,
    "delta": 1e-5,
    "stopped": None,
    "parameters": 2410,
    "uplink_bytes": 1_230_000.0,
    "downlink_bytes": 2_345.0,
    "seconds": 12.3,
}


def _row(round: int, accuracy: float | None = 0.875, private: bool = True) -> dict[str, Any]:
    return {
        "round": round,
        "accuracy": accuracy,
        "epsilon": {"model": 1.234, "client": 2.345, "server": None},
        "private": private,
        "uplink_bytes": 10_500.0,
        "downlink_bytes": 990.0,
        "dropped": 2,
    }


def _shown(terminal: bool, rows: list[dict[str, Any]], **changes: Any) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=200, color_system=None)
    with ConsoleProgress(console) as progress:
        progress.began(CONFIG, changes.pop("done", 0), "Nothing is private here.")
        for row in rows:
            progress.round_done(row)
        progress.ended({**SUMMARY, **changes}, Path("somewhere/report.html"))
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())


@pytest.mark.parametrize("terminal", [True, False])
def test_shows_rounds_accuracy_epsilon_and_bytes(terminal: bool) -> None:
    shown = _shown(terminal, [_row(1), _row(2)])
    assert "Nothing is private here." in shown
    assert "2/20" in shown
    assert "accuracy 87.5 %" in shown
    assert "epsilon 1.23/2.35/∞" in shown
    assert "10.5 kB" in shown
    assert "990 B" in shown
    assert "dropped 2" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_ends_with_a_table_and_the_path_of_the_report(terminal: bool) -> None:
    shown = _shown(terminal, [_row(20)])
    for piece in ("91.2 %", "3.46 at delta 1e-05", "no guarantee", "2,410", "1.23 MB"):
        assert piece in shown
    assert shown.rstrip().endswith("somewhere/report.html")


def test_the_bar_shows_the_three_that_every_run_has_in_one_order() -> None:
    spent = {"server": None, "model": 3.456, "client": 4.5, "eavesdropper (r_secret)": 0.1}
    assert short_epsilons(spent) == "3.46/4.50/∞"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_explained_once(terminal: bool) -> None:
    shown = _shown(terminal, [_row(2), _row(4)])
    assert shown.count("epsilon: spent against model/client/server") == 1


def test_lines_of_a_file_have_a_time() -> None:
    lines = _shown(False, [_row(2), _row(4)]).splitlines()
    assert sum(bool(re.match(r"\d\d:\d\d:\d\d  round \d/20  ", line)) for line in lines) == 2


def test_adversaries_are_explained_below_the_table() -> None:
    shown = _shown(False, [_row(20)])
    assert "model: who sees models\nclient: 2 of them\nserver: who runs it\n" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_not_private_says_so_beside_every_epsilon(terminal: bool) -> None:
    told = {"private": False, "not_private": "its seed is known"}
    shown = _shown(terminal, [_row(2, private=False)], **told)
    assert "epsilon 1.23/2.35/∞ (NOT PRIVATE)" in shown
    assert re.search(r"NOT PRIVATE\s+│ its seed is known", shown)
    assert "NOT PRIVATE" not in _shown(terminal, [_row(2)])


def test_an_unevaluated_round_keeps_the_last_accuracy() -> None:
    assert "accuracy 50.0 %" in _shown(True, [_row(1, 0.5), _row(2, None)]).split("2/20")[-1]


def test_without_a_terminal_a_line_for_every_tenth() -> None:
    lines = _shown(False, [_row(round) for round in range(1, 21)]).splitlines()
    assert sum("accuracy 87.5 %" in line for line in lines) == 10


def test_a_resumed_or_stopped_run_says_so() -> None:
    shown = _shown(False, [_row(8)], done=7, stopped="Stopped after round 8: no budget.")
    assert "Resuming after round 7" in shown
    assert "Stopped after round 8" in shown


def test_what_devices_say_comes_with_its_noise_and_the_means_of_groups() -> None:
    told = {"mean": 0.8123, "noise": 0.0214, "groups": [0.8, 0.82], "noise_of_groups": [0.03, 0.03]}
    shown = _shown(False, [_row(2)], evaluation={"clients": 60, "metrics": {"accuracy": told}})
    assert re.search(r"accuracy on devices\s+│ 0.812, noise 0.021; groups 0.8, 0.82", shown)


def test_an_error_leaves_the_terminal_usable() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True)
    progress = ConsoleProgress(console)
    progress.began(CONFIG, 0, "")
    with pytest.raises(KeyError), progress:
        raise KeyError
    assert file.getvalue().rfind(SHOW_CURSOR) > file.getvalue().rfind(HIDE_CURSOR) >= 0
