"""Several made-up runs side by side: what is compared, by which metric, and what never shares a line."""

import re
from pathlib import Path

import pytest

from fedsketch.server.report.command import main
from fedsketch.server.report.compared_metric import judged_by
from fedsketch.server.report.comparison import compare
from fedsketch.server.report.comparison_tables import results
from fedsketch.server.report.groups import grouped
from fedsketch.server.report.plots import COLORS, colors
from fedsketch.server.report.run_record import read_run
from tests.server.report.made_runs import Outline, make_run


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
    sentence = "fedsketch-report: No run has a number 'f1': ask for one of accuracy, validation.accuracy, loss.\n"
    assert capsys.readouterr().err == sentence


def test_tasks_without_a_common_metric_are_compared_by_the_loss(tmp_path: Path) -> None:
    names = ("classification", "regression", "not_installed_here")
    for name in names:
        make_run(tmp_path / name, settings={"task": {"name": name}})
    assert judged_by([read_run(tmp_path / name) for name in names]).name == "loss"


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


def test_a_broken_folder_is_left_out_of_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [make_run(tmp_path / name, brief=True) for name in ("a", "b", "c")]
    (folders[1] / "metrics.jsonl").write_text("garbage\n\n")
    assert main([*map(str, folders), "-o", str(tmp_path / "page.html")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedsketch-report: Left out: ")
    assert str(folders[1]) in line
    assert "Comparison of 2 runs" in (tmp_path / "page.html").read_text()
