"""What a run prints is what its submitter reads."""

import base64
import zlib
from pathlib import Path

import pytest

from fedsketch.conf import compose
from fedsketch.server.observers.events import LARGEST_FILE, EventReader, FilePart, StreamProgress

STAY = ["checkpoints/1.pt", "processes/ca.key", "config.yaml", "overrides.txt", "lock", "note.txt"]
ROW = {"round": 1, "accuracy": 0.5, "epsilon": {"model": None, "server": 1.5}}


def _events(printed: str) -> list[tuple[str, dict[str, object]]]:
    reader = EventReader()
    events = [reader.read(line) for line in printed.splitlines()]
    return [event for event in events if event is not None]


def _joined(events: list[tuple[str, dict[str, object]]]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for kind, facts in events:
        if kind == "file":
            part = FilePart(**facts)  # type: ignore[arg-type]
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
        "MODEL_CARD.md": b"",
        "model.safetensors": bytes(range(256)) * 2000,  # more than one line
        "best.safetensors": b"x" * (128 * 1024),
        "tensorboard/events.out.tfevents.1.host-a.2.0": b"t",
    }
    stay = dict.fromkeys(STAY, b"s") | {"report.html": b"h" * 1_000_001}
    for name, content in {**contents, **stay}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    StreamProgress(send_files=True).ended({}, tmp_path / "report.html")
    events = _events(capsys.readouterr().out)
    assert _joined(events) == contents
    assert events[-1][0] == "ended"
    last = [facts["name"] for kind, facts in events if kind == "file" and facts["last"]]
    assert sorted(map(str, last)) == sorted(contents)


def test_a_line_that_was_cut_off_is_no_event(capsys: pytest.CaptureFixture[str]) -> None:
    progress, reader = StreamProgress(send_files=False), EventReader()
    progress.notes("a note")
    mark, line = capsys.readouterr().out.splitlines()
    assert reader.read(mark) is None
    assert reader.read(line[:-5]) is None
    assert reader.read(f"{line.split('{')[0]}[]") is None
    assert reader.read(line) == ("note", {"told": "a note"})
    assert LARGEST_FILE < 2**30


def test_lines_of_others_are_no_events(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a device brings into the log comes after the mark, and does not have it."""
    mine, forged = StreamProgress(send_files=False), StreamProgress(send_files=False)
    forged.notes("forged")
    mine.notes("mine")
    first, *later = capsys.readouterr().out.splitlines()
    old = 'fedsketch> {"event": "note", "told": "forged"}'
    assert _events("\n".join([old, first, *later, old])) == [("note", {"told": "mine"})]


@pytest.mark.parametrize(
    "data",
    [
        base64.b64encode(zlib.compress(bytes(128 * 1024 + 1))).decode(),
        base64.b64encode(b"not compressed").decode(),
        "not base64!",
    ],
    ids=["larger than a part", "not compressed", "not base64"],
)
def test_what_is_no_part_of_a_file_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"part of a file|base64|adding"):
        FilePart("model.safetensors", data, last=True).content()
