"""The resolver `nearest`: a value that follows another one, by a small table in a YAML file.

    strategy:
      server:
        lr: ${nearest:${privacy.epsilon},{0.5:0.01,2:0.04,8:0.1}}

The value is that of the nearest key, by logarithm: 1 lies between 0.5 and 2, and 0.9 is nearer to 0.5 than to 2.
Halfway it is the smaller key. Whoever sets the key itself (`strategy.server.lr=0.02`) has the last word. With
`privacy.epsilon=null` the noise is given and no epsilon is known before the run, so nothing is near: the key must be
set, and the error says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from omegaconf import Node, OmegaConf

from fedsketch.errors import ConfigError


def register_resolvers() -> None:
    """Make `${nearest:...}` known to OmegaConf; again and again, if need be."""
    OmegaConf.register_new_resolver("nearest", _resolve, replace=True)


def nearest(value: float, table: Mapping[float, float]) -> float:
    """Return the entry of the key with the least |log(key / value)|; of two equally near ones that of the smaller
    key."""
    # Rounded, so that "halfway" does not hang on the last bit of a logarithm.
    key = min(sorted(table), key=lambda key: round(abs(math.log(key / value)), 9))
    return table[key]


def _resolve(value: Any, table: Any, *, _node_: Node) -> float:
    """Return the value, as OmegaConf calls it; `_node_` is where the interpolation stands."""
    key = _node_._get_full_key(None)
    if not isinstance(table, Mapping) or not table:
        raise ConfigError(
            f"{key} takes the nearest value of a table: "
            "write it as in ${nearest:${privacy.epsilon},{1:0.02,8:0.1}}."
        )
    for entry in (*table, *table.values()):
        if not _positive(entry):
            raise ConfigError(
                f"The table of {key} has the entry {entry}: all of its keys and values must be positive numbers."
            )
    if not _positive(value):
        raise ConfigError(
            f"{key} follows privacy.epsilon by a table, and {value} is not a finite positive number: "
            f"set {key}, or a positive privacy.epsilon."
        )
    return nearest(float(value), {float(k): float(v) for k, v in table.items()})


def _positive(number: object) -> bool:
    ours = isinstance(number, int | float) and not isinstance(number, bool)
    return ours and math.isfinite(number) and number > 0  # type: ignore[operator, arg-type]
