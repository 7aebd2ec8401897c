"""What the data sets that are tables share."""

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
    """A table at `root`, with examples to test on in a second one at `test_root`, or as a share of the first.

    `on_devices` is what real devices are told instead, which have their rows themselves (`tasks.tabular.resolved`).
    """

    test_root: str | None
    test_share: Annotated[float, Field(gt=0, lt=1)]
    on_devices: FolderConfig | None = field(default=None, kw_only=True, compare=False)

    def check(self, config: "Config") -> None:
        super().check(config)
        if config.runtime.name == "deployment":
            raise ValueError(
                f"data={self.name} is one table that is dealt out to clients of this machine: where devices have their own, "
                "set data=folder and data.schema"
            )
