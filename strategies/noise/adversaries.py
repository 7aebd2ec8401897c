"""Describes the adversaries of a run in words: against whom each epsilon holds."""

from __future__ import annotations

from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig
from fedsketch.strategies.noise.sizes import CohortSizes


def in_words(config: Config, adversary: str) -> str:
    """Return a short phrase that says who an adversary is in a run of this configuration. Returns the name itself for
    an adversary that only one strategy has."""
    phrases = {"model": _MODEL, "client": _clients(config), "server": _server(config)}
    return phrases.get(adversary, adversary)


_MODEL = "those who see the models of all rounds, but take part in none"


def _clients(config: Config) -> str:
    sizes = CohortSizes(config)
    count = sizes.colluding_clients(config.clients.per_round)
    listed = ", and who else is in the cohort" if sizes.masked else ""
    if count == 1:
        return f"1 fellow participant, who sees what devices see and knows its own noise{listed}"
    return f"{count} fellow participants, who see what devices see and know their own noise{listed}"


def _server(config: Config) -> str:
    if isinstance(config.secagg, NoSecAggConfig):
        return "the server, which sees every upload"
    honest = config.secagg.name == "semi_honest"
    server = "a server that follows the protocol" if honest else "a server that may lie"
    cohort = config.clients.per_round
    colluders = CohortSizes(config).colluders(cohort)
    # A share of a small cohort, rounded down, may be zero clients. So the number is shown too.
    share = config.secagg.colluders
    which = f"{share:.0%} of a cohort, rounded down" if share < 1 else "whatever the cohort"
    return f"{server} and works with {colluders or 'none'} of {cohort} clients ({which})"
