"""No process outlives what started it, whatever ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsketch.runtime.children import Children, descendants

NEEDS_PROC = pytest.mark.skipif(not Path("/proc").exists(), reason="orphans are found in /proc")
# A program that starts another one in a session of its own, as Flower's programs do, and notes both.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(sys.argv[1] + ".unfinished", "w") as file:
    print(os.getpid(), child.pid, file=file)
os.rename(sys.argv[1] + ".unfinished", sys.argv[1])
time.sleep(600)
"""
# Started in the background of a shell, it would ignore SIGINT.
PARENT = f"""
import signal, sys, time
from pathlib import Path
from fedsketch.runtime.children import Children

signal.signal(signal.SIGINT, signal.default_int_handler)
with Children(Path(sys.argv[1])) as children:
    children.start("family", [sys.executable, "-S", "-c", {FAMILY!r}, sys.argv[1] + "/pids"], {{}})
    time.sleep(600)
"""


def _family(folder: Path) -> set[int]:
    deadline = time.monotonic() + 60
    while not (folder / "pids").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return set(map(int, (folder / "pids").read_text().split()))


def _wait_for_the_end_of(pids: set[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := descendants(pids):
        assert time.monotonic() < deadline, f"{left} still run"
        time.sleep(0.05)


def test_a_program_and_its_children_end_with_the_block(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with Children(tmp_path) as children:
        children.start("family", [sys.executable, "-S", "-c", FAMILY, pids], {})
        family = _family(tmp_path)
        assert descendants(family) == family
        assert not children.ended("family")
    assert not descendants(family)


def test_they_end_after_an_exception_too(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    families: list[set[int]] = []

    def fail() -> None:
        with Children(tmp_path) as children:
            children.start("family", [sys.executable, "-S", "-c", FAMILY, pids], {})
            families.append(_family(tmp_path))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert not descendants(families[0])


def test_a_stopped_program_ends_too(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with Children(tmp_path) as children:
        children.start("family", [sys.executable, "-S", "-c", FAMILY, pids], {})
        family = _family(tmp_path)
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
    assert not descendants(family)


def test_one_that_ignores_the_request_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    monkeypatch.setattr("fedsketch.runtime.children._GRACE", 0.5)
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAMILY
    with Children(tmp_path) as children:
        children.start("family", [sys.executable, "-S", "-c", ignoring, pids], {})
        family = _family(tmp_path)
    assert not descendants(family)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_they_end_when_the_parent_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stderr=subprocess.DEVNULL
    )
    try:
        family = _family(tmp_path)
        parent.send_signal(number)
        parent.wait(30)
        _wait_for_the_end_of(family, 30)
    finally:
        parent.kill()


@NEEDS_PROC
def test_what_a_killed_program_leaves_behind_ends_with_the_block(tmp_path: Path) -> None:
    """Its child belongs to init then, and no tree of processes leads to it."""
    pids = tmp_path / "pids"
    with Children(tmp_path) as children:
        children.start("family", [sys.executable, "-S", "-c", FAMILY, pids], {})
        family = _family(tmp_path)
        os.kill(children.pid("family"), signal.SIGKILL)
        _wait_for_the_end_of({children.pid("family")}, 10)
        assert len(descendants(family)) == 1
    assert not descendants(family)


@NEEDS_PROC
def test_it_ends_also_when_the_program_is_stopped_by_its_name(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        families = {}
        for name in ("one", "one-and-two"):
            (tmp_path / name).mkdir()
            place = tmp_path / name / "pids"
            children.start(name, [sys.executable, "-S", "-c", FAMILY, place], {})
            families[name] = _family(tmp_path / name)
        os.kill(children.pid("one"), signal.SIGKILL)
        children.stop("one")
        assert not descendants(families["one"])
        assert descendants(families["one-and-two"]) == families["one-and-two"]
    assert not descendants(families["one-and-two"])


@NEEDS_PROC
def test_it_ends_when_the_parent_is_killed_after_the_program(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stderr=subprocess.DEVNULL
    )
    try:
        family = _family(tmp_path)
        program = int((tmp_path / "pids").read_text().split()[0])
        os.kill(program, signal.SIGKILL)
        parent.send_signal(signal.SIGKILL)
        parent.wait(30)
        _wait_for_the_end_of(family, 30)
    finally:
        parent.kill()


def test_the_log_says_why_a_program_ended(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        children.start("short", [sys.executable, "-c", "raise SystemExit('no such port')"], {})
        while not children.ended("short"):
            time.sleep(0.05)
        assert children.end_of_log("short") == "no such port"
