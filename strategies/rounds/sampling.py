"""Draws the cohort of a round, the clients that take part in it, as a pure function of a key and the round.

So a resumed run draws the same cohorts without a saved random generator. The key is a secret from the operating
system, unless the run is set to be reproducible: privacy amplification by sampling holds only against those who cannot
guess the draw.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsketch.conf.schema import ClientsConfig, CohortSampling
from fedsketch.errors import TooFewClients
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key

log = logging.getLogger(__name__)
_GRACE = 10.0  # seconds to wait for nodes with a partition-id, if nodes without one came first


class CohortSampler:
    """Draws the cohort of each round from the clients 0 .. total - 1."""

    def __init__(self, settings: ClientsConfig, key: int) -> None:
        self.settings = settings
        self.key = key

    def draw(self, round: int) -> list[int]:
        """Return the clients of this round, sorted."""
        total, size = self.settings.total, self.settings.per_round
        if self.settings.sampling.in_passes:
            number, position = divmod(round - 1, self.settings.rounds_per_pass)
            if self.settings.sampling is CohortSampling.CYCLE:
                number = 0
            order = np.argsort(self._stream("pass", number).uint64(total))
            chosen = np.array_split(order, self.settings.rounds_per_pass)[position]
        elif self.settings.sampling is CohortSampling.POISSON:
            chosen = np.flatnonzero(self._stream("round", round).uniform(total) < size / total)
        else:
            chosen = np.argsort(self._stream("round", round).uint64(total))[:size]
        return sorted(chosen.tolist())

    def _stream(self, *labels: str | int) -> Stream:
        return Stream(derived_key(self.key, "cohort", *labels))


def identify_clients(
    grid: Grid, total: int, timeout: float, *, numbered: bool = False
) -> dict[int, int]:
    """Ask all nodes which client they are. Returns the node id of each client, numbered from 0.

    Node ids differ from run to run and client numbers do not, so cohorts are drawn among clients. Waits for nodes that
    connect late. If the nodes share one partitioned data set (`numbered`), only nodes with the number of a partition
    count. If there are enough nodes but some have no such number, TooFewClients is raised early. A node that answers
    something else, or claims the number of another, is left out.
    """
    started = time.monotonic()
    deadline = started + timeout
    nodes: dict[int, int] = {}
    others: set[int] = set()
    left_out: set[int] = set()
    while True:
        strangers = set(grid.get_node_ids()) - set(nodes.values()) - others - left_out
        for node, client in _introductions(grid, sorted(strangers), deadline - time.monotonic()):
            if client is None:
                log.warning("Node %d does not say which client it is, and is left out.", node)
                left_out.add(node)
            elif numbered and not 0 <= client < total:
                others.add(node)
            elif nodes.setdefault(client, node) != node:
                log.warning(
                    "Nodes %d and %d are both client %d: the second is left out.",
                    nodes[client],
                    node,
                    client,
                )
                left_out.add(node)
        if len(nodes) >= total:
            return dict(enumerate(nodes[client] for client in sorted(nodes)[:total]))
        if len(nodes) + len(others) >= total and time.monotonic() >= started + min(_GRACE, timeout):
            raise TooFewClients(
                f"{len(others)} of {len(nodes) + len(others)} nodes do not say which part of the data is theirs: "
                f"start each with a partition-id from 0 to {total - 1}, as in fedsketch-node --node-config "
                "partition-id=0, or run with data=folder."
            )
        if time.monotonic() >= deadline:
            ignored = (
                f" ({len(left_out)} other nodes are left out: the log says why)" if left_out else ""
            )
            raise TooFewClients(
                f"{len(nodes)} of {total} clients answered within {timeout:.0f} s{ignored}: start the others, or "
                "lower clients.total."
            )
        time.sleep(min(1.0, timeout / 10))


def _introductions(
    grid: Grid, strangers: Sequence[int], timeout: float
) -> Iterator[tuple[int, int | None]]:
    """Yield the nodes that answer, each with the client that it says it is; None if its answer is no number."""
    nothing = RecordDict()  # one object for all messages: there may be many
    questions = [Message(nothing, node, "query.introduce") for node in strangers]
    for reply in grid.send_and_receive(questions, timeout=max(timeout, 0.1)):
        if reply.has_content():
            own = reply.content.config_records.get("self")
            client = None if own is None else own.get("client")
            yield reply.metadata.src_node_id, client if type(client) is int else None
