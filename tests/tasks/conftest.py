"""Settings as the YAML files have them, without Hydra, which takes a tenth of a second to compose."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from fedsketch.conf.plugins import FOLDER, settings_class
from fedsketch.conf.settings import PartitionConfig, Settings

Choose = Callable[..., Any]


@pytest.fixture(scope="session")
def choose() -> Choose:
    """`choose("model", "mlp", width=3)`: the defaults of conf/model/mlp.yaml, but for the width."""

    def settings(group: str, name: str, **options: object) -> Settings:
        fields = yaml.safe_load((FOLDER / group / f"{name}.yaml").read_text())
        if fields.pop("defaults", None):
            fields["partition"] = PartitionConfig(scheme="iid")
        return settings_class(group, name)(**{**fields, **options})

    return settings
