"""Gradients of single examples as factors, for mechanisms that need no more than the sum of clipped rows.

A linear layer's gradient is b a^T for each example, and its layer-wise sketch b (P^T a)^T. Where a is an example as it
is given, and P comes from public data, P^T a is the same in every round: it is kept (`sketching.kept_products`).
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from torch import Tensor

from fedsketch.privacy.mechanisms.rows import Factors, Rows
from fedsketch.sketching.fingerprint import digest
from fedsketch.sketching.kept_products import KeptProducts
from fedsketch.sketching.layerwise import LayerwiseSketch
from fedsketch.strategies.shared.cohort_work import CohortWork
from fedsketch.strategies.shared.device_half import LocalWork
from fedsketch.strategies.shared.local_update import MEMORY
from fedsketch.tasks.per_example import PerExample
from fedsketch.tasks.slot_gradients import OuterFactors

_ALL_AT_ONCE = 1 << 62  # bytes: a part of a cohort was chosen to fit


@dataclass(frozen=True)
class Shortened:
    """A sketch of rows, and the name of its directions if they will come again."""

    sketch: LayerwiseSketch
    lasting: Hashable | None = None

    def __call__(
        self,
        pieces: list[OuterFactors],
        given: Tensor,
        kept: KeptProducts,
        name: Callable[[], Hashable],
    ) -> list[OuterFactors]:
        """Of the rows of examples whose inputs are `given`, and that `name` tells from all others."""

        def product(inputs: Tensor, index: int, basis: Tensor) -> Tensor:
            if self.lasting is None or not _same(inputs, given):
                return inputs @ basis.to(inputs)
            return kept.product(inputs, basis, (name(), self.lasting, index))

        return self.sketch.of_factors(pieces, product)


def factored_blocks(work: LocalWork, shorten: Shortened | None = None) -> Iterator[Rows]:
    """The rows of a device's examples, some at a time."""
    gradients, shard = PerExample(work.model, MEMORY), work.shard
    for pieces, given in gradients.factors(shard.inputs, shard.targets):
        if shorten is not None:
            pieces = shorten(pieces, given, work.kept, lambda given=given: digest([given]))  # type: ignore[misc]
        yield _rows(pieces)


def cohort_factored(work: CohortWork, shorten: Shortened | None = None) -> list[Rows]:
    """The rows of each client's examples, from one pass over all of them."""
    examples = work.shards.together()
    passes = PerExample(work.model, _ALL_AT_ONCE).factors(examples.inputs, examples.targets)
    made, end = list[Rows](), 0
    for pieces, given in passes:
        for client, size in zip(work.clients, work.shards.sizes, strict=True):
            start, end = end, end + size
            own = [(b[start:end], None if a is None else a[start:end]) for b, a in pieces]
            if shorten is not None:
                name = (work.broadcast.config, client)
                own = shorten(own, given[start:end], work.kept, lambda name=name: name)  # type: ignore[misc]
            made.append(_rows(own))
    return made


def _rows(pieces: list[OuterFactors]) -> Rows:
    return Rows(
        tuple(Factors(b.cpu().numpy(), None if a is None else a.cpu().numpy()) for b, a in pieces)
    )


def _same(inputs: Tensor, given: Tensor) -> bool:
    """Whether a layer took the examples as they are: then it shares their memory."""
    return inputs.data_ptr() == given.data_ptr() and inputs.numel() == given.numel()
