"""Which Grid the strategies talk to: the metered one, or with what each node lacks, or secure aggregation around it."""

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.replay.frozen import FrozenPart
from fedsketch.replay.grid import DeliveryGrid
from fedsketch.replay.parcels import Parcels
from fedsketch.replay.records import FROZEN
from fedsketch.secagg import Directory, SecAggGrid, SecAggOptions, WrappedGrid
from fedsketch.strategies.shared.codec import RingCodec


def aggregating(
    grid: WrappedGrid,
    config: Config,
    parcels: Parcels | None = None,
    roster: Directory | None = None,
    frozen: FrozenPart | None = None,
) -> WrappedGrid:
    """A Grid whose train replies are what `config.secagg` lets the server see; `roster` lets it drop a node whose signature is wrong."""
    if frozen is not None and frozen.sent:
        grid = DeliveryGrid(grid, frozen, FROZEN)
    if parcels is not None:
        grid = DeliveryGrid(grid, parcels)
    if isinstance(config.secagg, NoSecAggConfig):
        return grid
    return SecAggGrid(grid, secagg_options(config), RingCodec(), roster=roster)


def secagg_options(config: Config) -> SecAggOptions:
    """How rounds of secure aggregation are run."""
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
