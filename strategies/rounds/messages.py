"""The messages between the two halves of a strategy, as typed objects and as Flower records.

The server sends a `Broadcast`, the same to the whole cohort. It gets one vector per client, or with secure aggregation
one sum per cohort. In both cases it makes an `Aggregate`, in which single clients' vectors do not appear, unless a
strategy asks for the parts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsketch.conf import Config, device_json, from_json
from fedsketch.errors import ConfigError
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.strategies.rounds.uploads import MECHANISM, NUMBERS

Number = int | float | str | bytes | bool
ARRAYS = "arrays"
_LONGEST_CONFIG = 1 << 16  # characters; a usual configuration has about two thousand


@dataclass(frozen=True)
class Broadcast:
    """The message that every client of a cohort gets in a round: tensors (the model and those of the strategy),
    numbers, and the mechanism.

    With secure aggregation the mechanism is sent in the round's settings instead. After the device's guard has
    accepted it, the device's codec puts it back into the broadcast (`strategies.rounds.codec`).
    """

    config: Config
    round: int
    mechanism: Mechanism
    arrays: Mapping[str, torch.Tensor]
    numbers: Mapping[str, Number] = field(default_factory=dict)

    @property
    def model(self) -> torch.Tensor:
        return self.arrays["model"]

    def to_records(self) -> RecordDict:
        head = ConfigRecord({"config": device_json(self.config), "round": self.round})
        mechanism = ConfigRecord(self.mechanism.to_record())  # type: ignore[arg-type]
        records = RecordDict({"head": head, MECHANISM: mechanism})
        if self.arrays:
            records[ARRAYS] = encoded(self.arrays)
        if self.numbers:
            records[NUMBERS] = ConfigRecord(dict(self.numbers))
        return records

    @staticmethod
    def from_records(
        records: RecordDict, decode: Callable[..., torch.Tensor] | None = None
    ) -> "Broadcast":
        """Read a broadcast. `decode` makes a tensor from the fields of a Flower array (default: `decoded`). A caller
        that reads the same broadcast many times can pass a function that caches tensors."""
        make = decoded if decode is None else decode
        head = records.config_records["head"]
        arrays = records.array_records.get(ARRAYS, ArrayRecord())
        return Broadcast(
            config=from_json(str(head["config"])),
            round=int(head["round"]),  # type: ignore[arg-type]
            mechanism=mechanism_from_record(records.config_records[MECHANISM]),
            arrays={
                key: make(array.dtype, tuple(array.shape), array.stype, array.data)
                for key, array in arrays.items()
            },
            numbers=dict(records.config_records.get(NUMBERS, {})),  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Aggregate:
    """The sum over the clients that delivered, which clients they were, and the standard deviation of the noise in
    each coordinate of the sum. `parts` are the sums that it was made of, if the strategy asks for them."""

    sum: torch.Tensor
    clients: int
    noise_std: float
    members: tuple[int, ...] = ()
    parts: tuple["Aggregate", ...] = ()


def signal_to_noise(aggregate: Aggregate) -> float | None:
    """Return the estimated norm of the noise-free sum divided by the expected norm of the noise. None without
    noise."""
    if aggregate.noise_std == 0:
        return None
    noise = aggregate.noise_std**2 * aggregate.sum.numel()
    signal = float(aggregate.sum.double().square().sum()) - noise
    return (max(signal, 0.0) / noise) ** 0.5


def announced(records: RecordDict) -> tuple[Config, dict[str, Number]]:
    """Return the configuration and the numbers of a broadcast, before the codec has put the mechanism into it."""
    text = str(records.config_records["head"]["config"])
    if len(text) > _LONGEST_CONFIG:
        raise ConfigError(
            f"The configuration in the message has more than {_LONGEST_CONFIG:,} characters."
        )
    config = from_json(text)
    return config, dict(records.config_records.get(NUMBERS, {}))  # type: ignore[arg-type]


def encoded(tensors: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Return tensors as Flower arrays."""
    return ArrayRecord({key: Array(tensor.cpu().numpy()) for key, tensor in tensors.items()})


def decoded(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> torch.Tensor:
    """Return the tensor in a Flower array."""
    # Copied, because the memory of a Flower message is read-only, and torch needs writable memory.
    return torch.from_numpy(Array(dtype, shape, stype, data).numpy().copy())
