"""Progress as log lines, for a ServerApp that runs where nobody watches."""

import logging
from pathlib import Path
from typing import Any

from conf import Config

log = logging.getLogger(__name__)


class LogProgress:
    """An `Observer` that writes one line per event."""

    def began(self, config: Config, done: int, guarantee: str) -> None:
        log.info(
            "Rounds %d to %d of %s. %s", done + 1, config.rounds, config.strategy.name, guarantee
        )

    def played(self, row: dict[str, Any]) -> None:
        log.info("Round %(round)d: accuracy %(accuracy)s, epsilon %(epsilon)s", row)

    def ended(self, summary: dict[str, Any], report: Path) -> None:
        log.info("Done: accuracy %s. Report: %s", summary["accuracy"], report)
