"""The training on a device, before sketch, clip and noise: one gradient, one gradient per example, or several SGD
steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from fedsketch.conf import Config
from fedsketch.conf.settings import LocalConfig
from fedsketch.privacy.mechanisms.randomness import derived_key
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.gradients.per_example import PLACES, PerExample
from fedsketch.tasks.models.flat_model import FlatModel

MEMORY = 256 << 20  # bytes; much, because some sketches are made anew for every block of rows


def client_update(
    model: FlatModel, shard: Examples, settings: LocalConfig, generator: torch.Generator
) -> torch.Tensor:
    """Return the client's update, which the server subtracts from the model. It is the gradient for a single step, and
    otherwise theta - theta_K after K steps on random batches, or after shuffled passes over the shard."""
    if one_gradient(settings):
        (batch,) = _batches(shard, settings, generator)
        _, gradient = model.loss_and_gradient(*batch)
        return gradient
    start = model.vector.clone()
    velocity = torch.zeros_like(start)
    for batch in _batches(shard, settings, generator):
        _, gradient = model.loss_and_gradient(*batch)
        velocity.mul_(settings.momentum).add_(gradient)
        model.vector.sub_(velocity, alpha=settings.lr)
    return start - model.vector


def batch_generator(config: Config, client: int, round: int) -> torch.Generator:
    """Return the generator that draws the batches of a client in a round. It is reproducible and not secret, because
    no guarantee rests on it."""
    key = derived_key(config.seed, "batches", client, round)
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "big", signed=True))


def rows_of_examples(
    model: FlatModel, shard: Examples, shorten: Callable[[torch.Tensor], torch.Tensor] | None
) -> torch.Tensor:
    """Return one gradient for each example, shortened. Blank places have none."""
    if shorten is None and shard.present is None:
        return PerExample(model, MEMORY).gradients(shard.inputs, shard.targets)
    return torch.cat(list(example_blocks(model, shard, shorten)))


def example_blocks(
    model: FlatModel, shard: Examples, shorten: Callable[[torch.Tensor], torch.Tensor] | None
) -> Iterator[torch.Tensor]:
    """Return the same rows, some at a time."""
    gradients, padded = of_examples(model, shard)
    blocks = gradients.blocks(padded.inputs, padded.targets)
    made = blocks if shorten is None else map(shorten, blocks)
    if padded.present is None:
        yield from made
        return
    # Blank places are removed last: before, they keep the size of every block the same.
    start = 0
    for rows in made:
        yield rows[kept(gradients, padded.present, start, len(rows)).to(rows.device)]
        start += len(rows)


def of_examples(model: FlatModel, shard: Examples) -> tuple[PerExample, Examples]:
    """Return the gradients of a device's examples, and the examples as these take them: padded if they have places."""
    if shard.present is None:
        return PerExample(model, MEMORY), shard
    return PerExample(model, MEMORY, in_places=True), shard.padded(PLACES)


def kept(gradients: PerExample, present: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """Return which rows of a block that begins at a place count."""
    return present[start : start + count] & ~gradients.failed[start : start + count]


def drawn(
    count: int, settings: LocalConfig, generator: torch.Generator
) -> Iterator[torch.Tensor | None]:
    """Yield which of `count` examples each local step uses. None: all of them, in their order."""
    if settings.epochs is None:
        for _ in range(settings.steps):
            whole = settings.batch == 0 or settings.batch >= count
            yield None if whole else torch.randperm(count, generator=generator)[: settings.batch]
        return
    for _ in range(settings.epochs):
        order = torch.randperm(count, generator=generator)
        yield from torch.split(order, settings.batch or count)


def one_gradient(settings: LocalConfig) -> bool:
    """Return whether a client sends the gradient of a single step, and not the change of its model."""
    return settings.steps == 1 and settings.epochs is None


def _batches(
    shard: Examples, settings: LocalConfig, generator: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for chosen in drawn(len(shard), settings, generator):
        if chosen is None:
            yield shard.inputs, shard.targets
        else:
            yield shard.inputs[chosen], shard.targets[chosen]
