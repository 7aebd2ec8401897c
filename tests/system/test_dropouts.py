"""Clients that fail are tolerated, or the run ends in one sentence and can be resumed when they work again."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Message

import fedsketch.client.app
from tests.small import small

TINY = small("rounds=3 clients.retries=1 hydra.run.dir=run", clients=8)
Command = Callable[..., None]
SECAGG = ["none", "pairwise"]


@pytest.fixture
def break_clients(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """From now on these clients raise when asked to train."""
    genuine, broken = fedsketch.client.app.app, set()

    def app(message: Message, context: Context) -> Message:
        training = message.metadata.message_type == "train"
        if training and context.node_config["partition-id"] in broken:
            raise RuntimeError("the battery is empty")
        return genuine(message, context)

    monkeypatch.setattr(fedsketch.client.app, "app", app)

    def choose(clients: set[int]) -> None:
        broken.clear()
        broken.update(clients)

    return choose


def _rows(folder: Path) -> list[tuple[int, int]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["clients"], row["dropped"]) for row in rows]


@pytest.mark.parametrize("secagg", SECAGG)
def test_tolerated_dropouts_are_counted(
    fedsketch: Command, break_clients: Callable[[set[int]], None], tmp_path: Path, secagg: str
) -> None:
    break_clients({1, 6})
    fedsketch(*TINY, f"secagg={secagg}", "clients.tolerated_dropouts=0.25")
    assert _rows(tmp_path / "run") == [(6, 2)] * 3
    log = (tmp_path / "run" / "run.log").read_text()
    assert "client 1" in log
    assert "battery" in log


@pytest.mark.parametrize("secagg", SECAGG)
def test_too_many_stop_the_run_and_a_resume_plays_what_the_budget_leaves(
    fedsketch: Command,
    break_clients: Callable[[set[int]], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    secagg: str,
) -> None:
    break_clients({1, 5, 6})
    once = ["clients.tolerated_dropouts=0.25", "clients.retries=0"]
    with pytest.raises(SystemExit) as ended:
        fedsketch(*TINY, f"secagg={secagg}", *once)
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedsketch: Round 1 failed 1 times")
    assert "resume" in line
    assert _rows(tmp_path / "run") == []

    break_clients(set())
    # A lost attempt is charged against the budget, so fewer rounds are left than were planned.
    with pytest.raises(SystemExit) as ended:
        fedsketch("resume=run")
    assert ended.value.code == 1
    assert "attempt without a result is charged too" in capsys.readouterr().err
    rows = _rows(tmp_path / "run")
    assert rows == [(8, 0)] * 2
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["epsilon"]["server"] <= 8.0
    assert summary["stopped"]
