"""A lying server that cuts some devices off from the others by saying who dropped out.

All devices deliver, and the server claims that some did not. The others then reveal the mask keys of
those: whoever shared masks with nobody else is summed apart. In a ring the two bands of neighbours
around a segment are enough, and nobody has to work with the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsketch.secagg.errors import SettingsError
from fedsketch.secagg.guard import SimulationGuard
from fedsketch.secagg.node import Node
from fedsketch.secagg.packing import Ring, reduce, ring_dtype, unpack
from fedsketch.secagg.pairwise import device, graph, messages
from fedsketch.secagg.pairwise.settings import PairwiseSettings
from fedsketch.secagg.pairwise.unmasking import Secrets, remove_masks
from fedsketch.secagg.server_session import RoundStage

Build = Callable[..., Any]


def isolated_sum(devices: Any, segment: Sequence[int], band: Sequence[int]) -> Ring:
    """The segment's vectors with all masks removed that the server can remove, once it said that
    the band dropped out."""
    settings: PairwiseSettings = devices.settings
    session = devices.run(until=RoundStage.MASK)
    said_to_be_gone = {settings.cohort[i] for i in band}
    for node, request in session.requests().items():
        devices.replies[RoundStage.MASK, node] = reply = devices.answer(
            RoundStage.MASK, node, request
        )
        if node not in said_to_be_gone:
            session.receive(node, reply)
    session.close()
    while session.stage is not RoundStage.DONE:
        devices.stage(session)
    total = np.zeros(settings.dim, dtype=ring_dtype(settings.bits))
    for i in segment:
        packed = messages.read_mask_reply(
            settings, devices.replies[RoundStage.MASK, settings.cohort[i]]
        )
        total += unpack(packed, settings.dim, settings.bits)
    remove_masks(
        settings, settings.digest, settings.broadcast, total,
        Secrets(session._revealed, settings.threshold),
        survivors=segment,
        dead=band,
        public={i: advert[32:64] for i, advert in session._adverts.items()},
        commitments=session._commitments,
    )  # fmt: skip
    return reduce(total, settings.modulus)


def cut(settings: PairwiseSettings) -> tuple[list[int], list[int]]:
    """A segment as long as the threshold, and half a degree of neighbours on either side of it."""
    order, _ = graph._ring(settings.n, settings.nonce)
    half, length = settings.degree // 2, settings.threshold
    around = order[: length + settings.degree]
    return sorted(around[half:-half]), sorted(around[:half] + around[-half:])


def test_a_lying_server_cuts_a_ring_of_300_without_a_colluder(fleet: Build) -> None:
    """Why rings are for rounds that promise nothing against a lying server."""
    devices = fleet(300, drops=45, consistency=False)
    settings = devices.settings
    assert (settings.degree, settings.threshold) == (42, 22)
    segment, band = cut(settings)
    assert len(band) <= settings.drops
    found = isolated_sum(devices, segment, band)
    # 22 devices, where the round promises a sum over 255.
    np.testing.assert_array_equal(found, devices.expected(settings.cohort[i] for i in segment))


def test_the_same_lie_separates_nobody_in_a_complete_graph(fleet: Build) -> None:
    devices = fleet(90, drops=43)
    segment, band = list(range(22)), list(range(22, 64))
    found = isolated_sum(devices, segment, band)
    # Masks with the 26 others remain: 5 numbers of 32 bits agree by chance with probability 2^-160.
    assert (found != devices.expected(devices.settings.cohort[i] for i in segment)).any()


@pytest.mark.parametrize("n", [129, 300, 1024, 5000])
def test_a_device_refuses_a_ring_with_signed_survivor_lists_by_itself(
    n: int, settings_of: Callable[..., PairwiseSettings]
) -> None:
    ring = settings_of(n, drops=0.05, consistency=False)
    assert not ring.complete
    # A server is not bound by the checks of our classes: it sends the ring's bytes with the flag set.
    object.__setattr__(ring, "consistency", True)
    victim = ring.cohort[0]
    with pytest.raises(SettingsError, match="cuts a sparse graph"):
        device.advertise(Node(victim, ring.run, SimulationGuard(victim)), b"", ring.encoded)


def test_a_device_refuses_a_complete_graph_that_leaves_out_one_neighbour(
    settings_of: Callable[..., PairwiseSettings],
) -> None:
    settings = settings_of(301, drops=0.05)
    with pytest.raises(SettingsError, match="cuts a sparse graph"):
        replace(settings, degree=settings.degree - 2)
