"""The type of a setting in words: what a user may put there."""

import types
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo

_PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text"}


def in_words(kind: Any) -> str:
    """Such as `whole number, at least 1, or null`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _with_bounds(in_words(arguments[0]), arguments[1:])
    if origin in (Union, types.UnionType):
        return ", or ".join(in_words(one) for one in arguments)
    if origin is Literal:
        return _one_of([one.value if isinstance(one, Enum) else one for one in arguments])
    if kind is types.NoneType:
        return "null"
    if origin is tuple:
        return f"list of {in_words(arguments[0])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _one_of([one.value for one in kind])
    return _PLAIN[kind]


def _one_of(values: list[Any]) -> str:
    told = [f"`{value}`" for value in values]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} or {told[-1]}"


def _with_bounds(plain: str, metadata: tuple[Any, ...]) -> str:
    bounds = [
        bound
        for one in metadata
        for bound in (one.metadata if isinstance(one, FieldInfo) else [one])
    ]
    told = [plain, *(text for bound in bounds if (text := _bound(bound)))]
    return ", ".join(told)


def _bound(bound: Any) -> str | None:
    match bound:
        case Ge(ge=value):
            return f"at least {value:,}"
        case Gt(gt=value):
            return f"above {value:,}"
        case Le(le=value):
            return f"at most {value:,}"
        case Lt(lt=value):
            return f"below {value:,}"
        case MinLen() | MaxLen():
            return None
    return None
