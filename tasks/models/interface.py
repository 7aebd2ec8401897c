"""The inputs and outputs of a trained model, for those who load it without the data. This file does not import
torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a model. `shape` is the shape of an example, `network_shape` its shape after frozen
    features. `mean` and `deviation`, per channel, normalise the inputs. `classes` are the names of the outputs."""

    shape: tuple[int, ...]
    network_shape: tuple[int, ...]
    inputs: str
    outputs: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
