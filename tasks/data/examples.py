"""The two containers of a data set: `Examples` and `Dataset`.

All clients simulated in one process share one copy of the tensors, so they must not be changed. `take` copies.

**Places.** Where the privacy unit is the example, a real device has *places*, each with a record or blank. A record
that cannot be used leaves its place blank: zeros, and False in `present`. The others keep their places, so nothing
that is computed for them depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError

_FORMS = {
    (torch.int64, 1): Targets.CLASSES,
    (torch.float32, 1): Targets.NUMBERS,
    (torch.float32, 2): Targets.LABELS,
}


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs (N, *shape) in float32, or in int64 (such as tokens), and targets in one of the forms of `Targets`.
    Read-only by convention."""

    inputs: torch.Tensor
    targets: torch.Tensor
    # Which of the places hold a record, (N,) in bool. None: these are examples without places, and all of them count.
    present: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.inputs.ndim < 2 or self.targets.shape[:1] != self.inputs.shape[:1]:
            raise DataError(
                f"Inputs of shape {tuple(self.inputs.shape)} and targets of shape "
                f"{tuple(self.targets.shape)} do not fit together: give (N, ...) and (N)."
            )
        form = (self.targets.dtype, self.targets.ndim)
        if self.inputs.dtype not in (torch.float32, torch.int64) or form not in _FORMS:
            raise DataError(
                f"Inputs of {self.inputs.dtype} and targets of {self.targets.dtype} {tuple(self.targets.shape)} "
                "cannot be learned from: give inputs in float32 or int64, and targets in int64 (N) for classes, "
                "float32 (N) for numbers, float32 (N, L) for labels."
            )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: channels, height and width of an image, or the length of a vector."""
        return tuple(self.inputs.shape[1:])

    @property
    def kind_of_targets(self) -> Targets:
        """The form of the targets."""
        return _FORMS[self.targets.dtype, self.targets.ndim]

    def take(self, indices: torch.Tensor) -> Examples:
        """Return a copy of the examples at these indices, in their order."""
        kept = None if self.present is None else self.present[indices]
        return Examples(self.inputs[indices], self.targets[indices], kept)

    def in_places(self) -> Examples:
        """Return the same examples, each in a place of its own."""
        if self.present is not None:
            return self
        return Examples(self.inputs, self.targets, torch.ones(len(self), dtype=torch.bool))

    def there(self) -> Examples:
        """Return the examples without blank places."""
        if self.present is None:
            return self
        return Examples(self.inputs[self.present], self.targets[self.present])

    def only(self, chosen: torch.Tensor) -> Examples:
        """Return the same places, of which those that are not `chosen`, (N,) in bool, do not count."""
        places = self.in_places()
        assert places.present is not None
        return Examples(self.inputs, self.targets, places.present & chosen)

    def padded(self, multiple: int) -> Examples:
        """Return the same places and blank ones behind them, so that their number is a multiple of this, and not 0."""
        places = self.in_places()
        assert places.present is not None
        more = -len(self) % multiple if len(self) else multiple
        return Examples(
            *(
                torch.cat([tensor, tensor.new_zeros(more, *tensor.shape[1:])])
                for tensor in (self.inputs, self.targets, places.present)
            )
        )


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training examples, which are distributed over clients, and test examples.

    - `classes` is the number of classes, labels or values of a target; `class_names` are their names, if they have
      any.
    - `groups` is the natural group (such as a hospital) of each training example, counted from 0; `group_names` are
      their names.
    - `mean` and `deviation`, per channel, are those with which the data set has normalised pixels from 0 to 1. The
      defaults stand for no normalisation.
    """

    name: str
    train: Examples
    test: Examples
    classes: int
    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    class_names: tuple[str, ...] = ()
    groups: torch.Tensor | None = None
    group_names: tuple[str, ...] = ()

    def normalised(self, examples: Examples) -> Examples:
        """Normalise examples with pixels from 0 to 1 as this data set is normalised."""
        inputs = normalise_(examples.inputs.clone(), self.mean, self.deviation)
        return Examples(inputs, examples.targets)


def normalise_(
    inputs: torch.Tensor, mean: Sequence[float], deviation: Sequence[float]
) -> torch.Tensor:
    """Subtract the mean of every channel and divide by its standard deviation, in place."""
    view = (1, -1) + (1,) * (inputs.ndim - 2)
    shift, scale = (torch.tensor(values).view(view) for values in (mean, deviation))
    return inputs.sub_(shift).div_(scale)
