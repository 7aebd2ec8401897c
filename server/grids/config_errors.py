"""Errors of secure aggregation in the words of the configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedsketch.errors import ConfigError
from fedsketch.secagg import SettingsError

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
