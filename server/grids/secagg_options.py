"""The settings of secure aggregation in the form that `secagg` takes, and its errors in the words of the
configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.errors import ConfigError
from fedsketch.secagg import ProtocolName, SecAggOptions, SettingsError
from fedsketch.server.grids.cheapest import cheapest
from fedsketch.strategies.rounds.codec import Choice

# What the sentences of `secagg` speak of, and where a user sets it.
_KEYS = {
    "clients": "clients.per_round or evaluation.clients",
    "groups": "strategy.groups or evaluation.groups",
    "drops": "clients.tolerated_dropouts",
    "losses": "clients.tolerated_losses",
    "colluders": "secagg.colluders",
    "consistency": "secagg=pairwise or semi_honest",
    "bits": "secagg.bits",
    "pairwise masks": "secagg=pairwise",
}


def secagg_options(config: Config) -> SecAggOptions:
    """Return the options of secure aggregation in this run."""
    assert not isinstance(config.secagg, NoSecAggConfig)
    name = config.secagg.name
    return SecAggOptions(
        drops=config.clients.tolerated_dropouts,
        losses=config.clients.tolerated_losses,
        colluders=config.secagg.colluders,
        consistency=name != "semi_honest",
        protocol=ProtocolName.TWO_TRIPS if name == "two_trips" else ProtocolName.PAIRWISE,
        merged=config.secagg.merged,
        stage_timeout=config.secagg.stage_timeout,
        train_timeout=config.clients.timeout,
        patience=config.secagg.patience,
    )


def protocol_choice(config: Config) -> Choice | None:
    """Return how the protocol of each kind of round is chosen; None where the options name it."""
    if config.secagg.name != "auto":
        return None
    options = secagg_options(config)

    def choose(n: int, groups: int, dim: int, bits: int) -> ProtocolName:
        return cheapest(options, replace(options, groups=groups).sizes(n), dim, bits, bits)

    return choose


@contextmanager
def config_errors() -> Iterator[None]:
    """Raise ConfigError where secure aggregation refuses the settings of a round: its sentence, and the keys that set
    what the sentence speaks of."""
    try:
        yield
    except SettingsError as error:
        keys = [
            f"{key} for {word}"
            for word, key in _KEYS.items()
            if re.search(rf"\b{word}\b", str(error))
        ]
        raise ConfigError(
            f"{error} The keys: {'; '.join(keys)}." if keys else str(error)
        ) from error
