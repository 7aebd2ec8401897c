"""The parts of the messages of a round add up to what the plan says of them."""

import importlib
import sys
from pathlib import Path

import pytest

from fedsketch.conf import compose
from fedsketch.server.plan import make_plan
from tests.small import small

SETTINGS = small("strategy=dome strategy.sketch_dim=0.5")


def test_the_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "benchmarks"), *sys.path])
    envelope = importlib.import_module("envelope")
    config = compose([*SETTINGS, "secagg=pairwise"])
    plan, found = make_plan(config), {"up": 0, "down": 0}
    held = dict.fromkeys(envelope.PURPOSES, 0)
    for message in envelope.messages(config):
        for entry in message.entries:
            found[message.direction] += sum(entry.held.values()) + entry.around
            held |= {purpose: held[purpose] + size for purpose, size in entry.held.items()}
    assert found == {"up": plan.uplink_bytes, "down": plan.downlink_bytes}
    numbers = plan.upload_size
    # A ring of 16 bits; a step has 20 bytes beside its numbers of 32 bits.
    assert (held["vector"], held["model"]) == (2 * numbers, 4 * numbers + 20)
