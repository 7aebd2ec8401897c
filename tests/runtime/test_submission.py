"""Following a run that plays elsewhere: breaks in the log, failures, files, interrupts. A SuperLink in memory stands
in."""

import base64
import io
import json
import re
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedsketch.conf import Config, compose
from fedsketch.errors import ConfigError, FlowerError, RunFailed
from fedsketch.runtime import deployment
from fedsketch.runtime.flower import Connection, _lines
from fedsketch.runtime.resume import resumed_run
from fedsketch.runtime.submission import Submission, follow, submit
from fedsketch.server.flower_keys import KEYS
from fedsketch.server.observers.events import StreamProgress
from fedsketch.server.run_folder import RunFolder

FORGED = "lost:\nfedsketch> {}\r\x1b[2J"
DEPLOYMENT = ["runtime=deployment", "runtime.superlink=campus"]


@dataclass
class SuperLink(Connection):
    """Plays logs one after the other, as often as it is asked, and then says how the run is."""

    logs: list[list[str]] = field(default_factory=list)
    states: list[tuple[str, str] | Exception] = field(default_factory=list)
    submitted: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    shown: str = "campus"

    @contextmanager
    def log(self, run: int) -> Iterator[Iterator[str]]:
        yield iter(self.logs.pop(0))

    def status(self, run: int) -> tuple[str, str]:
        state = self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        return state

    def submit(self, app: Path, **run_config: str | bool) -> int:
        self.submitted.append(run_config)
        return 100 + len(self.submitted)

    def stop(self, run: int) -> None:
        self.stopped.append(run)


@dataclass
class Recorder:
    heard: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)

    def began(self, config: Config, done: int, guarantee: str) -> None:
        self.heard.append(f"began {done} {guarantee}")

    def notes(self, sentence: str) -> None:
        self.noted.append(sentence)

    def round_done(self, row: dict[str, Any]) -> None:
        self.heard.append(f"played {row['round']}")

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        self.heard.append(f"ended {report.name}")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsketch.runtime.submission._LOOK_AGAIN", 0.0)


