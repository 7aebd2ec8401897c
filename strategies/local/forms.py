"""The four forms of a device's work, all from one description (`DeviceHalf`):

- `rows`: what one device computes;
- `row_blocks`: the same in blocks, possibly as factors, for mechanisms that need only the sum of the rows;
- `batched_rows`: the rows of several simulated clients at once, the same up to rounding;
- `batched_blocks`: the same, possibly as factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from fedsketch.conf import Config
from fedsketch.errors import UnsafeUpdateError
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.privacy.mechanisms.bound_half import TrainedModel
from fedsketch.privacy.mechanisms.clipping import finite_rows
from fedsketch.privacy.mechanisms.rows import Rows
from fedsketch.strategies.algorithm import Clients, DeviceHalf, LocalWork
from fedsketch.strategies.local.batched_work import BatchedWork, batched_updates
from fedsketch.strategies.local.product_cache import ProductCache
from fedsketch.strategies.local.row_factors import batched_factors, factor_blocks
from fedsketch.strategies.local.update import client_update, example_blocks, rows_of_examples
from fedsketch.strategies.rounds.clip import counted, with_counts

Half = DeviceHalf[Any]


def rows(half: Half, prepared: Any, work: LocalWork) -> Tensor:
    """Return one row for each privacy unit of a device."""
    config = work.broadcast.config
    if half.is_trained_by_mechanism:
        raise UnsafeUpdateError(
            "the mechanism adds noise to uploads, and this strategy adds it during training."
        )
    if _has_row_per_example(half, config):
        return rows_of_examples(work.model, work.shard, _shorten(half, prepared))
    starts = half.starts(prepared, [work.client])
    if starts is not None:
        work.model.load(starts[0])
    row = client_update(work.model, work.shard.there(), config.strategy.local, work.generator)
    return half.shorten_clients(prepared, row.unsqueeze(0), work.clients)


def row_blocks(half: Half, prepared: Any, work: LocalWork, cache: ProductCache) -> Iterator[Rows]:
    """Yield the same rows in blocks."""
    if half.is_trained_by_mechanism or not _has_row_per_example(half, work.broadcast.config):
        yield Rows.of(rows(half, prepared, work))
        return
    shorten, sketch = _shorten(half, prepared), half.factor_sketch(prepared)
    if shorten is None or sketch is not None:
        yield from factor_blocks(work, cache, sketch)
    else:
        yield from map(Rows.of, example_blocks(work.model, work.shard, shorten))


def batched_rows(half: Half, prepared: Any, work: BatchedWork) -> Tensor | None:
    """Return the rows of all clients, one client after the other. None if the model cannot process several clients at
    once."""
    if _has_row_per_example(half, work.broadcast.config):
        return rows_of_examples(work.model, work.shards.together(), _shorten(half, prepared))
    starts = half.starts(prepared, work.clients)
    updates = batched_updates(work, None if starts is None else starts.to(work.model.vector))
    if updates is None:
        return None
    clients = Clients(work.clients, work.shards.sizes, work.memories)
    return half.shorten_clients(prepared, updates, clients)


def batched_blocks(half: Half, prepared: Any, work: BatchedWork) -> list[Rows] | None:
    """Return the rows of each client as factors. None if they have to be multiplied out."""
    sketch = half.factor_sketch(prepared)
    if not _has_row_per_example(half, work.broadcast.config) or (half.shortens and sketch is None):
        return None
    return batched_factors(work, sketch)


@dataclass(frozen=True)
class StrategyHalf:
    """The part of a strategy in one device's round, as a mechanism calls it (a `BoundHalf`). Rows that are not finite
    count as zeros on a real device; in a simulation the mechanism refuses them, so that the error is seen."""

    half: Half
    prepared: Any
    work: LocalWork
    cache: ProductCache
    simulated: bool

    def rows(self) -> Tensor:
        made = rows(self.half, self.prepared, self.work)
        return with_counts(made if self.simulated else finite_rows(made), self.work.broadcast)

    def blocks(self) -> Iterator[Rows]:
        for block in row_blocks(self.half, self.prepared, self.work, self.cache):
            yield from counted(block if self.simulated else block.finite(), self.work.broadcast)

    def trained_model(self) -> TrainedModel:
        return self.half.trained_model(self.prepared, self.work)


def _has_row_per_example(half: Half, config: Config) -> bool:
    return config.privacy.unit is Unit.EXAMPLE and not half.ignores_unit


def _shorten(half: Half, prepared: Any) -> Callable[[Tensor], Tensor] | None:
    return partial(half.shorten, prepared) if half.shortens else None
