"""The settings of secure aggregation in the form that `secagg` takes."""

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.secagg import SecAggOptions


def secagg_options(config: Config) -> SecAggOptions:
    """The options of secure aggregation in this run."""
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
