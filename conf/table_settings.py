"""The settings that data sets in tables have in common."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedsketch.conf.data.folder import FolderConfig
from fedsketch.conf.settings import PartitionedSettings
from fedsketch.conf.types import frozen

if TYPE_CHECKING:
    from fedsketch.conf.schema import Config


@frozen
class TableSettings(PartitionedSettings):
    """A table at `root`. Test examples are in a second table at `test_root`, or are a share of the first.

    Real devices have their own rows and receive `on_devices` instead of these settings (`tasks.data.tabular.resolved`).
    """

    test_root: str | None
    test_share: Annotated[float, Field(gt=0, lt=1)]
    on_devices: FolderConfig | None = field(default=None, kw_only=True, compare=False)

    def check(self, config: Config) -> None:
        super().check(config)
        if config.runtime.name == "deployment":
            raise ValueError(
                f"data={self.name} is one table that is divided among clients of this machine. If devices have their "
                "own rows, set data=folder and data.schema"
            )
