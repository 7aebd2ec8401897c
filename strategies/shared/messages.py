"""What the two halves of a strategy say to each other, as typed objects and as Flower records.

Down goes a `Broadcast`, the same for the whole cohort. Up comes one vector per client, or one sum per cohort if secure
aggregation sits between; either way the server makes an `Aggregate` of it and never asks whose it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsketch.conf import Config, device_json, from_json
from fedsketch.strategies.shared.terms import Terms, terms_from_record

Number = int | float | str | bytes | bool


@dataclass(frozen=True)
class Broadcast:
    """What every client of a cohort gets in a round: tensors (the model and what the strategy adds), numbers, terms."""

    config: Config
    round: int
    terms: Terms
    arrays: Mapping[str, torch.Tensor]
    numbers: Mapping[str, Number] = field(default_factory=dict)

    @property
    def model(self) -> torch.Tensor:
        return self.arrays["model"]

    def to_records(self) -> RecordDict:
        return RecordDict(
            {
                "arrays": ArrayRecord({k: Array(v.cpu().numpy()) for k, v in self.arrays.items()}),
                "numbers": ConfigRecord(dict(self.numbers)),
                "terms": ConfigRecord(self.terms.to_record()),  # type: ignore[arg-type]
                "head": ConfigRecord({"config": device_json(self.config), "round": self.round}),
            }
        )

    @staticmethod
    def from_records(records: RecordDict) -> "Broadcast":
        head = records.config_records["head"]
        arrays = records.array_records["arrays"]
        return Broadcast(
            config=from_json(str(head["config"])),
            round=int(head["round"]),  # type: ignore[arg-type]
            terms=terms_from_record(dict(records.config_records["terms"])),  # type: ignore[arg-type]
            arrays={key: _tensor(array) for key, array in arrays.items()},
            numbers=dict(records.config_records["numbers"]),  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Aggregate:
    """The sum over the clients that arrived, how many they were, and the standard deviation of the noise in each
    coordinate of the sum."""

    sum: torch.Tensor
    clients: int
    noise_std: float


def decoded(records: RecordDict) -> Broadcast:
    """The broadcast in these records; the clients of a cohort that share a process, and so the records, share the result."""
    global _last
    mine = tuple(records[name] for name in _RECORDS)
    if _last is None or any(a is not b for a, b in zip(_last[0], mine, strict=True)):
        _last = (mine, Broadcast.from_records(records))
    return _last[1]


_RECORDS = ("head", "terms", "numbers", "arrays")
_last: tuple[tuple[object, ...], Broadcast] | None = None


def _tensor(array: Array) -> torch.Tensor:
    # Flower hands out read-only memory that the message owns; torch wants to be allowed to write.
    return torch.from_numpy(array.numpy().copy())
