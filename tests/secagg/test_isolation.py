"""A lying server that cuts some devices off from the others by saying who dropped out.

All devices deliver, and the server claims that some did not. The others then reveal the mask keys of
those: whoever shared masks with nobody else is summed apart. In a ring the two bands of neighbours
around a segment are enough, and nobody has to work with the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fedsketch.secagg import graph, messages
from fedsketch.secagg.coordinator import Step
from fedsketch.secagg.errors import SettingsError
from fedsketch.secagg.packing import Ring, reduce, ring_dtype, unpack
from fedsketch.secagg.settings import RoundSettings
from fedsketch.secagg.unmasking import Secrets, remove_masks

Build = Callable[..., Any]


def isolated_sum(devices: Any, segment: Sequence[int], band: Sequence[int]) -> Ring:
    """The segment's vectors with all masks removed that the server can remove, after it said that the band dropped out."""
    settings: RoundSettings = devices.settings
    coordinator = devices.run(until=Step.MASK)
    said_to_be_gone = {settings.cohort[i] for i in band}
    for node, request in coordinator.requests().items():
        devices.replies[Step.MASK, node] = reply = devices.answer(Step.MASK, node, request)
        if node not in said_to_be_gone:
            coordinator.receive(node, reply)
    coordinator.close()
    while coordinator.step is not Step.DONE:
        devices.stage(coordinator)
    total = np.zeros(settings.dim, dtype=ring_dtype(settings.bits))
    for i in segment:
        packed = messages.read_mask_reply(
            settings, devices.replies[Step.MASK, settings.cohort[i]]
        )
        total += unpack(packed, settings.dim, settings.bits)
    remove_masks(
        settings, settings.digest, settings.broadcast, total,
        Secrets(coordinator._revealed, settings.threshold),
        survivors=segment,
        dead=band,
        public={i: advert[32:64] for i, advert in coordinator._adverts.items()},
        commitments=coordinator._commitments,
    )  # fmt: skip
    return reduce(total, settings.bits)


def test_a_lying_server_cuts_a_ring_of_300_without_a_colluder(fleet: Build) -> None:
    devices = fleet(300, drops=45)
    settings = devices.settings
    assert (settings.degree, settings.threshold) == (42, 22)
    order, _ = graph._ring(settings.n, settings.nonce)
    segment, band = sorted(order[21:43]), sorted(order[:21] + order[43:64])
    found = isolated_sum(devices, segment, band)
    # 22 devices, where the round promises a sum over 255.
    np.testing.assert_array_equal(found, devices.expected(settings.cohort[i] for i in segment))
