"""Which protocol sums the vectors of a kind of round."""

from __future__ import annotations

from collections.abc import Callable

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.errors import RingTooSmallError
from fedsketch.secagg import (
    ProtocolName,
    SecAggOptions,
    SettingsError,
    VectorFormat,
    cheapest,
    modulus_of,
)

_NAMES = {
    "none": ProtocolName.PAIRWISE,  # integers are summed as under pairwise masks
    "pairwise": ProtocolName.PAIRWISE,
    "semi_honest": ProtocolName.PAIRWISE,
    "two_trips": ProtocolName.TWO_TRIPS,
}


def secagg_options(config: Config) -> SecAggOptions:
    """Return the options of secure aggregation in a run."""
    assert not isinstance(config.secagg, NoSecAggConfig)
    clients, name = config.clients, config.secagg.name
    return SecAggOptions(
        drops=clients.tolerated_dropouts,
        losses=clients.tolerated_losses,
        colluders=config.secagg.colluders,
        consistency=name != "semi_honest",
        protocol=_NAMES.get(name),
        merged=config.secagg.merged,
        closed=clients.per_round == clients.total,
        stage_timeout=config.secagg.stage_timeout,
        train_timeout=clients.timeout,
        patience=config.secagg.patience,
    )


def protocol_of(
    config: Config, groups: int, dim: int, bits_of: Callable[[ProtocolName], int]
) -> ProtocolName:
    """Return the protocol of rounds with vectors of `dim` numbers, in rings of so many bits: the one that the
    configuration names, or the one that sends fewer bytes for a cohort of the usual size."""
    if config.secagg.name != "auto":
        return _NAMES[config.secagg.name]
    vectors = []
    for name in ProtocolName:
        try:
            vectors.append(VectorFormat(dim, bits_of(name), groups=groups, protocol=name))
        except RingTooSmallError:
            continue
    try:
        return cheapest(secagg_options(config), vectors, config.clients.per_round)
    except (SettingsError, IndexError):
        return (
            ProtocolName.PAIRWISE
        )  # whose conditions are weaker, and whose sentences say what to change


def prime_of(protocol: ProtocolName, bits: int) -> int:
    """Return the modulus of the protocol's ring; 0 if it is 2^bits."""
    modulus = modulus_of(protocol, bits)
    return modulus if modulus % 2 else 0
