"""Adversaries in words: whom a run's budget binds."""

from fedsketch.conf import Config
from fedsketch.conf.schema import Against, NoSecAggConfig


def in_words(config: Config) -> str:
    """Whom `privacy.against` names in a run of this configuration."""
    if config.privacy.against is Against.model:
        return "all who see the models of every round, but not what the server sees"
    if isinstance(config.secagg, NoSecAggConfig):
        return "the server, which sees every upload"
    honest = config.secagg.name == "semi_honest"
    server = "a server that follows the protocol" if honest else "a server that may lie"
    share = f"{config.secagg.colluders:.0%} of a cohort" if config.secagg.colluders else "no client"
    return f"{server} and works with {share}"
