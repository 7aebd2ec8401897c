"""The usual keys of Flower's apps, translated into overrides (docs/how-to/flower.md).

A key of the run config counts as set unless it is "", which is its value in pyproject.toml. A key that is set must not
be set by `overrides` too, because it would not be clear which of the two is meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedsketch.errors import ConfigError

FRACTION, NODES = "fraction-train", "num-clients"
KEYS = {
    "num-server-rounds": "rounds",
    NODES: "clients.total",
    FRACTION: "clients.per_round",
    "local-epochs": "strategy.local.epochs",
    "batch-size": "strategy.local.batch",
    "learning-rate": "strategy.local.lr",
    "momentum": "strategy.local.momentum",
    "server-learning-rate": "strategy.server.lr",
    "clipping-norm": "privacy.clip",
    "noise-multiplier": "privacy.noise_multiplier",
    "server-device": "device",
    "seed": "seed",
}
_TOTAL, _PER_ROUND = KEYS[NODES], KEYS[FRACTION]


def translated(
    run_config: Mapping[str, object], overrides: Sequence[str], nodes: int | None = None
) -> list[str]:
    """Return all overrides of a run. `nodes` is the number of nodes if it is fixed, as in Flower's simulation. Then
    all of them are clients, unless the run says otherwise."""
    given = {key: run_config[key] for key in KEYS if run_config.get(key, "") != ""}
    named = {override.partition("=")[0].lstrip("+~") for override in overrides}
    for key, value in given.items():
        if KEYS[key] in named:
            raise ConfigError(
                f"{key}={value} and the override {KEYS[key]} set the same value: leave out one of them."
            )
    ours = {KEYS[key]: value for key, value in given.items() if key != FRACTION}
    if nodes is not None and not named & {_TOTAL, "experiment"}:
        ours.setdefault(_TOTAL, nodes)
    if _PER_ROUND not in named and _TOTAL in ours:
        ours[_PER_ROUND] = ours[_TOTAL]
    if FRACTION in given:
        ours[_PER_ROUND] = _fraction_of(given[FRACTION], ours.get(_TOTAL))
    return [*overrides, *(f"{key}={value}" for key, value in ours.items())]


def _fraction_of(fraction: object, total: object) -> int:
    """Return the number of clients, rounded as Flower does: down, and at least one."""
    if not isinstance(total, int):
        raise ConfigError(
            f"{FRACTION}={fraction} is a fraction of an unknown number: set {NODES} too, or the override "
            "clients.per_round instead."
        )
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise ConfigError(f"{FRACTION}={fraction} is no share: set it above 0 and at most 1.")
    return max(1, int(total * fraction))
