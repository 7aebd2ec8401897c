"""The examples of several clients at once, side by side: what a simulation of a whole cohort works on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedsketch.tasks.examples import Examples


@dataclass(frozen=True, eq=False)
class Batches:
    """One batch of each of n clients, filled up to the same length m: inputs (n, m, *shape), targets (n, m, ...), and
    weights (n, m), which are 1 / (the client's own number) for examples and 0 for what fills up. A weighted sum over a
    row is the mean over the client's batch.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    copied: bool = False  # whether inputs have memory of their own, and are no view of the examples


@dataclass(frozen=True, eq=False)
class Shards:
    """Where in `examples`, which lie client by client, each of these clients has its own. Nobody may write into what is
    handed out: it may be a view."""

    examples: Examples
    spans: tuple[range, ...]

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def sizes(self) -> list[int]:
        return [len(span) for span in self.spans]

    def of(self, chosen: Sequence[int]) -> "Shards":
        """Those of the chosen clients, by their place here."""
        return Shards(self.examples, tuple(self.spans[place] for place in chosen))

    def together(self) -> Examples:
        """All of them, client by client."""
        return Examples(self._joined(self.examples.inputs), self._joined(self.examples.targets))

    def batches(
        self, chosen: Tensor | Sequence[Tensor | None] | None = None, done: Batches | None = None
    ) -> Batches:
        """The chosen examples of each client, by their number in its shard; all of them where nothing is chosen. A
        tensor, (n, m), is a row for each client.

        What fills a batch up is one of the client's own examples, so that nobody's numbers meet those of others. `done`
        is what nobody needs any more: its memory is used again where it fits, which is faster than to ask the system
        for new.
        """
        inputs, targets = self.examples.inputs, self.examples.targets
        if chosen is None:
            chosen = [None] * len(self)
        none = not isinstance(chosen, Tensor) and all(own is None for own in chosen)
        if none and len(set(self.sizes)) == 1:
            shape = (len(self), len(self.spans[0]))
            weights = torch.full(shape, 1.0 / shape[1])
            whole, told = self._joined(inputs), self._joined(targets)
            return Batches(
                whole.view(*shape, *inputs.shape[1:]),
                told.view(*shape, *targets.shape[1:]),
                weights,
            )
        index, weights = self._places(chosen)
        room = None
        if done is not None and done.copied and done.weights.shape == index.shape:
            room = done.inputs
        return Batches(_taken(inputs, index, room), _taken(targets, index), weights, copied=True)

    def _places(self, chosen: Tensor | Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        """Where the chosen examples are, (n, m), filled up; and what each weighs."""
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
        """(n, 1): where each client's examples begin."""
        return torch.tensor([[span.start] for span in self.spans])

    def _joined(self, tensor: Tensor) -> Tensor:
        """The parts of a tensor, without a copy where they lie side by side."""
        if all(before.stop == after.start for before, after in pairwise(self.spans)):
            return tensor[self.spans[0].start : self.spans[-1].stop]
        return torch.cat([tensor[span.start : span.stop] for span in self.spans])


def _even(chosen: Sequence[Tensor | None]) -> bool:
    """Whether something is chosen for every client, and as much for each."""
    return (
        len({-1 if own is None else own.numel() for own in chosen}) == 1 and chosen[0] is not None
    )


def _taken(tensor: Tensor, index: Tensor, room: Tensor | None = None) -> Tensor:
    """`tensor[index]`, five times as fast; in the memory of `room` if there is any."""
    if room is None:
        room = tensor.new_empty(*index.shape, *tensor.shape[1:])
    torch.index_select(tensor, 0, index.flatten(), out=room.flatten(0, 1))
    return room


def side_by_side(sizes: Sequence[int]) -> list[range]:
    """Spans of these lengths, one after the other."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return [range(start, stop) for start, stop in pairwise(ends)]
