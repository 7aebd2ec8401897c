"""The two containers every data set is delivered in.

All clients simulated in one process share one copy of the tensors, so nobody may write into them;
`take` copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedsketch.tasks.errors import DataError


@dataclass(frozen=True, eq=False)
class Examples:
    """Images (N, C, H, W) in float32 and their classes (N) in int64; read-only by convention."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __post_init__(self) -> None:
        if self.inputs.ndim != 4 or self.targets.shape != self.inputs.shape[:1]:
            raise DataError(
                f"Inputs of shape {tuple(self.inputs.shape)} and targets of shape "
                f"{tuple(self.targets.shape)} do not go together: give (N, C, H, W) and (N)."
            )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one example."""
        _, channels, height, width = self.inputs.shape
        return channels, height, width

    def take(self, indices: torch.Tensor) -> "Examples":
        """A copy of the examples at these indices, in their order."""
        return Examples(self.inputs[indices], self.targets[indices])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples to train on, to be spread over clients, and examples to test on.

    `mean` and `deviation`, per channel, are those with which it normalised pixels from 0 to 1; without effect if it did not.
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    groups: torch.Tensor | None = None

    def normalised(self, examples: Examples) -> Examples:
        """Examples with pixels from 0 to 1, on the scale of this data set."""
        inputs = normalise_(examples.inputs.clone(), self.mean, self.deviation)
        return Examples(inputs, examples.targets)


def normalise_(
    inputs: torch.Tensor, mean: Sequence[float], deviation: Sequence[float]
) -> torch.Tensor:
    """Every channel less its mean, over its deviation; in place."""
    shift, scale = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, deviation))
    return inputs.sub_(shift).div_(scale)
