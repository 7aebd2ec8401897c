"""The local work of several clients at once, for simulations of whole cohorts (`runtime=cohort`).

The functions here compute what those of `strategies.local.update` compute, for several clients together. They
draw the same batches, and their results are the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsketch.conf.settings import LocalConfig
from fedsketch.strategies.local.product_cache import ProductCache
from fedsketch.strategies.local.update import (
    batch_generator,
    drawn,
    one_gradient,
)
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.data.shards import Batches, Shards
from fedsketch.tasks.gradients.per_client import PerClient
from fedsketch.tasks.models.flat_model import FlatModel


@dataclass(frozen=True)
class BatchedWork:
    """Like `LocalWork`, with one shard and one memory for each of the clients. `model` holds the parameters of the
    broadcast. Neither the model nor the examples may be changed."""

    broadcast: Broadcast
    shards: Shards
    model: FlatModel
    gradients: PerClient
    memories: Sequence[MutableMapping[str, Tensor]]
    clients: Sequence[int]
    cache: ProductCache = field(default_factory=ProductCache)

    def generator(self, place: int) -> torch.Generator:
        """Return the random generator of the client at this place."""
        return batch_generator(self.broadcast.config, self.clients[place], self.broadcast.round)


def batched_updates(work: BatchedWork, starts: Tensor | None = None) -> Tensor | None:
    """Return the `client_update` of each client as an (n, d) tensor. Clients start from the broadcast's model, or each
    from its row of `starts`. None if the model cannot process several clients at once."""
    if not work.gradients.possible(work.shards.examples.inputs[:1]):
        return None
    settings, shards = work.broadcast.config.strategy.local, work.shards
    steps = _steps(work, settings)
    if one_gradient(settings):
        only = shards.batches(next(steps)[1])
        if starts is None:
            return work.gradients.gradients(only)
        return work.gradients.gradients_at(starts, only)
    first = work.model.vector if starts is None else starts
    vectors = first.expand(len(shards), -1).clone()
    velocity = torch.zeros_like(vectors) if settings.momentum else None
    batches: Batches | None = None
    for active, chosen in steps:
        whole = len(active) == len(shards)  # then nothing needs to be copied
        mine = vectors if whole else vectors[active]
        present = shards if whole else shards.of(active)
        batches = present.batches(chosen, batches)
        if velocity is None:
            work.gradients.descend(mine, batches, settings.lr)
        else:
            direction = work.gradients.gradients_at(mine, batches)
            direction.add_(velocity[active], alpha=settings.momentum)
            velocity[active] = direction
            mine.sub_(direction, alpha=settings.lr)
        if not whole:
            vectors[active] = mine
    return torch.sub(first, vectors, out=vectors)


_Chosen = Tensor | Sequence[Tensor | None]


def _steps(work: BatchedWork, settings: LocalConfig) -> Iterator[tuple[Sequence[int], _Chosen]]:
    """Yield, for every local step, the places of the clients that take part and the examples that each of them uses
    (None: all). They are the examples that `drawn` gives each client."""
    sizes, everybody = work.shards.sizes, range(len(work.shards))
    if settings.epochs is None and settings.batch == 0:  # nothing is drawn
        yield from [(everybody, [None] * len(sizes))] * settings.steps
        return
    generators = [work.generator(place) for place in everybody]
    # Then one tensor holds the examples of all clients.
    if settings.epochs is not None and len(set(sizes)) == 1:
        for _ in range(settings.epochs):
            orders = [torch.randperm(sizes[0], generator=own) for own in generators]
            for chosen in torch.split(torch.stack(orders), settings.batch or sizes[0], dim=1):
                yield everybody, chosen
        return
    plans = [list(drawn(size, settings, own)) for size, own in zip(sizes, generators, strict=True)]
    for step in range(max(map(len, plans))):
        # A client with fewer examples than others may have fewer steps.
        active = [place for place, plan in enumerate(plans) if step < len(plan)]
        yield active, [plans[place][step] for place in active]
