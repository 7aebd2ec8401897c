"""One thread per process: arrays are small here, and processes that share two cores would wait for each other's threads."""

import os

import pytest

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported, and for the processes that tests start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start many processes come first: the other workers have something to do until they end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
