"""The message that the server sends to the whole cohort, as a typed object and as Flower records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsketch.conf import Config, device_json, from_json
from fedsketch.errors import ConfigError
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.strategies.rounds.codec import CONFIG, HEAD, MECHANISM, ROUND

Scalar = int | float | str | bytes | bool
ARRAYS = "arrays"
_LONGEST_CONFIG = 1 << 16  # characters; a usual configuration has about two thousand


@dataclass(frozen=True)
class Broadcast:
    """The message that every client of a cohort gets in a round: tensors (the model and those of the strategy),
    scalars, and the mechanism.

    With secure aggregation the mechanism is sent in the round's settings instead. After the device's guard has
    accepted it, the device's codec puts it back into the broadcast (`strategies.rounds.codec`).
    """

    config: Config
    round: int
    mechanism: Mechanism
    arrays: Mapping[str, torch.Tensor]
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def model(self) -> torch.Tensor:
        return self.arrays["model"]

    def to_records(self) -> RecordDict:
        own: dict[str, Scalar] = {CONFIG: device_json(self.config), ROUND: self.round}
        if not own.keys().isdisjoint(self.scalars):
            raise ValueError(f"A strategy's scalars cannot be named {CONFIG} or {ROUND}.")
        head = ConfigRecord({**own, **self.scalars})
        mechanism = ConfigRecord(self.mechanism.to_record())  # type: ignore[arg-type]
        records = RecordDict({HEAD: head, MECHANISM: mechanism})
        if self.arrays:
            records[ARRAYS] = encoded(self.arrays)
        return records

    @staticmethod
    def from_records(records: RecordDict) -> Broadcast:
        """Read a broadcast."""
        head = records.config_records[HEAD]
        arrays = records.array_records.get(ARRAYS, ArrayRecord())
        return Broadcast(
            config=from_json(str(head[CONFIG])),
            round=int(head[ROUND]),  # type: ignore[arg-type]
            mechanism=mechanism_from_record(records.config_records[MECHANISM]),
            arrays={key: decoded(array) for key, array in arrays.items()},
            scalars=scalars_in(records),
        )


class BroadcastReader:
    """Reads broadcasts, and keeps the last one: all clients of a cohort that share a process receive the same content,
    and get the same object. It must not be changed."""

    def __init__(self) -> None:
        self._last: tuple[object, Broadcast] | None = None

    def read(self, records: RecordDict) -> Broadcast:
        """Return the broadcast in these records."""
        content = _content(records)
        if self._last is None or self._last[0] != content:
            self._last = (content, Broadcast.from_records(records))
        return self._last[1]


def _content(records: RecordDict) -> object:
    """Return all that a broadcast is made from, to be compared. Bytes that are the same object compare quickly."""
    arrays = records.array_records.get(ARRAYS, ArrayRecord())
    return (
        [(key, array.dtype, tuple(array.shape), array.data) for key, array in arrays.items()],
        [dict(records.config_records.get(name, {})) for name in (HEAD, MECHANISM)],
    )


def announced(records: RecordDict) -> tuple[Config, dict[str, Scalar]]:
    """Return the configuration and the scalars of a broadcast, before the codec has put the mechanism into it."""
    text = str(records.config_records[HEAD][CONFIG])
    if len(text) > _LONGEST_CONFIG:
        raise ConfigError(
            f"The configuration in the message has more than {_LONGEST_CONFIG:,} characters."
        )
    return from_json(text), scalars_in(records)


def scalars_in(records: RecordDict) -> dict[str, Scalar]:
    """Return the scalars of a broadcast."""
    head = records.config_records[HEAD].items()
    return {key: value for key, value in head if key not in (CONFIG, ROUND)}  # type: ignore[misc]


def encoded(tensors: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Return tensors as Flower arrays."""
    return ArrayRecord({key: Array(tensor.cpu().numpy()) for key, tensor in tensors.items()})


def decoded(array: Array) -> torch.Tensor:
    """Return the tensor in a Flower array."""
    # Copied, because the memory of a Flower message is read-only, and torch needs writable memory.
    return torch.from_numpy(array.numpy().copy())
