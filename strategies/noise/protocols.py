"""How the sums of a round are made: the options of secure aggregation in the form that `secagg` takes, and the protocol
of each kind of round.

With `secagg=auto` a kind of round has the protocol that sends fewer bytes per client and round, of those whose
conditions its cohort fulfils.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.secagg import ProtocolName, SecAggOptions, SettingsError, VectorFormat, cheapest

# What a name promises. Without secure aggregation integers are summed as under pairwise masks.
_NAMED = {
    "none": ProtocolName.PAIRWISE,
    "pairwise": ProtocolName.PAIRWISE,
    "semi_honest": ProtocolName.PAIRWISE,
    "two_trips": ProtocolName.TWO_TRIPS,
}


def secagg_options(config: Config) -> SecAggOptions:
    """Return the options of secure aggregation in this run."""
    assert not isinstance(config.secagg, NoSecAggConfig)
    return SecAggOptions(
        drops=config.clients.tolerated_dropouts,
        losses=config.clients.tolerated_losses,
        colluders=config.secagg.colluders,
        consistency=config.secagg.name != "semi_honest",
        protocol=_NAMED.get(config.secagg.name),
        merged=config.secagg.merged,
        stage_timeout=config.secagg.stage_timeout,
        train_timeout=config.clients.timeout,
        patience=config.secagg.patience,
    )


def protocol_of(
    config: Config, cohort: int, groups: int, dim: int, bits: Mapping[ProtocolName, int]
) -> ProtocolName:
    """Return how a cohort of this size sums vectors of `dim` numbers in so many groups. `bits` has the ring of each
    protocol, and lacks those that have none."""
    named = _NAMED.get(config.secagg.name)
    return named or _cheapest(secagg_options(config), cohort, groups, dim, tuple(bits.items()))


@lru_cache(maxsize=256)
def _cheapest(
    options: SecAggOptions,
    cohort: int,
    groups: int,
    dim: int,
    bits: tuple[tuple[ProtocolName, int], ...],
) -> ProtocolName:
    vectors = [VectorFormat(dim, size, groups=groups, protocol=name) for name, size in bits]
    # If neither is possible, the round is refused with the sentence about pairwise masks, whose conditions are weaker.
    with suppress(SettingsError):
        return cheapest(options, vectors, cohort)
    return ProtocolName.PAIRWISE
