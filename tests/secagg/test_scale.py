"""A thousand devices in one process: time and the server's memory."""

from __future__ import annotations

import resource
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedsketch.secagg.server_session import RoundStage


@pytest.mark.slow
@pytest.mark.parametrize(
    ("consistency", "graph", "most_seconds"), [(True, (999, 601), 600), (False, (52, 37), 60)]
)
def test_a_thousand_clients_with_5_percent_drops(
    consistency: bool, graph: tuple[int, int], most_seconds: int, fleet: Callable[..., Any]
) -> None:
    """In the complete graph a million pairs agree on keys twice: most of the time is theirs."""
    devices = fleet(1000, dim=1000, drops=0.05, colluders=0.2, consistency=consistency)
    assert (devices.settings.degree, devices.settings.threshold) == graph
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    session = devices.run({RoundStage.MASK: devices.settings.cohort[::20]})
    seconds = time.process_time() - began
    (result,) = session.sums
    assert len(result.survivors) == 950
    np.testing.assert_array_equal(result.total, devices.expected(result.survivors))
    assert seconds < most_seconds
    # Kilobytes on Linux: the growth of the whole process, all thousand devices included.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000


def test_the_servers_memory_does_not_grow_with_clients_times_dimensions(
    fleet: Callable[..., Any],
) -> None:
    """40 clients of 200,000 numbers are 32 MB of vectors: the server holds a few of them."""
    devices = fleet(40, dim=200_000, drops=2)
    session = devices.run(until=RoundStage.MASK)
    requests = session.requests()
    tracemalloc.start()
    for node, request in requests.items():
        devices.states[node], reply = b"", devices.answer(RoundStage.MASK, node, request)
        session.receive(node, reply)
        del reply
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 800_000
