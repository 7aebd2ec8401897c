"""What the two halves of a strategy say to each other, as typed objects and as Flower records.

Down goes a `Broadcast`, the same for the whole cohort. Up comes one vector per client, or one sum per cohort if secure
aggregation sits between; either way the server makes an `Aggregate` of it and never asks whose it was.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsketch.conf import Config, ConfigError, device_json, from_json
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.strategies.shared.uploads import MECHANISM, NUMBERS

Number = int | float | str | bytes | bool
ARRAYS = "arrays"
_LONGEST_CONFIG = 1 << 16  # characters; ours have about two thousand


@dataclass(frozen=True)
class Broadcast:
    """What every client of a cohort gets in a round: tensors (the model and what the strategy adds), numbers, and the
    mechanism.

    Under secure aggregation the mechanism travels in the round's settings instead, and the device's codec puts what was
    admitted there back into its place (`strategies.shared.codec`).
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
        records = RecordDict({"head": head, MECHANISM: ConfigRecord(self.mechanism.to_record())})  # type: ignore[arg-type]
        if self.arrays:
            records[ARRAYS] = encoded(self.arrays)
        if self.numbers:
            records[NUMBERS] = ConfigRecord(dict(self.numbers))
        return records

    @staticmethod
    def from_records(
        records: RecordDict, decode: Callable[..., torch.Tensor] | None = None
    ) -> "Broadcast":
        """`decode` makes a tensor of an array's fields, `decoded` unless given: who reads one broadcast many times may
        remember it."""
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
    """The sum over the clients that arrived, who they were, and the standard deviation of the noise in each
    coordinate of the sum; and the sums that it was made of, where the strategy asks for them."""

    sum: torch.Tensor
    clients: int
    noise_std: float
    members: tuple[int, ...] = ()
    parts: tuple["Aggregate", ...] = ()


def signal_to_noise(aggregate: Aggregate) -> float | None:
    """Estimated norm of the noise-free sum over the expected norm of the noise; None without noise."""
    if aggregate.noise_std == 0:
        return None
    noise = aggregate.noise_std**2 * aggregate.sum.numel()
    signal = float(aggregate.sum.double().square().sum()) - noise
    return (max(signal, 0.0) / noise) ** 0.5


def announced(records: RecordDict) -> tuple[Config, dict[str, Number]]:
    """The configuration and the numbers of a broadcast, before its mechanism is in place."""
    text = str(records.config_records["head"]["config"])
    if len(text) > _LONGEST_CONFIG:
        raise ConfigError("The configuration in the message is too long to be one.")
    config = from_json(text)
    return config, dict(records.config_records.get(NUMBERS, {}))  # type: ignore[arg-type]


def encoded(tensors: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Tensors as Flower's arrays."""
    return ArrayRecord({key: Array(tensor.cpu().numpy()) for key, tensor in tensors.items()})


def decoded(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> torch.Tensor:
    """The tensor in a Flower array."""
    # Flower hands out read-only memory that the message owns; torch wants to be allowed to write.
    return torch.from_numpy(Array(dtype, shape, stype, data).numpy().copy())
