"""What a trained model takes and gives, for those who load it without the data. In a file of its own, because it needs
no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a model. `shape` is that of an example, `network_shape` that of an example after frozen
    features. `mean` and `deviation`, per channel, normalise the inputs; `classes` name the outputs."""

    shape: tuple[int, ...]
    network_shape: tuple[int, ...]
    inputs: str
    outputs: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
