"""Reports of made-up runs: what they show, what they need, and how they refuse."""

import json
import math
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsketch.server.report.command import main
from fedsketch.server.report.comparison import compare
from fedsketch.server.report.comparison_tables import results
from fedsketch.server.report.groups import grouped
from fedsketch.server.report.judged import judged_by
from fedsketch.server.report.page import ReportError
from fedsketch.server.report.plots import COLORS, colors
from fedsketch.server.report.readable import best_guess
from fedsketch.server.report.run_page import write_report
from fedsketch.server.report.run_record import read_run

_VOID = {"meta", "br"}
_GUARANTEE = "Epsilon 8 at delta 1e-05, per client (its contribution zeroed out), against all."

_WORDS = {"server": "whoever runs it", "client": "2 of them", "model": "all who see models"}


def make_run(
    folder: Path,
    *,
    strategy: str = "dp_fedavg",
    epsilon: float | None = 8.0,
    rounds: int = 6,
    randomness: str = "secret",
    clients: int = 4,
    extra: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    finished: bool = True,
    brief: bool = False,
) -> Path:
    """A run folder as the server leaves it; a brief one has little to draw, which saves time."""
    folder.mkdir(parents=True)
    noise = None if epsilon else 0.0
    config = {
        "rounds": rounds,
        "seed": 0,
        "clients": {"total": clients, "per_round": clients},
        "data": {"name": "digits"},
        "model": {"name": "mlp", "width": 32},
        "privacy": {
            **{"unit": "client", "epsilon": epsilon, "delta": 1e-5, "clip": 0.5},
            **{"noise_multiplier": noise, "against": "model", "randomness": randomness},
        },
        "secagg": {"name": "none"},
        "runtime": {"name": "local"},
        "strategy": {"name": strategy, "lr": 0.1 if strategy == "fedavg" else 0.02},
        **(settings or {}),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = []
    for count in range(1, rounds + 1):
        spent = None if epsilon is None else epsilon * count / rounds
        row = {
            **{"round": count, "delta": 1e-5, "clients": clients, "dropped": 0},
            "accuracy": None if count % 2 else 0.9 * count / rounds,
            "loss": None if count % 2 else 2 / count,
            "epsilon": {
                "model": spent,
                "client": spent and 2 * spent,
                "server": spent and 5 * spent,
            },
            "private": randomness == "secret" and bool(epsilon),
            **{"uplink_bytes": 2000.0, "downlink_bytes": 3000.0},
            "seconds": {"round": 0.5, "clients": 0.3, "update": 0.1},
            "snr": spent and 0.5,
            **(extra or {}),
        }
        if brief:
            row = {key: row[key] for key in ("round", "accuracy")}
        lines.append(json.dumps(row) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    if finished:
        final = {
            **{"seconds": 75.0, "parameters": 2410, "stopped": None, "versions": {"torch": "2.13"}},
            "noise_multiplier": 1.5 if epsilon else 0.0,
            "guarantee": _GUARANTEE if epsilon else "NOT PRIVATE: nothing is noised.",
            "partition": {"histogram": [] if brief else [[i % 3, 5, 2] for i in range(clients)]},
            "not_private": _reason(epsilon, randomness),
            "adversaries": _WORDS,
            **(summary or {}),
        }
        (folder / "summary.json").write_text(json.dumps(final))
    return folder


def _reason(epsilon: float | None, randomness: str) -> str | None:
    if epsilon is None:
        return "nothing is noised"
    return "privacy.randomness=seeded" if randomness == "seeded" else None


class Outline(HTMLParser):
    """Checks that tags are balanced, and collects ids, captions and what the pictures are called."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.pictures: list[str] = []
        self.captions: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        if found.get("role") == "img":
            self.pictures.append(found["aria-label"] or "")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "figcaption":
            self.captions.append(data)


def page_of(folder: Path) -> str:
    return write_report(folder).read_text()


def assert_self_contained(page: str) -> None:
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?:|//\w|@import|<link|<script|\bsrc=", without_namespaces)
    for target in re.findall(r'href="([^"]*)"|url\(([^)]*)\)', page):
        assert "".join(target).startswith(("#", "data:image/png;base64,"))


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


def test_comparison_of_three_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "sweep" / "2", epsilon=2.0)
    make_run(tmp_path / "sweep" / "10", strategy="fedavg", epsilon=None, settings={"seed": 3})
    make_run(tmp_path / "sweep" / "9", epsilon=8.0, finished=False, settings={"rounds": 9})
    out = tmp_path / "comparison.html"
    assert main([str(tmp_path / "sweep"), str(tmp_path / "sweep" / "9"), "-o", str(out)]) == 0
    page = out.read_text()
    outline = Outline(page)
    assert outline.captions == [
        "Accuracy against epsilon (adversary: model)",
        "Accuracy against round",
        "Accuracy against bytes up",
        "Accuracy against bytes up and down",
    ]
    assert "90.0 % at 12 kB" in outline.pictures[2]
    assert "90.0 % at 30 kB" in outline.pictures[3]
    curves = [picture.count(": fedavg") for picture in outline.pictures]
    assert curves == [0, 1, 1, 1]  # without epsilon it is a level, not a curve
    reached, settings = _tables(page)
    assert reached[0] == [
        *("Run", "Folders", "Strategy", "Data"),
        *("Epsilon, model", "Epsilon, client", "Epsilon, server"),
        *("Accuracy", "Rounds", "Up", "Down", "Time"),
    ]
    bytes_sent, nothing = ("12 kB", "18 kB"), ("none",) * 3
    same = ("90.0 %", "6", *bytes_sent, "1 min 15 s")
    assert reached[1:] == [
        ["1", "2", "dp_fedavg", "digits", "2", "4", "10", *same],
        ["2", "9", "dp_fedavg", "digits", "8", "16", "40", "90.0 %", "6 of 9", *bytes_sent, "3 s"],
        ["3 (NOT PRIVATE)", "10", "fedavg", "digits", *nothing, *same],
    ]
    assert settings == [
        ["Setting", "1", "2", "3"],
        ["rounds", "6", "9", "6"],
        ["privacy.epsilon", "2.0", "8.0", "null"],
        ["privacy.noise_multiplier", "null", "null", "0.0"],
    ]
    printed = capsys.readouterr().out
    assert printed.strip().endswith(str(out))
    assert "6 of 9" in printed
    assert "privacy.noise_multiplier" in printed
    assert "strategy.lr" not in page + printed  # comes with the strategy


def _tables(page: str) -> list[list[list[str]]]:
    """The cells of each table of a page."""
    tables = []
    for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL):
        rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table.split("<tr>")[1:]]
        tables.append([[re.sub(r"<svg.*?</svg>", "", cell) for cell in row] for row in rows])
    return tables


def test_settings_of_one_strategy_are_compared(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / f"{lr}", settings={"strategy": {"name": "dome", "lr": lr}})
        for lr in (0.1, 0.2)
    ]
    page = compare(runs, tmp_path / "comparison.html").read_text()
    assert page.count("1: dome, strategy.lr=0.1</li>") == 1


def test_runs_that_differ_in_the_seed_alone_are_one_line_with_mean_and_deviation(
    tmp_path: Path,
) -> None:
    """Accuracies of 0.5, 0.6 and 0.7 have mean 0.6 and standard deviation 0.1."""
    for seed, accuracy in enumerate((0.5, 0.6, 0.7)):
        settings, told = {"seed": seed}, {"accuracy": accuracy}
        make_run(tmp_path / f"s{seed}", settings=settings, extra=told, brief=True)
    other = make_run(tmp_path / "other", strategy="fedavg", epsilon=None, brief=True)
    seeds = [tmp_path / f"s{seed}" for seed in range(3)]
    page = compare([*seeds, other], tmp_path / "comparison.html").read_text()
    assert re.findall(r"</svg>([^<]*)</li>", page)[0].startswith("1: dp_fedavg")
    assert page.count("<li>") == 2
    reached, _ = _tables(page)
    assert reached[1][:2] == ["1", "s0, s1, s2"]
    assert reached[1][reached[0].index("Accuracy")] == "60.0 % ± 10.0 %"
    assert reached[2][reached[0].index("Accuracy")] == "90.0 %"


def test_epsilons_against_different_adversaries_never_share_an_axis(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / bound, extra={"budget_against": bound}, settings={"note": bound})
        for bound in ("server", "model")
    ]
    captions = Outline(compare(runs, tmp_path / "page.html").read_text()).captions
    assert captions[:2] == [
        "Accuracy against epsilon (adversary: model)",
        "Accuracy against epsilon (adversary: server)",
    ]


def test_however_many_groups_there_are_each_has_a_colour_of_its_own() -> None:
    assert colors(4) == list(COLORS[:4])
    for count in (10, 11, 23, 60):
        assert len(set(colors(count))) == count


def test_runs_are_compared_by_the_metric_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for lr in (1, 2):
        told = {"loss": 3.0 / lr, "validation": {"accuracy": 0.25 * lr}}
        make_run(tmp_path / f"{lr}", extra=told, settings={"lr": lr})
    runs = [read_run(tmp_path / name) for name in "12"]
    for name, values in (("loss", ["3", "1.5"]), ("validation.accuracy", ["25.0 %", "50.0 %"])):
        cells = results(grouped(runs), judged_by(runs, name))
        column = cells.headers.index(name[0].upper() + name[1:])
        assert [row[column] for row in cells.rows] == values
    assert main([str(tmp_path), "-o", str(tmp_path / "page.html"), "--metric", "f1"]) == 1
    sentence = "No run has a number 'f1': ask for one of accuracy, validation.accuracy, loss.\n"
    assert capsys.readouterr().err == sentence


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


def test_tasks_without_a_common_metric_are_compared_by_the_loss(tmp_path: Path) -> None:
    names = ("classification", "regression", "not_installed_here")
    for name in names:
        make_run(tmp_path / name, settings={"task": {"name": name}})
    assert judged_by([read_run(tmp_path / name) for name in names]).name == "loss"


def test_what_a_sketch_tells_is_explained_and_left_out_where_flat(tmp_path: Path) -> None:
    rows = [{"sketch_energy": energy, "sketch_rank": 0.0} for energy in (0.5, 0.75)]
    page = page_of(_rewrite(make_run(tmp_path / "run", brief=True), rows))
    assert "sketch_energy" in Outline(page).captions
    assert "sketch_rank" not in Outline(page).captions
    assert "that the sketch sees" in page


def test_a_seeded_run_is_never_set_beside_a_private_one_without_its_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in the table nor in a legend, also where both share a strategy and all other settings."""
    for seeded in (False, True):
        make_run(tmp_path / str(seeded), randomness="seeded" if seeded else "secret")
    out = tmp_path / "comparison.html"
    assert main([str(tmp_path), "-o", str(out)]) == 0
    legend = re.findall(r"</svg>([^<]*)</li>", out.read_text())
    assert ["NOT PRIVATE" in label for label in legend] == [False, True]
    names = re.findall(r'<th scope="row"><svg.*?</svg>([^<]*)</th>', out.read_text())
    assert names == ["1", "2 (NOT PRIVATE)"]
    printed = capsys.readouterr().out
    assert "2 (NOT" in printed
    assert "PRIVATE)" in printed


def test_adversaries_stand_in_one_order_whatever_a_run_knows(tmp_path: Path) -> None:
    older = {"epsilon": {"server": 2.0, "model": 1.0, "eavesdropper": 0.1}}
    runs = [make_run(tmp_path / "a", extra=older), make_run(tmp_path / "b")]
    page = compare(runs, tmp_path / "comparison.html").read_text()
    assert re.findall(r"Epsilon, (\w+)", page) == ["model", "client", "server", "eavesdropper"]


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


def test_a_broken_folder_is_left_out_of_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [make_run(tmp_path / name, brief=True) for name in ("a", "b", "c")]
    (folders[1] / "metrics.jsonl").write_text("garbage\n\n")
    assert main([*map(str, folders), "-o", str(tmp_path / "page.html")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Left out: ")
    assert str(folders[1]) in line
    assert "Comparison of 2 runs" in (tmp_path / "page.html").read_text()


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
