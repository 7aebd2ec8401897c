"""Reports of made-up runs: what they show, what they need, and how they refuse."""

import json
import math
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fedsketch.errors import ReportError
from fedsketch.server.report.command import main
from fedsketch.server.report.compared_metric import judged_by
from fedsketch.server.report.comparison import compare
from fedsketch.server.report.number_format import best_guess
from fedsketch.server.report.run_page import write_report
from fedsketch.server.report.run_record import read_run
from tests.server.report.made_runs import (
    _GUARANTEE,
    Outline,
    assert_self_contained,
    make_run,
    page_of,
)


def test_report_shows_every_section(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", extra={"sketch_energy": 0.7, "rank": 12}))
    outline = Outline(page)
    assert outline.captions == [
        *("Accuracy", "Loss", "Epsilon", "Traffic", "Time", "Signal-to-noise"),
        *("rank", "Classes"),
    ]
    assert len(outline.pictures) == len(outline.captions)
    assert "Accuracy. Accuracy: 90 % in round 6." in outline.pictures
    assert (
        "Epsilon. model: 8 in round 6; client: 16 in round 6; server: 40 in round 6."
        in outline.pictures
    )
    assert "<h1>dp_fedavg on digits</h1>" in page
    assert "model mlp (2,410 parameters)" in page
    assert _GUARANTEE in page
    for tile in (
        "90.0 %<",
        ">8<",
        ">16<",
        ">40<",
        "at delta 1e-05",
        "2 kB<",
        "3 kB<",
        "1 min 15 s<",
    ):
        assert tile in page
    assert "budget (model)" in page
    words = "Against model: all who see models.</p><p>Against client: 2 of them.</p><p>Against server: whoever runs it."
    assert words in page
    assert "NOT PRIVATE" not in page
    assert "width: 32" in page[page.index("<details>") :]


def test_a_budget_that_binds_another_than_the_configuration_names_is_labelled(
    tmp_path: Path,
) -> None:
    told = {"budget_against": "eavesdropper (r_secret)"}
    page = page_of(make_run(tmp_path / "run", extra=told))
    assert "budget: 8 against eavesdropper (r_secret)" in page
    assert "budget: 8 against model" not in page


def test_pages_are_self_contained_and_ids_unique(tmp_path: Path) -> None:
    many = make_run(tmp_path / "a", clients=80)  # a heat map: an embedded image
    few = make_run(tmp_path / "b", clients=3)
    compared = compare([many, few], tmp_path / "comparison.html").read_text()
    for page in (page_of(many), page_of(few), compared):
        assert_self_contained(page)
        ids = Outline(page).ids
        assert ids
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'(?:href="|url\()#([\w-]+)', page)) <= set(ids)


def test_few_clients_are_bars_and_many_a_heat_map(tmp_path: Path) -> None:
    assert "data:image/png" not in page_of(make_run(tmp_path / "few", clients=50, rounds=0))
    assert "data:image/png" in page_of(make_run(tmp_path / "many", clients=51, rounds=0))


def test_same_input_gives_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", clients=60)
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    other = make_run(tmp_path / "other")
    first = compare([run, other], tmp_path / "one.html").read_bytes()
    assert compare([run, other], tmp_path / "two.html").read_bytes() == first


def test_threads_report_as_one_does(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(i), rounds=2 + i, brief=True) for i in range(3)]
    alone = [page_of(run) for run in runs]
    threads = [threading.Thread(target=write_report, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(run / "report.html").read_text() for run in runs] == alone


def test_killed_run_has_a_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:4]) + lines[4][:20])
    page = page_of(run)
    assert "This run has not finished: round 4 of 6 is the last one recorded." in page
    assert "60.0 %<" in page
    assert "2 s<" in page  # four rounds of half a second
    assert "The guarantee is stated when the run ends" in page


def test_metrics_alone_suffice(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False)
    (run / "config.yaml").unlink()
    page = page_of(run)
    assert "Epsilon" in Outline(page).captions
    assert "config.yaml is missing." in page
    (run / "metrics.jsonl").write_text("")
    assert "No round has been recorded yet." in page_of(run)
    (run / "metrics.jsonl").write_text('{"round": 1}\n')
    assert Outline(page_of(run)).captions == []


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 7, "accuracy": 0.1, "loss": NaN, "seconds": {"round": Infinity}}\n')
    pictures = Outline(page_of(run)).pictures
    assert "Loss. Loss: 0.3333 in round 6." in pictures
    assert "A round takes 0.5 s in the mean." in pictures


def test_run_without_privacy_claims_none(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", epsilon=None, randomness="seeded"))
    assert (
        page.count("NOT PRIVATE: nothing is noised.") == 2
    )  # before any number, and as the guarantee
    assert page.count("no guarantee") == 3  # model, client and server
    assert not {"Epsilon", "Signal-to-noise"} & set(Outline(page).captions)


@pytest.mark.parametrize("finished", [True, False])
def test_seeded_noise_is_called_not_private(tmp_path: Path, finished: bool) -> None:
    warning = "NOT PRIVATE: privacy.randomness=seeded" if finished else "NOT PRIVATE: its noise"
    assert warning not in page_of(make_run(tmp_path / "secret", finished=finished, brief=True))
    seeded = make_run(tmp_path / "seeded", randomness="seeded", finished=finished, brief=True)
    assert warning in page_of(seeded)


def test_epsilon_is_put_into_words_where_it_holds(tmp_path: Path) -> None:
    assert "In words: somebody who thinks that one" in page_of(make_run(tmp_path / "private"))
    plain = make_run(tmp_path / "plain", strategy="fedavg", epsilon=None)
    assert "In words:" not in page_of(plain)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 9.0])
