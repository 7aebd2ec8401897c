"""Blocks of factors are the rows that a device half makes, and what is kept of examples follows their content."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.strategies.algorithm import DeviceHalf, LocalWork, Strategy
from fedsketch.strategies.local import product_cache
from fedsketch.strategies.local.forms import row_blocks
from fedsketch.strategies.registry import make_device_half
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.data.examples import Examples
from tests.rounds import rows_of

MakeStrategy = Callable[..., Strategy]
PUBLIC = (
    "strategy=dome",
    "strategy.directions=public",
    "strategy.sketch_dim=0.5",
    "data.public=20",
)
CHOICES = {
    "dp_fedavg": ("strategy=dp_fedavg",),
    "dome": ("strategy=dome", "strategy.sketch_dim=0.5", "strategy.broadcast=full"),
    "dome, mean removed": (
        *("strategy=dome", "strategy.sketch_dim=0.5", "strategy.broadcast=full"),
        *("strategy.mean_removal=0.5", "strategy.feed=gradient"),
    ),
    "dome, flat": (
        *("strategy=dome", "strategy.sketch=flat", "strategy.sketch_dim=16"),
        "strategy.broadcast=full",
    ),
    "dome, public": (*PUBLIC, "strategy.broadcast=full"),
    "fed_sgm": ("strategy=fed_sgm", "strategy.local.steps=1", "strategy.local.batch=0"),
}
# Two layers that are sketched: 60 x 60 and 10 x 60.
COMMON = (
    *("privacy=example", "secagg=semi_honest", "model=mlp", "model.width=60"),
    *("data.shape=[1,2,30]", "data.classes=10"),
)


def _work(strategy: Strategy, shard: Examples | None = None) -> LocalWork:
    config = strategy.config
    payload = strategy.broadcast(1)
    mechanism = strategy.mechanism(1, config.clients.per_round)
    arrays = {"model": strategy.model.vector, **payload.tensors}
    shard = strategy.workload.shard(0) if shard is None else shard
    return LocalWork(
        Broadcast(config, 1, mechanism, arrays, payload.scalars),
        shard,
        strategy.model,
        torch.Generator(),
        {},
    )


def _blocks(
    half: DeviceHalf[Any], work: LocalWork, cache: product_cache.ProductCache | None = None
) -> list[Rows]:
    prepared = half.prepare(work.broadcast, work.model)
    return list(
        row_blocks(half, prepared, work, product_cache.ProductCache() if cache is None else cache)
    )


@pytest.mark.parametrize("name", CHOICES)
def test_blocks_are_the_rows(make_strategy: MakeStrategy, name: str) -> None:
    strategy = make_strategy(*CHOICES[name], *COMMON)
    half, work = make_device_half(strategy.config.strategy.name), _work(strategy)
    assert work.broadcast.mechanism.takes_blocks
    rows = rows_of(half, work).double()
    blocks = _blocks(half, work)
    dense = torch.cat([torch.from_numpy(block.dense()) for block in blocks])
    torch.testing.assert_close(dense, rows, rtol=1e-4, atol=1e-5 * float(rows.abs().max()))
    factored = any(piece.right is not None for block in blocks for piece in block.pieces)
    assert factored is (name in ("dp_fedavg", "dome", "dome, public"))


def test_products_are_kept_from_round_to_round_and_follow_the_examples(
    make_strategy: MakeStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = make_strategy(*CHOICES["dome, public"], *COMMON)
    half, work = make_device_half("dome"), _work(strategy)
    cache = product_cache.ProductCache()
    first = _blocks(half, work, cache)[0].dense()
    count = len(cache)
    assert count >= 1
    made: list[object] = []
    product = product_cache.ProductCache.product

    def watched(
        self: product_cache.ProductCache, inputs: torch.Tensor, basis: torch.Tensor, key: object
    ) -> torch.Tensor:
        before = len(self)
        found = product(self, inputs, basis, key)  # type: ignore[arg-type]
        made.extend([key] * (len(self) - before))
        return found

    monkeypatch.setattr(product_cache.ProductCache, "product", watched)
    later = replace(work, broadcast=replace(work.broadcast, round=2))
    assert (_blocks(half, later, cache)[0].dense() == first).all()
    assert made == []
    # The same client with one example changed: nothing of the old one is found.
    inputs = work.shard.inputs.clone()
    inputs[0] += 1.0
    changed = replace(work, shard=Examples(inputs, work.shard.targets))
    expected = rows_of(half, changed).double()
    got = torch.from_numpy(_blocks(half, changed, cache)[0].dense())
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert len(made) == count


def test_learned_directions_leave_nothing_behind(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy(*CHOICES["dome"], *COMMON)
    work = _work(strategy)
    cache = product_cache.ProductCache()
    _blocks(make_device_half("dome"), work, cache)
    assert len(cache) == 0
