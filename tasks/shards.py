"""The examples of several clients at once, side by side: what a simulation of a whole cohort works on."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedsketch.tasks.examples import Examples


@dataclass(frozen=True, eq=False)
class Batches:
    """One batch of each of n clients, filled up to the same length m: inputs (n, m, *shape), targets (n, m, ...), and weights (n, m), which
    are 1 / (the client's own number) for examples and 0 for what fills up. A weighted sum over a row is the mean over the client's batch.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Shards:
    """The places in `examples` of what each client has."""

    examples: Examples
    parts: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def sizes(self) -> list[int]:
        return [len(part) for part in self.parts]

    def of(self, chosen: Sequence[int]) -> "Shards":
        """Those of the chosen clients, by their place here."""
        return Shards(self.examples, tuple(self.parts[place] for place in chosen))

    def together(self) -> Examples:
        """All of them, client by client."""
        return self.examples.take(torch.cat(self.parts))

    def batches(self, chosen: Sequence[Tensor | None] | None = None) -> Batches:
        """The chosen examples of each client, by their number in its shard; all of them where nothing is chosen.

        What fills a batch up is one of the client's own examples, so that nobody's numbers meet those of others.
        """
        places = list(self.parts)
        if chosen is not None:
            places = [
                part if own is None else part[own]
                for part, own in zip(self.parts, chosen, strict=True)
            ]
        counts = torch.tensor([len(own) for own in places])
        if bool((counts == counts[0]).all()):
            index = torch.stack(places)
            weights = torch.full(index.shape, 1.0 / int(counts[0]))
        else:
            filled = torch.arange(int(counts.max())) < counts[:, None]
            index = pad_sequence(places, batch_first=True)
            index = torch.where(filled, index, index[:, :1])
            weights = filled / counts[:, None]
        return Batches(self.examples.inputs[index], self.examples.targets[index], weights)
