"""The picture that explains FedCEO: what a smoothing round takes off the singular values."""

import json
from pathlib import Path

from fedsketch.server.report.run_page import write_report


def _run(folder: Path, rounds: int) -> Path:
    spectrum = [[9.0, 4.0, 0.5], [2.0, 1.0, 0.25]]
    smoothing = {"hidden.weight": {"threshold": 1.5, "spectrum": spectrum}}
    lines = [
        {"round": count, "accuracy": 0.5, **({"smoothing": smoothing} if count % 2 == 0 else {})}
        for count in range(1, rounds + 1)
    ]
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_smoothing_round_is_drawn_with_its_threshold(tmp_path: Path) -> None:
    page = write_report(_run(tmp_path / "run", 3)).read_text()
    assert page.count("Smoothing of hidden.weight") == 1
    assert "round 2: 3 of 6 singular values are left" in page
    assert "lie above the threshold 1.5" in page
    assert "1 after" in page


def test_of_many_smoothing_rounds_a_few_are_drawn_the_first_and_the_last_among_them(
    tmp_path: Path,
) -> None:
    page = write_report(_run(tmp_path / "run", 40)).read_text()
    assert page.count("singular values are left") == 6
    assert "round 2: 3 of 6" in page
    assert "round 40: 3 of 6" in page


def test_a_run_without_smoothing_has_no_such_picture(tmp_path: Path) -> None:
    assert "Smoothing" not in write_report(_run(tmp_path / "run", 1)).read_text()