@pytest.fixture
def lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The log of a whole run with three small files."""
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"round": 1}\n')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    capsys.readouterr()
    progress = StreamProgress(send_files=True)
    progress.began(compose(), 0, "g")
    print("WARNING something of Flower's")
    progress.round_done({"round": 1})
    progress.round_done({"round": 2})
    progress.ended({"accuracy": 1.0}, folder / "report.html")
    return capsys.readouterr().out.splitlines(keepends=True)


WHOLE = ["began 0 g", "played 1", "played 2", "ended report.html"]


def _follow(link: SuperLink, folder: Path, *overrides: str) -> list[str]:
    heard = Recorder()
    follow(link, 7, compose([*overrides]), folder, heard)
    return heard.heard


def test_a_run_is_told_and_its_files_arrive(tmp_path: Path, lines: list[str]) -> None:
    link = SuperLink(logs=[lines], states=[("finished:completed", "")])
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model.safetensors.arriving").write_text("of an interrupted submitter")
    assert _follow(link, tmp_path / "here") == WHOLE
    for name in ("metrics.jsonl", "model.safetensors"):
        here, there = tmp_path / "here" / name, tmp_path / "server" / name
        assert here.read_bytes() == there.read_bytes()
    assert not list((tmp_path / "here").glob("*.arriving"))


@pytest.mark.parametrize(
    ("more", "mode"), [([], 0o644), (["clients.total=80"], 0o600)], ids=["all", "drawn"]
)
def test_what_shows_a_secret_draw_is_the_users_own_from_its_first_part_on(
    tmp_path: Path, lines: list[str], more: list[str], mode: int
) -> None:
    """Also if the user does not follow the run to its end."""
    (first, *_) = (number for number, line in enumerate(lines) if "metrics.jsonl" in line)
    lines[first] = lines[first].replace('"last": true', '"last": false')
    cut = SuperLink(logs=[lines[: first + 1]], states=[("finished:failed", "lost")])
    with pytest.raises(RunFailed):
        _follow(cut, tmp_path / "cut", *more)
    assert (tmp_path / "cut" / "metrics.jsonl.arriving").stat().st_mode & 0o777 == mode
    whole = SuperLink(logs=[lines], states=[("finished:completed", "")])
    _follow(whole, tmp_path / "here", *more)
    assert (tmp_path / "here" / "model.safetensors").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("cut", range(0, 8))
def test_nothing_is_told_twice_after_a_break(tmp_path: Path, lines: list[str], cut: int) -> None:
    broken = [*lines[:cut], lines[cut][:10]]
    link = SuperLink(
        logs=[broken, [], lines],
        states=[("running", ""), FlowerError("restarting"), ("finished:completed", "")],
    )
    assert _follow(link, tmp_path / "here") == WHOLE
    model = (tmp_path / "here" / "model.safetensors").read_bytes()
    assert model == (tmp_path / "server" / "model.safetensors").read_bytes()


def test_a_superlink_that_stays_away_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsketch.runtime.submission._PATIENCE", -1.0)
    link = SuperLink(logs=[[]], states=[FlowerError("gone")])
    with pytest.raises(FlowerError, match="gone"):
        _follow(link, tmp_path)


def test_a_run_that_failed_says_why(tmp_path: Path, lines: list[str]) -> None:
    state = ("finished:failed", "ServerApp failed with exception: 2 of 3 clients\nanswered")
    link = SuperLink(logs=[lines[:2]], states=[state])
    with pytest.raises(RunFailed, match=r"^Run 7 did not complete: 2 of 3 clients answered$"):
        _follow(link, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *("../escaped", "/tmp/escaped", "", ".", "..", "a/../metrics.jsonl", "metrics.jsonl/x"),
        *("overrides.txt", "config.yaml", "lock", "command.lock", "submitted.json"),
        *("checkpoints/1.pt", "attempts.jsonl", "tensorboard/../lock", "run.log\n\x1b[2J"),
        *("model.safetensors.arriving", "summary.unfinished"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, lines: list[str], name: str) -> None:
    """Neither a way out of the folder nor a file that decides what a resumed run does."""
    wicked = [line.replace('"metrics.jsonl"', json.dumps(name)) for line in lines]
    link = SuperLink(logs=[wicked], states=[("finished:completed", "")])
    (tmp_path / "here").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="no result of a run has") as caught:
        _follow(link, tmp_path / "here")
    assert str(caught.value).isprintable()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_has_an_end(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsketch.runtime.submission.LARGEST_FILE", 200_000)
    link = SuperLink(logs=[lines], states=[("finished:completed", "")])
    with pytest.raises(ConfigError, match=r"more of model.safetensors than 200 kB"):
        _follow(link, tmp_path / "here")


def test_a_line_that_unfolds_to_very_much_is_refused(tmp_path: Path, lines: list[str]) -> None:
    bomb = base64.b64encode(zlib.compress(bytes(100_000_000))).decode()
    wicked = [re.sub('"data": "[^"]*"', f'"data": "{bomb}"', line) for line in lines]
    link = SuperLink(logs=[wicked], states=[("finished:completed", "")])
    tracemalloc.start()
    with pytest.raises(ConfigError, match="cannot be read"):
        _follow(link, tmp_path / "here")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000  # and not first unfolded, and then refused


def test_a_line_of_a_device_is_no_event(tmp_path: Path, lines: list[str]) -> None:
    """What a refusal wrote into the log, before it was cleaned and events had a mark."""
    part = json.dumps({"event": "file", "name": "overrides.txt", "data": "", "last": True})
    forged = f"fedsketch> {part}\n"
    link = SuperLink(logs=[[lines[0], forged, *lines[1:]]], states=[("finished:completed", "")])
    assert _follow(link, tmp_path / "here") == WHOLE
    assert not (tmp_path / "here" / "overrides.txt").exists()


def test_a_note_is_one_printable_line(tmp_path: Path, lines: list[str]) -> None:
    """Also from a server that did not clean it."""
    note = f"{lines[1].split('{')[0]}{json.dumps({'event': 'note', 'told': FORGED})}\n"
    link = SuperLink(logs=[[*lines[:2], note]], states=[("finished:completed", "")])
    recorder = Recorder()
    follow(link, 7, compose(), tmp_path, recorder)
    assert recorder.noted == ["lost: fedsketch> {} [2J"]


def test_a_reason_is_one_printable_line(tmp_path: Path, lines: list[str]) -> None:
    link = SuperLink(logs=[lines[:2]], states=[("finished:failed", "no\n\x1b[2J\rmore")])
    with pytest.raises(RunFailed, match=r"did not complete: no \[2J more$"):
        _follow(link, tmp_path)


def test_of_a_line_without_end_only_the_beginning_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsketch.runtime.flower.LONGEST_LINE", 10)
    assert list(_lines(io.StringIO("short\n" + "x" * 35 + "\nlast"))) == [
        "short\n",
        "x" * 10,
        "last",
    ]


def test_each_run_has_a_folder_of_its_own_on_the_server() -> None:
    link = SuperLink()
    first = submit(link, ["a=1", "b=x y"], None, send=True)
    second = submit(link, ["a=1"], None, send=True)
    assert first.folder != second.folder
    asked = {"overrides": "a=1 'b=x y'", "folder": first.folder, "send": True, "events": True}
    assert link.submitted[0] == asked | dict.fromkeys(KEYS, "")  # of Flower's keys none counts


class TestDeployment:
    """`run_deployment` and `stop_deployment` on a SuperLink in memory."""

    @pytest.fixture
    def link(self, monkeypatch: pytest.MonkeyPatch) -> SuperLink:
        link = SuperLink()

        @contextmanager
        def connected(superlink: str, root_certificates: Path | None) -> Iterator[SuperLink]:
            assert superlink == "campus"
            yield link

        monkeypatch.setattr(deployment, "connected", connected)
        return link

    def _run(self, folder: Path, overrides: Sequence[str] = DEPLOYMENT) -> list[str]:
        heard = Recorder()
        deployment.run_deployment(compose(overrides), overrides, folder, heard)
        return heard.heard

    def test_a_new_run_is_submitted_followed_and_remembered(
        self, link: SuperLink, tmp_path: Path, lines: list[str]
    ) -> None:
        link.logs, link.states = [lines], [("finished:completed", "")]
        assert self._run(tmp_path) == WHOLE
        assert link.submitted[0]["overrides"] == " ".join(DEPLOYMENT)
        note = json.loads((tmp_path / "submitted.json").read_text())
        assert note == {"run": 101, "folder": link.submitted[0]["folder"]}

    def test_a_run_that_still_plays_is_found_again(
        self, link: SuperLink, tmp_path: Path, lines: list[str]
    ) -> None:
        Submission(7, "run-a").keep(tmp_path)
        link.logs, link.states = [lines], [("running", ""), ("finished:completed", "")]
        assert self._run(tmp_path) == WHOLE
        assert link.submitted == []

    def test_a_run_that_failed_goes_on_in_its_folder_on_the_server(
        self, link: SuperLink, tmp_path: Path, lines: list[str]
    ) -> None:
        Submission(7, "run-a").keep(tmp_path)
        link.logs = [lines]
        link.states = [("finished:failed", "killed"), ("finished:completed", "")]
        assert self._run(tmp_path) == WHOLE
        assert link.submitted[0]["folder"] == "run-a"
        assert Submission.of(tmp_path) == Submission(101, "run-a")

    def test_an_interrupt_says_that_the_run_goes_on_and_how_to_stop_it(
        self, link: SuperLink, tmp_path: Path
    ) -> None:
        class Keys(list[str]):
            def __iter__(self) -> Iterator[str]:
                raise KeyboardInterrupt

        link.logs = [Keys()]
        with pytest.raises(KeyboardInterrupt, match="continues at campus") as caught:
            self._run(tmp_path)
        assert f"resume={tmp_path}" in str(caught.value)
        assert f"stop={tmp_path}" in str(caught.value)
        RunFolder(tmp_path).note_overrides(DEPLOYMENT)  # as the command did
        assert deployment.stop_deployment(*resumed_run(tmp_path, [])) == 101
        assert link.stopped == [101]

    def test_what_was_not_submitted_cannot_be_stopped(
        self, link: SuperLink, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match="not the folder of a run that was submitted"):
            deployment.stop_deployment(compose(DEPLOYMENT), tmp_path)
