"""The decorator that freezes and checks settings classes, and the ranges of their numbers."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal, TypeVar, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(Field, field))
def frozen(settings: type[_T]) -> type[_T]:
    """Turn a class into one whose objects are checked when they are made, and cannot be changed afterwards."""
    return dataclass(settings, frozen=True, config=_STRICT)  # type: ignore[return-value]


def _whole_from_1(value: float) -> float:
    if value >= 1 and not value.is_integer():
        raise PydanticCustomError("no_count", "from 1 on it should be a whole number")
    return value if value < 1 else int(value)


Count = Annotated[int, Field(ge=1)]
"""A whole number from 1."""
Positive = Annotated[float, Field(gt=0)]
"""A number above 0."""
NotNegative = Annotated[float, Field(ge=0)]
"""A number from 0."""
Fraction = Annotated[float, Field(ge=0, lt=1)]
"""A number from 0 and below 1."""
FractionOrCount = Annotated[float, Field(ge=0), AfterValidator(_whole_from_1)]
"""A share below 1, or a whole number from 1 on, which is an int."""
Bits = Annotated[int, Field(ge=16, le=64)]
"""The size of a ring."""
RingBits = Bits | Literal["auto"]
"""The size of a ring, or that it is to be chosen."""
