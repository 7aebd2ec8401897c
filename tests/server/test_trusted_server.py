"""A run whose server is trusted: it says so wherever epsilons stand, and keeps none for the server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsketch.conf import compose
from fedsketch.server.plan import make_plan
from fedsketch.server.report.run_page import write_report
from fedsketch.server.run_folder import RunFolder
from tests.small import plain

Play = Callable[..., Any]
CSGM = ("strategy=csgm", "strategy.rate=0.5", "rounds=2", "privacy.epsilon=4")


def test_plan_metrics_and_summary_say_trusted(play: Play) -> None:
    played = play(*CSGM)
    for row in played.rows:
        assert set(row["epsilon"]) == {"model", "client"}
        assert row["server"] == "trusted"
        assert 0 <= row["clipped_fraction"] <= 1
    assert played.rows[-1]["epsilon"]["model"] == pytest.approx(4, rel=1e-3)
    plan = make_plan(compose(plain(*CSGM)))
    assert plan.adversaries["server"] == played.summary["adversaries"]["server"] == "trusted"
    assert set(plan.epsilon) == {"model", "client"}
    assert plan.upload_size == 10  # of 21 numbers
    assert "The server is trusted" in plan.guarantee
    assert played.guarantee == plan.guarantee


def test_the_report_says_trusted(play: Play, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    play(*CSGM)
    page = write_report(folder.path).read_text()
    assert "<dt>Epsilon, server</dt><dd>trusted<span>" in page
    assert "<p>The server: trusted.</p>" in page
    assert "<p>Against model: " in page
    assert "clipped_fraction" not in page


def test_the_planned_traffic_is_what_travels(play: Play) -> None:
    """Up to the lengths of masks: 6 clients of 1,300 numbers with rate 0.1 and 2 bytes each, over 2 rounds; 5 standard
    deviations."""
    large = (*CSGM, "data.shape=[1,8,8]", "data.classes=20", "strategy.rate=0.1")
    played, plan = play(*large), make_plan(compose(plain(*large)))
    assert plan.parameters == 1300
    deviation = 2 * (1300 * 0.1 * 0.9) ** 0.5
    for row in played.rows:
        assert abs(row["uplink_bytes"] - plan.uplink_bytes) < 5 * deviation / 6**0.5
    first, second = (row["downlink_bytes"] for row in played.rows)
    assert second == pytest.approx(plan.downlink_bytes, rel=0.02)
    assert 1000 < first - second < 2500  # the configuration
