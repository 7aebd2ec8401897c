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
    is_possible,
    modulus_of,
)
from fedsketch.strategies.noise.sizes import CohortSizes

_SAMPLED = 50  # sizes of cohorts for which the conditions are tried
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
    configuration names, or the one that sends fewer bytes for a cohort of the usual size, of those that are possible
    for cohorts of all sizes."""
    if config.secagg.name != "auto":
        return _NAMES[config.secagg.name]
    vectors = []
    for name in ProtocolName:
        try:
            vectors.append(VectorFormat(dim, bits_of(name), groups=groups, protocol=name))
        except RingTooSmallError:
            continue
    options, sizes = secagg_options(config), _sizes(config, groups)
    vectors = [one for one in vectors if all(is_possible(options, one, n) for n in sizes)]
    try:
        return cheapest(options, vectors, config.clients.per_round)
    except (SettingsError, IndexError):
        return (
            ProtocolName.PAIRWISE
        )  # whose conditions are weaker, and whose sentences say what to change


def _sizes(config: Config, groups: int) -> list[int]:
    """Return the sizes of cohorts that are asked: of a Poisson draw, some between the smallest and the largest."""
    sizes = CohortSizes(config, groups)
    if sizes.largest == config.clients.per_round:
        return [sizes.largest]
    step = max(1, (sizes.largest - sizes.smallest * groups) // _SAMPLED)
    return [*range(sizes.smallest * groups, sizes.largest, step), sizes.largest]


def prime_of(protocol: ProtocolName, bits: int) -> int:
    """Return the modulus of the protocol's ring; 0 if it is 2^bits."""
    modulus = modulus_of(protocol, bits)
    return modulus if modulus % 2 else 0
