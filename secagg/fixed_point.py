"""A codec for ordinary Flower apps: weighted means in fixed point, without noise.

The vector is [w * arrays, w * metrics, w], so the number of examples and the metrics are in the sum
and nowhere else. Numbers are rounded to a scale at which the sum of the largest possible cohort cannot
wrap around. A reply outside of the limits is refused, never clipped silently. The refusal itself tells
the server that a limit was exceeded, so choose limits that ordinary replies stay within.

No differential privacy: the server learns the exact sum of the survivors. This hides single updates
from the server, not what the mean itself reveals.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from .codec import Sum, VectorFormat
from .errors import Refusal, SettingsError
from .packing import Ring, centred, residues, ring_dtype
from .settings import RoundSettings, Scalar, Sizes


@dataclass(frozen=True)
class FixedPoint:
    """Weighted mean of one ArrayRecord and of named metrics, as FedAvg computes it.

    `value_limit` bounds the absolute value of every array entry, `metric_limit` that of the
    metrics and `weight_limit` the number of examples; server and devices must agree on all of
    them. The names of `metrics` are those that the train handler reports beside the weight.
    """

    value_limit: float = 32.0
    weight_limit: int = 10_000
    metric_limit: float = 1_000.0
    bits: int = 32
    weight_key: str = "num-examples"
    metrics: tuple[str, ...] = ()

    def describe(self, broadcast: RecordDict, sizes: Sizes) -> VectorFormat:
        """Return the length and the ring of the vector; the limits are what the application commits to."""
        arrays = _only(broadcast.array_records, "broadcast", "ArrayRecord")
        dim = sum(math.prod(array.shape) for array in arrays.values()) + len(self.metrics) + 1
        self._scales(sizes)
        return VectorFormat(dim, self.bits, self._application(arrays))

    def strip(self, broadcast: RecordDict) -> RecordDict:
        """Return the broadcast as it is, because the settings do not repeat anything in it."""
        return broadcast

    def restore(self, broadcast: RecordDict, settings: RoundSettings) -> None:
        """Do nothing, because `strip` removes nothing."""

    def encode(self, reply: RecordDict, settings: RoundSettings) -> Ring:
        """Return the weighted arrays, the weighted metrics and the weight in fixed point."""
        arrays = _only(reply.array_records, "reply", "ArrayRecord")
        record = _only(reply.metric_records, "reply", "MetricRecord")
        if dict(settings.application) != self._application(arrays):
            raise Refusal(
                "The server's codec has other limits, metrics or arrays than the device's."
            )
        if settings.bits != self.bits:
            raise Refusal(f"The round has {settings.bits} bits, but this device uses {self.bits}.")
        names = (*self.metrics, self.weight_key)
        if missing := [name for name in names if not isinstance(record.get(name), int | float)]:
            raise Refusal(f"The train handler does not report the number {missing[0]!r}.")
        weight = float(record[self.weight_key])  # type: ignore[arg-type]
        if not (0 <= weight <= self.weight_limit and weight.is_integer()):
            raise Refusal(f"The weight is not a whole number up to {self.weight_limit}.")
        values = np.concatenate(
            [arrays[name].numpy().astype(np.float64).reshape(-1) for name in sorted(arrays)]
        )
        metrics = np.array([record[name] for name in self.metrics], dtype=np.float64)
        _bounded(values, self.value_limit, "the arrays", "value_limit")
        _bounded(metrics, self.metric_limit, "the metrics", "metric_limit")
        value_scale, metric_scale = self._scales(settings.sizes)
        numbers = np.concatenate(
            [values * (weight * value_scale), metrics * (weight * metric_scale), [weight]]
        )
        if len(numbers) != settings.dim:
            raise Refusal(f"The reply has {len(numbers)} numbers where {settings.dim} belong.")
        whole = np.rint(numbers).astype(np.int64)
        return residues(whole, settings.modulus).astype(ring_dtype(self.bits))

    def encode_nothing(self, settings: RoundSettings) -> Ring:
        """Return the vector with weight zero."""
        return np.zeros(settings.dim, dtype=ring_dtype(settings.bits))

    def decode(self, result: Sum, settings: RoundSettings, broadcast: RecordDict) -> RecordDict:
        """Return the weighted means of the arrays and of the metrics, and the sum of the weights."""
        numbers = centred(result.total, settings.modulus).astype(np.float64)
        weight = numbers[-1]
        if weight <= 0:
            raise SettingsError("No survivor has any example: the mean does not exist.")
        value_scale, metric_scale = self._scales(settings.sizes)
        name, template = next(iter(broadcast.array_records.items()))
        means, start = {}, 0
        for key in sorted(template):
            shape = template[key].shape
            size = math.prod(shape)
            mean = numbers[start : start + size] / (value_scale * weight)
            means[key] = _cast(mean.reshape(shape), template[key].dtype)
            start += size
        arrays = ArrayRecord({key: Array(means[key]) for key in template})
        measured = numbers[start:-1] / (metric_scale * weight)
        metrics = MetricRecord(
            {
                **dict(zip(self.metrics, measured.tolist(), strict=True)),
                self.weight_key: int(weight),
            }
        )
        return RecordDict({name: arrays, "metrics": metrics})

    def _application(self, arrays: ArrayRecord) -> dict[str, Scalar]:
        layout = hashlib.sha256()
        for name in sorted(arrays):
            layout.update(f"{name!r} {tuple(arrays[name].shape)};".encode())
        return {
            "codec": "fixed-point/1",
            "layout": layout.digest(),
            "value-limit": float(self.value_limit),
            "metric-limit": float(self.metric_limit),
            "weight-limit": self.weight_limit,
            "weight-key": self.weight_key,
            "metrics": "\n".join(self.metrics),
        }

    def _scales(self, sizes: Sizes) -> tuple[float, float]:
        """Return the largest powers of two at which `sizes.most` clients cannot wrap the ring around."""
        # The slack of one part in 1024 covers rounding to floats, and that the modulus may be a prime below 2^bits;
        # `most` covers rounding to whole numbers.
        room = 2.0 ** (self.bits - 1) * (1 - 2.0**-10) - sizes.most
        exponents = [
            math.log2(room / (sizes.most * self.weight_limit * limit)) if room > 0 else -math.inf
            for limit in (self.value_limit, self.metric_limit)
        ]
        if room < sizes.most * self.weight_limit or min(exponents) < -self.bits:
            raise SettingsError(
                f"{sizes.most} clients of weight {self.weight_limit} do not fit into {self.bits} "
                "bits: raise bits or lower weight_limit."
            )
        return 2.0 ** math.floor(exponents[0]), 2.0 ** math.floor(exponents[1])


T = TypeVar("T")


def _only(records: Mapping[str, T], where: str, kind: str) -> T:
    if len(records) != 1:
        raise Refusal(f"The {where} has {len(records)} {kind}s where exactly one is summed.")
    return next(iter(records.values()))


def _bounded(values: NDArray[np.float64], limit: float, what: str, option: str) -> None:
    if not np.max(np.abs(values), initial=0.0) <= limit:  # true for NaN as well
        # The sentence goes to the server: it names the limit, never the value.
        raise Refusal(f"A number of {what} is beyond {limit:g}: raise {option} on both sides.")


def _cast(values: NDArray[np.float64], dtype: str) -> NDArray[np.generic]:
    kind = np.dtype(dtype)
    # asarray: numpy turns an array without dimensions into a scalar when it rounds.
    return np.asarray(np.rint(values) if kind.kind in "iu" else values).astype(kind)
