"""The Grids between a strategy and the nodes: losses, bytes, what a device lacks, secure aggregation."""

from __future__ import annotations

from flwr.serverapp import Grid

from fedsketch.conf import Config
from fedsketch.conf.schema import CohortRuntimeConfig, NoSecAggConfig
from fedsketch.delivery.frozen_part import FrozenPart
from fedsketch.delivery.grid import DeliveryGrid
from fedsketch.delivery.parcels import Parcels
from fedsketch.delivery.records import FROZEN, SETTINGS
from fedsketch.delivery.settings_once import SettingsOnce
from fedsketch.secagg import Directory, SecAggGrid, WrappedGrid
from fedsketch.server.grids.byte_meter import MeteredGrid
from fedsketch.server.grids.losses import LossGrid, LossTeller
from fedsketch.server.grids.named_settings import NamedSettingsGrid
from fedsketch.server.grids.simulation import SimulatedGrid
from fedsketch.strategies.noise.protocol import secagg_options
from fedsketch.strategies.rounds.codec import RingCodec
from fedsketch.strategies.rounds.coordinator import Coordinator


def build_grids(
    grid: Grid,
    coordinator: Coordinator,
    roster: Directory | None = None,
    teller: LossTeller | None = None,
) -> tuple[MeteredGrid | SimulatedGrid, WrappedGrid]:
    """Return the Grid that counts the bytes of a run, and the Grid that the run uses."""
    if isinstance(coordinator.config.runtime, CohortRuntimeConfig):
        simulated = SimulatedGrid(grid, coordinator)
        return simulated, simulated
    if teller is not None:
        grid = LossGrid(grid, coordinator.nodes, teller)
    meter = MeteredGrid(grid)
    parcels, frozen = coordinator.strategy.parcels, coordinator.frozen
    return meter, wrap_grid(meter, coordinator.config, parcels, roster, frozen)


def wrap_grid(
    grid: WrappedGrid,
    config: Config,
    parcels: Parcels | None = None,
    roster: Directory | None = None,
    frozen: FrozenPart | None = None,
) -> WrappedGrid:
    """Return a Grid whose train replies are what `config.secagg` lets the server see. With a `roster`, a node with a
    wrong signature is dropped."""
    settings = SettingsOnce()
    grid = DeliveryGrid(grid, settings, SETTINGS)
    if frozen is not None and frozen.sent:
        grid = DeliveryGrid(grid, frozen, FROZEN)
    if parcels is not None:
        grid = DeliveryGrid(grid, parcels)
    if not isinstance(config.secagg, NoSecAggConfig):
        grid = SecAggGrid(grid, secagg_options(config), RingCodec(), roster=roster)
    return NamedSettingsGrid(grid, settings)
