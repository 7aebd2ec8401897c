"""Which Grid the strategies talk to: the bare one, or secure aggregation around it."""

from flwr.serverapp import Grid

from conf import Config
from conf.schema import NoSecAggConfig
from secagg import SecAggGrid, SecAggPlan
from strategies.codec import RingCodec


def aggregating(grid: Grid, config: Config) -> Grid:
    """A Grid whose train replies are what `config.secagg` lets the server see."""
    settings = config.secagg
    if isinstance(settings, NoSecAggConfig):
        return grid
    plan = SecAggPlan(
        drops=config.clients.tolerated_dropouts,
        colluders=settings.colluders,
        consistency=settings.name == "pairwise",
        merged=settings.merged,
        stage_timeout=settings.stage_timeout,
        train_timeout=config.clients.timeout,
    )
    return SecAggGrid(grid, plan, RingCodec())
