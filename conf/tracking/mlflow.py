"""MLflow."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsketch.conf.settings import TrackingSettings
from fedsketch.conf.types import frozen


@frozen
class MLflowSettings(TrackingSettings):
    uri: str | None
    experiment: Annotated[str, Field(min_length=1)]
    artifacts: bool


SETTINGS = MLflowSettings