@pytest.mark.parametrize("delta", [0.0, 0.01, 0.5])
def test_no_guess_is_better_than_the_best_and_one_is_as_good(epsilon: float, delta: float) -> None:
    """All pairs of chances on a grid that the definition allows."""
    chances = [i / 400 for i in range(401)]
    grow = math.exp(epsilon)
    best = max(
        (p + 1 - q) / 2
        for p in chances
        for q in chances
        if p <= grow * q + delta and 1 - q <= grow * (1 - p) + delta
    )
    assert best <= best_guess(epsilon, delta) + 1e-12
    assert best >= best_guess(epsilon, delta) - 0.005


def test_early_stop_is_told(tmp_path: Path) -> None:
    stopped = {"stopped": "Stopped after round 6: no budget."}
    run = make_run(tmp_path / "run", summary=stopped, brief=True)
    assert "Stopped after round 6: no budget." in page_of(run)


def test_dropouts_are_drawn(tmp_path: Path) -> None:
    assert "Dropouts" in page_of(make_run(tmp_path / "torn", extra={"dropped": 1}))


def test_everything_is_escaped(tmp_path: Path) -> None:
    bad = "<b onload='x'>&\"$y"
    run = make_run(
        tmp_path / "<b>run",
        strategy=bad,
        extra={bad: 1, "epsilon": {bad: 3.0, "model": 2.0}},
        summary={"guarantee": bad, "stopped": bad, "versions": {bad: bad}},
        settings={"seed": bad, "data": {"name": bad}, bad: bad},
    )
    compared = compare([run, make_run(tmp_path / "other")], tmp_path / "comparison.html")
    for page in (page_of(run), compared.read_text()):
        Outline(page)
        assert "<b" not in page.replace("<body", "")
        assert "&lt;b onload" in page


def test_one_folder_rewrites_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", brief=True)
    (run / "report.html").write_text("old")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert "<h1>" in (run / "report.html").read_text()


def _rewrite(run: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps({"round": i, **row}) + "\n" for i, row in enumerate(rows, start=1))
    (run / "metrics.jsonl").write_text(text)
    return run


def test_runs_of_another_task_are_shown_by_its_own_metrics(tmp_path: Path) -> None:
    """Lower is better, and nothing is a percentage."""
    run = make_run(tmp_path / "run", settings={"task": {"name": "regression"}}, brief=True)
    page = page_of(_rewrite(run, [{"rmse": value} for value in (5.0, 2.0, 3.0)]))
    assert Outline(page).captions[0] == "Rmse"
    assert "<dt>Rmse</dt><dd>3<span>best 2 in round 2</span>" in page
    assert judged_by([read_run(run)]).name == "rmse"


def test_what_a_sketch_tells_is_explained_and_left_out_where_flat(tmp_path: Path) -> None:
    rows = [{"sketch_energy": energy, "sketch_rank": 0.0} for energy in (0.5, 0.75)]
    page = page_of(_rewrite(make_run(tmp_path / "run", brief=True), rows))
    assert "sketch_energy" in Outline(page).captions
    assert "sketch_rank" not in Outline(page).captions
    assert "that the sketch sees" in page


def spoil(run: Path, kind: str) -> list[str]:
    """Break a run folder, or the call, in one way; returns the arguments to try."""
    if kind == "no folder":
        return [str(run / "nowhere")]
    if kind == "no run":
        (run / "metrics.jsonl").unlink()
    elif kind == "bad line":
        (run / "metrics.jsonl").write_text('{"round": 1}\n{"round": \n{"round": 3}\n')
    elif kind == "bad finished line":
        (run / "metrics.jsonl").write_text('{"round": 1}\n{"round": \n')
    elif kind == "no round":
        (run / "metrics.jsonl").write_text("[1]\n")
    elif kind == "bad config":
        (run / "config.yaml").write_text("a: [")
    elif kind == "bad summary":
        (run / "summary.json").write_text("{")
    elif kind == "report in the way":
        (run / "report.html").mkdir()
    elif kind == "bad output":
        return [str(run), "-o", str(run / "missing" / "comparison.html")]
    elif kind == "bad option":
        return [str(run), "--colour"]
    return [str(run)]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("no folder", "nowhere is not a folder: name a run folder"),
        ("no run", "run holds no run: there is no metrics.jsonl"),
        ("bad line", "metrics.jsonl, line 2, is not JSON"),
        ("bad finished line", "metrics.jsonl, line 2, is not JSON"),
        ("no round", "metrics.jsonl, line 1, has no round number"),
        ("bad config", "config.yaml is not YAML: correct or delete it."),
        ("bad summary", "summary.json is not JSON: correct or delete it."),
        ("report in the way", "report.html cannot be written (Is a directory)"),
        ("bad output", "comparison.html cannot be written (No such file or directory)"),
        ("bad option", "Unrecognized arguments: --colour"),
    ],
)
def test_bad_input_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, sentence: str
) -> None:
    arguments = spoil(make_run(tmp_path / "run", brief=True), kind)
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_no_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert "DIR" in capsys.readouterr().err


def test_functions_raise_the_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="is no run folder"):
        write_report(tmp_path)
    with pytest.raises(ReportError, match="is no run folder"):
        compare([tmp_path], tmp_path / "comparison.html")


def test_report_needs_no_torch() -> None:
    code = (
        "import sys, fedsketch.server.report.command; sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
