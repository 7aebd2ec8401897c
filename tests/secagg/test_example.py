"""The example learns, on the grid of these tests instead of Ray."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.clientapp import ClientApp


def test_the_example_learns(
    in_process_grid: Callable[[ClientApp, Iterable[int]], Any],
) -> None:
    path = Path(__file__).parents[2] / "examples" / "secagg_fedavg" / "app.py"
    spec = importlib.util.spec_from_file_location("secagg_fedavg_example", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    grid = in_process_grid(example.app, range(100, 110))
    result = example.learn(grid, rounds=6)
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], example.TRUTH, atol=0.05)
    assert result.train_metrics_clientapp[6]["loss"] < 0.02
