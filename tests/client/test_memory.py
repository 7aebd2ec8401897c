"""What a device remembers from round to round, and what the accountant is told of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from flwr.app import RecordDict

from fedsketch.client.app import app
from fedsketch.client.workspace import memory_in
from fedsketch.conf import compose
from fedsketch.errors import UnsafeUpdateError
from fedsketch.runtime.batched_grid import BatchedGrid
from fedsketch.server.grids.stack import build_grids
from fedsketch.strategies.algorithm import Strategy
from tests.rounds import ask, coordinator_of


def test_memory_is_kept_only_where_the_strategy_declares_it() -> None:
    state = RecordDict()
    with memory_in(state, remembers=True) as memory:
        memory["residual"] = torch.ones(3)
    with memory_in(state, remembers=True) as memory:
        assert torch.equal(memory["residual"], torch.ones(3))
    with memory_in(state, remembers=False) as memory:
        assert not memory
    with (
        pytest.raises(UnsafeUpdateError, match="devices_remember"),
        memory_in(state, remembers=False) as memory,
    ):
        memory["hidden"] = torch.ones(1)


def test_a_simulated_cohort_gets_no_undeclared_memory_either(
    make_strategy: Callable[..., Strategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = make_strategy("runtime=cohort", "strategy=dome", "strategy.error_feedback=0.5")
    coordinator = coordinator_of(strategy)
    _, grid = build_grids(BatchedGrid(app, strategy.config), coordinator)
    coordinator.identify_clients(grid)
    monkeypatch.setattr(type(strategy.config.strategy), "devices_remember", False)
    with pytest.raises(UnsafeUpdateError, match="devices_remember"):
        list(grid.send_and_receive(ask(strategy, 1, grid)))


def test_only_error_feedback_remembers() -> None:
    for name in ("fedavg", "dp_fedavg", "dome", "fed_sgm", "csgm", "sgmf", "fedceo"):
        assert not compose([f"strategy={name}"]).strategy.devices_remember
    assert compose(["strategy=dome", "strategy.error_feedback=0.5"]).strategy.devices_remember
