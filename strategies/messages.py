"""What the two halves of a strategy say to each other, as typed objects and as Flower records.

Down goes a `Broadcast`, the same for the whole cohort. Up comes one vector per client, or one sum per cohort if secure
aggregation sits between; either way the server makes an `Aggregate` of it and never asks whose it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from conf import Config, from_json, to_json

Number = int | float | str | bytes | bool


@dataclass(frozen=True)
class Terms:
    """How a device must bound and blur what it sends: L2 clip per unit (None: no bound), and the standard deviation of the
    noise that it adds to every coordinate."""

    clip: float | None
    noise_std: float


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
        head: dict[str, Number] = {
            "config": to_json(self.config),
            "round": self.round,
            "noise-std": self.terms.noise_std,
        }
        if self.terms.clip is not None:
            head["clip"] = self.terms.clip
        return RecordDict(
            {
                "arrays": ArrayRecord({k: Array(v.cpu().numpy()) for k, v in self.arrays.items()}),
                "numbers": ConfigRecord(dict(self.numbers)),
                "head": ConfigRecord(head),  # type: ignore[arg-type]
            }
        )

    @staticmethod
    def from_records(records: RecordDict) -> "Broadcast":
        head = records.config_records["head"]
        arrays = records.array_records["arrays"]
        return Broadcast(
            config=from_json(str(head["config"])),
            round=int(head["round"]),  # type: ignore[arg-type]
            terms=Terms(head.get("clip"), float(head["noise-std"])),  # type: ignore[arg-type]
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


def upload(vector: np.ndarray, clients: int = 1) -> RecordDict:
    """The content of a reply: one vector that stands for so many clients, and nothing else."""
    return RecordDict(
        {
            "update": ArrayRecord({"sum": Array(vector)}),
            "cohort": MetricRecord({"clients": clients}),
        }
    )


def uploaded(records: RecordDict) -> tuple[np.ndarray, int]:
    """The inverse of `upload`."""
    vector = records.array_records["update"]["sum"].numpy()
    return vector, int(records.metric_records["cohort"]["clients"])  # type: ignore[arg-type]


def _tensor(array: Array) -> torch.Tensor:
    # Flower hands out read-only memory that the message owns; torch wants to be allowed to write.
    return torch.from_numpy(array.numpy().copy())
