"""The examples of several clients side by side, for simulations of a whole cohort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedsketch.tasks.data.examples import Examples


@dataclass(frozen=True, eq=False)
class Batches:
    """One batch of each of n clients, padded to the same length m: inputs (n, m, *shape), targets (n, m, ...), and
    weights (n, m). The weight of an example is 1 / (size of the client's batch), and that of padding is 0. So a
    weighted sum over a row is the mean over the client's batch.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    # Whether inputs have their own memory instead of being a view of the examples.
    copied: bool = False


@dataclass(frozen=True, eq=False)
class Shards:
    """The span of each client in `examples`, which are sorted by client. Callers must not write into the tensors that
    they get, which may be views."""

    examples: Examples
    spans: tuple[range, ...]

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def sizes(self) -> list[int]:
        return [len(span) for span in self.spans]

    def of(self, chosen: Sequence[int]) -> Shards:
        """Return the shards of the chosen clients, given by their place here."""
        return Shards(self.examples, tuple(self.spans[place] for place in chosen))

    def together(self) -> Examples:
        """Return all examples, client by client."""
        return Examples(self._joined(self.examples.inputs), self._joined(self.examples.targets))

    def batches(
        self, chosen: Tensor | Sequence[Tensor | None] | None = None, done: Batches | None = None
    ) -> Batches:
        """Return the chosen examples of each client, given by their number in its shard. None stands for all of them.
        A tensor, (n, m), has a row for each client.

        Padding is one of the client's own examples, so that the examples of clients never mix. `done` are batches that
        are no longer needed: their memory is used again where it fits, which is faster than allocating new memory.
        """
        inputs, targets = self.examples.inputs, self.examples.targets
        if chosen is None:
            chosen = [None] * len(self)
        none = not isinstance(chosen, Tensor) and all(own is None for own in chosen)
        if none and len(set(self.sizes)) == 1:
            shape = (len(self), len(self.spans[0]))
            weights = torch.full(shape, 1.0 / shape[1])
            whole, targets_of_all = self._joined(inputs), self._joined(targets)
            return Batches(
                whole.view(*shape, *inputs.shape[1:]),
                targets_of_all.view(*shape, *targets.shape[1:]),
                weights,
            )
        index, weights = self._places(chosen)
        room = None
        if done is not None and done.copied and done.weights.shape == index.shape:
            room = done.inputs
        return Batches(_taken(inputs, index, room), _taken(targets, index), weights, copied=True)

    def _places(self, chosen: Tensor | Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        """Return the places of the chosen examples, (n, m), with padding, and their weights."""
        if not isinstance(chosen, Tensor) and _even(chosen):
            chosen = torch.stack([own for own in chosen if own is not None])
        if isinstance(chosen, Tensor):
            index = chosen + self._starts
            return index, torch.full(index.shape, 1.0 / index.shape[1])
        places = [
            torch.arange(span.start, span.stop) if own is None else own + span.start
            for span, own in zip(self.spans, chosen, strict=True)
        ]
        counts = torch.tensor([len(own) for own in places])
        filled = torch.arange(int(counts.max())) < counts[:, None]
        index = pad_sequence(places, batch_first=True)
        return torch.where(filled, index, index[:, :1]), filled / counts[:, None]

    @cached_property
    def _starts(self) -> Tensor:
        """The place of each client's first example, (n, 1)."""
        return torch.tensor([[span.start] for span in self.spans])

    def _joined(self, tensor: Tensor) -> Tensor:
        """Join the clients' parts of a tensor, without a copy if they are adjacent."""
        if all(before.stop == after.start for before, after in pairwise(self.spans)):
            return tensor[self.spans[0].start : self.spans[-1].stop]
        return torch.cat([tensor[span.start : span.stop] for span in self.spans])


def _even(chosen: Sequence[Tensor | None]) -> bool:
    """Return whether every client has chosen examples, and each the same number."""
    return (
        len({-1 if own is None else own.numel() for own in chosen}) == 1 and chosen[0] is not None
    )


def _taken(tensor: Tensor, index: Tensor, room: Tensor | None = None) -> Tensor:
    """Return `tensor[index]`, five times as fast, in the memory of `room` if it is given."""
    if room is None:
        room = tensor.new_empty(*index.shape, *tensor.shape[1:])
    torch.index_select(tensor, 0, index.flatten(), out=room.flatten(0, 1))
    return room


def side_by_side(sizes: Sequence[int]) -> list[range]:
    """Return adjacent spans of these lengths."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return [range(start, stop) for start, stop in pairwise(ends)]
