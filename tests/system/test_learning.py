"""Runs learn what they should."""

import json
from collections.abc import Callable
from pathlib import Path


def test_fedavg_reaches_85_percent_on_digits(
    fedsketch: Callable[..., None], tmp_path: Path
) -> None:
    """No noise and a fixed seed: 89.4 % on every processor that was tried, and 88 % with another seed."""
    fedsketch(
        "strategy=fedavg",
        "seed=0",
        "rounds=15",
        "clients.total=20",
        "clients.per_round=20",
        "evaluate_every=15",
        "hydra.run.dir=run",
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["accuracy"] >= 0.85
    assert summary["epsilon"] == {"model": None, "client": None, "server": None}
    assert "NOT PRIVATE" in summary["guarantee"]
