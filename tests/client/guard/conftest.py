"""Enrolled devices in folders of their own, one device alone, and an empty ledger."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.policy import Policy
from tests.client.guard.enrolled import POLICY, Fleet


@pytest.fixture
def make_fleet(tmp_path: Path) -> Callable[..., Fleet]:
    def build(n: int = 6, policy: Policy = POLICY, **changes: Any) -> Fleet:
        return Fleet(tmp_path, n, replace(policy, **changes))

    return build


@pytest.fixture
def guard(make_fleet: Callable[..., Fleet]) -> DeviceGuard:
    """One device alone: enough for what is refused before any peer matters."""
    return make_fleet(1).guard(2)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    new = Ledger(tmp_path / "ledger.jsonl")
    new.create()
    return new
