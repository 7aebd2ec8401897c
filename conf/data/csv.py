"""One table in a CSV file, divided among the clients of this machine (docs/how-to/own_tables.md)."""

from __future__ import annotations

from fedsketch.conf.table_settings import TableSettings
from fedsketch.conf.types import frozen


@frozen
class CsvConfig(TableSettings):
    schema: str | None


SETTINGS = CsvConfig
