"""Gradients of single examples as factors, for mechanisms that need only the sum of the clipped rows.

For each example the gradient of a linear layer is b a^T, where a is the layer's input and b the gradient with respect
to its output. Its layer-wise sketch is b (P^T a)^T. If a is the example itself, and P comes from public data, P^T a is
the same in every round, so it is cached (`strategies.local.product_cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from torch import Tensor

from fedsketch.privacy.mechanisms.rows import Factors, Rows
from fedsketch.sketching.layerwise_sketch import LayerwiseSketch
from fedsketch.sketching.sketch import digest
from fedsketch.strategies.algorithm import LocalWork
from fedsketch.strategies.local.batched_work import BatchedWork
from fedsketch.strategies.local.product_cache import ProductCache
from fedsketch.strategies.local.update import kept, of_examples
from fedsketch.tasks.gradients.per_example import PerExample
from fedsketch.tasks.gradients.slot_gradients import OuterFactors

_ALL_AT_ONCE = 1 << 62  # bytes: no limit, because the caller chose clients that fit into memory


@dataclass(frozen=True)
class FactorSketch:
    """Sketches rows that are given as factors. `lasting` identifies the sketch's directions if they will be used
    again."""

    sketch: LayerwiseSketch
    lasting: Hashable | None = None

    def __call__(
        self,
        pieces: list[OuterFactors],
        given: Tensor,
        cache: ProductCache,
        name: Callable[[], Hashable],
    ) -> list[OuterFactors]:
        """Sketch the rows of the examples with the inputs `given`. `name` returns an identifier of these examples."""

        def product(inputs: Tensor, index: int, basis: Tensor) -> Tensor:
            if self.lasting is None or not _same(inputs, given):
                return inputs @ basis.to(inputs)
            return cache.product(inputs, basis, (name(), self.lasting, index))

        return self.sketch.of_factors(pieces, product)


def factor_blocks(
    work: LocalWork, cache: ProductCache, shorten: FactorSketch | None
) -> Iterator[Rows]:
    """Yield the rows of a device's examples, some at a time."""
    gradients, shard = of_examples(work.model, work.shard)
    start = 0
    for pieces, given in gradients.factors(shard.inputs, shard.targets):
        if shorten is not None:
            pieces = shorten(pieces, given, cache, lambda given=given: digest([given]))  # type: ignore[misc]
        rows = _rows(pieces)
        if shard.present is None:
            yield rows
        else:
            yield rows.select(kept(gradients, shard.present, start, len(rows)).numpy())
        start += len(rows)


def batched_factors(work: BatchedWork, shorten: FactorSketch | None) -> list[Rows]:
    """Return the rows of each client's examples, from one forward and backward pass over all of them."""
    examples = work.shards.together()
    passes = PerExample(work.model, _ALL_AT_ONCE).factors(examples.inputs, examples.targets)
    made, end = list[Rows](), 0
    for pieces, given in passes:
        for client, size in zip(work.clients, work.shards.sizes, strict=True):
            start, end = end, end + size
            own = [(b[start:end], None if a is None else a[start:end]) for b, a in pieces]
            if shorten is not None:
                name = (work.broadcast.config, client)
                own = shorten(own, given[start:end], work.cache, lambda name=name: name)  # type: ignore[misc]
            made.append(_rows(own))
    return made


def _rows(pieces: list[OuterFactors]) -> Rows:
    return Rows(
        tuple(Factors(b.cpu().numpy(), None if a is None else a.cpu().numpy()) for b, a in pieces)
    )


def _same(inputs: Tensor, given: Tensor) -> bool:
    """Return whether a layer's inputs are the examples themselves: then they share memory."""
    return inputs.data_ptr() == given.data_ptr() and inputs.numel() == given.numel()
