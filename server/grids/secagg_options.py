"""The settings of secure aggregation in the form that `secagg` takes, and its errors in the words of the
configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.errors import ConfigError
from fedsketch.secagg import SecAggOptions, SettingsError

# What the sentences of `secagg` speak of, and where a user sets it.
_KEYS = {
    "clients": "clients.per_round or evaluation.clients",
    "groups": "strategy.groups or evaluation.groups",
    "drops": "clients.tolerated_dropouts",
    "colluders": "secagg.colluders",
    "consistency": "secagg=pairwise or semi_honest",
    "bits": "secagg.bits",
}


def secagg_options(config: Config) -> SecAggOptions:
    """Return the options of secure aggregation in this run."""
    assert not isinstance(config.secagg, NoSecAggConfig)
    return SecAggOptions(
        drops=config.clients.tolerated_dropouts,
        colluders=config.secagg.colluders,
        consistency=config.secagg.name == "pairwise",
        merged=config.secagg.merged,
        stage_timeout=config.secagg.stage_timeout,
        train_timeout=config.clients.timeout,
        patience=config.secagg.patience,
    )


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
