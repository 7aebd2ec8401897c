"""What tests of several packages share.

One thread per process: arrays are small here, and processes that share two cores would wait for each other's threads.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Before torch is imported, and for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if TYPE_CHECKING:
    from fedsketch.conf import Config
    from fedsketch.strategies.algorithm import Strategy
    from tests.packages import Install


@pytest.fixture(scope="session", autouse=True)
def composed_before() -> "Iterator[dict[object, tuple[Config, Path]]]":
    """Configurations that this process has composed: they are frozen, and Hydra takes a tenth of a second for each.

    Without this a quarter of the tests' time goes into composing, often the same configuration again.
    """
    composing = import_module("fedsketch.conf.composition")
    compose = composing.compose_with_folder
    known: dict[object, tuple[Config, Path]] = {}

    def compose_once(overrides: Sequence[str]) -> "tuple[Config, Path]":
        key = (*overrides, os.getcwd())
        if key not in known:
            known[key] = compose(overrides)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composing, "compose_with_folder", compose_once)
        yield known


@pytest.fixture
def make_strategy() -> "Iterator[Callable[..., Strategy[Any]]]":
    """A strategy over small data, without secure aggregation unless asked for, as the round loop builds it.
    `coordinator_of` gives its coordinator.

    Also marks this process as one that simulates devices, until the test ends.
    """
    from fedsketch.conf import compose
    from fedsketch.runtime.environment import simulated_devices
    from fedsketch.strategies import registry
    from fedsketch.tasks.workload import Workload
    from tests.rounds import coordinator_of
    from tests.small import plain

    with ExitStack() as stack:

        def build(*overrides: str, key: int = 1) -> "Strategy[Any]":
            config = compose(plain("rounds=40", *overrides))
            stack.enter_context(simulated_devices(config))
            workload = Workload(config)
            strategy = registry.make_strategy(config, workload, workload.model())
            coordinator_of(strategy, key)
            return strategy

        yield build


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write no report: its plots would take most of the time, and have their own tests."""
    monkeypatch.setattr(
        "fedsketch.server.report.run_page.write_report", lambda path: path / "report.html"
    )


@pytest.fixture
def install(
    tmp_path: Path, composed_before: "dict[object, tuple[Config, Path]]"
) -> "Iterator[Install]":
    """Puts a package with entry points on the path, as an installer leaves it; it is gone after the test."""
    from tests.packages import installing

    with installing(tmp_path, composed_before.clear) as call:
        yield call


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start many processes come first: the other workers have something to do until they end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
