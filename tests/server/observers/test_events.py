"""What a run prints is what its submitter reads."""

from pathlib import Path

import pytest

from fedsketch.conf import compose
from fedsketch.server.observers.events import LARGEST_FILE, Part, StreamProgress, read_event

ROW = {"round": 1, "accuracy": 0.5, "epsilon": {"model": None, "server": 1.5}}


def _events(printed: str) -> list[tuple[str, dict[str, object]]]:
    events = [read_event(line) for line in printed.splitlines()]
    return [event for event in events if event is not None]


def _joined(events: list[tuple[str, dict[str, object]]]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for kind, facts in events:
        if kind == "file":
            part = Part(**facts)  # type: ignore[arg-type]
            files[part.name] = files.get(part.name, b"") + part.content()
    return files


def test_events_come_back_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    progress = StreamProgress(send_files=False)
    progress.began(compose(), 3, "A guarantee.")
    progress.round_done(ROW)
    progress.ended({"accuracy": 0.5}, tmp_path / "report.html")
    printed = capsys.readouterr().out
    assert _events("WARNING: something else\n" + printed) == [
        ("began", {"done": 3, "guarantee": "A guarantee."}),
        ("played", {"row": ROW}),
        ("ended", {"summary": {"accuracy": 0.5}, "report": str(tmp_path / "report.html")}),
    ]


def test_files_come_back_whole_and_checkpoints_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsketch.server.observers.events.LARGEST_FILE", 1_000_000)
    contents = {
        "empty": b"",
        "model.safetensors": bytes(range(256)) * 2000,  # more than one line
        "exact": b"x" * (128 * 1024),
        "plots/a.svg": b"<svg/>",
    }
    stay = {"checkpoints/1.pt": b"c", "processes/ca.key": b"secret", "huge": b"h" * 1_000_001}
    for name, content in {**contents, **stay}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    StreamProgress(send_files=True).ended({}, tmp_path / "report.html")
    events = _events(capsys.readouterr().out)
    assert _joined(events) == contents
    assert events[-1][0] == "ended"
    last = [facts["name"] for kind, facts in events if kind == "file" and facts["last"]]
    assert sorted(map(str, last)) == sorted(contents)


def test_a_line_that_was_cut_off_is_no_event() -> None:
    assert read_event('fedsketch> {"event": "played", "row": {"ro') is None
    assert read_event("fedsketch> []") is None
    assert LARGEST_FILE < 2**30
