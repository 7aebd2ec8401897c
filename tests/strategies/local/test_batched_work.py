"""Simulations of whole cohorts draw the batches that each device draws by itself."""

from collections.abc import Sequence
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedsketch.conf import compose
from fedsketch.strategies.local.batched_work import BatchedWork, _steps
from fedsketch.strategies.local.update import batch_generator, drawn
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.data.shards import Shards, side_by_side

LOCAL = (
    ("strategy.local.epochs=2", "strategy.local.batch=3"),
    ("strategy.local.epochs=2", "strategy.local.batch=0"),
    ("strategy.local.steps=3", "strategy.local.batch=2"),
    ("strategy.local.steps=2", "strategy.local.batch=0"),
)


@pytest.mark.parametrize("sizes", [(7, 7, 7), (7, 4, 9)])
@pytest.mark.parametrize("local", LOCAL)
def test_batches_are_those_of_each_device(sizes: Sequence[int], local: Sequence[str]) -> None:
    config = compose(["strategy=fedavg", "data=synthetic", *local])
    settings, clients = config.strategy.local, [5, 2, 8]
    examples = Examples(torch.arange(sum(sizes)).float()[:, None], torch.zeros(sum(sizes)).long())
    parts: Any = SimpleNamespace(config=config, round=4)
    shards = Shards(examples, tuple(side_by_side(sizes)))
    unused: Any = None
    work = BatchedWork(parts, shards, unused, unused, [{}, {}, {}], clients)
    alone = [
        list(drawn(size, settings, batch_generator(config, client, 4)))
        for size, client in zip(sizes, clients, strict=True)
    ]
    steps = list(_steps(work, settings))
    assert len(steps) == max(map(len, alone))
    for (active, chosen), own in zip(steps, zip_longest(*alone, fillvalue="over"), strict=True):
        wanted = {place: each for place, each in enumerate(own) if not isinstance(each, str)}
        assert list(active) == list(wanted)
        for place, mine in zip(active, chosen, strict=True):
            expected = wanted[place]
            if expected is None:
                assert mine is None
            else:
                assert torch.equal(mine, expected)
