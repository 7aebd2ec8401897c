"""What a real device accepts of a run's configuration. The policy and the data card decide, before data or model are
touched.

A message can name a task. It cannot name files, a processor or code, and it cannot ask for more work than the owner
allows. A simulation takes the configuration as it is; a device takes what this module makes of it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.policy import Policy
from fedsketch.conf import Config
from fedsketch.conf.data.folder import FolderConfig
from fedsketch.conf.data.synthetic import SyntheticConfig
from fedsketch.privacy.accounting.releases import Unit
from fedsketch.secagg import Refusal
from fedsketch.tasks.models.features import shape_after
from fedsketch.tasks.workload import Assignment, DataShape

# Data sets without files: they come with a package, or are made up. All other data of a device are in its own folder.
_NO_FILES = ("digits", "synthetic")


def admitted(config: Config, policy: Policy, card: DataCard) -> Assignment:
    """Return the run in the form that this device accepts; raises `Refusal` for what its owner does not allow."""
    for group, name in config.plugins.items():
        if name not in policy.allowed_plugins:
            raise Refusal(
                f"This device's owner does not allow the {group} of an installed package."
            )
    data = config.data
    if not isinstance(data, FolderConfig) and data.name not in (
        *_NO_FILES,
        *policy.allowed_plugins,
    ):
        raise Refusal(
            "A message cannot point a device at files: run with data=folder, whose place the device's owner names."
        )
    _compare(config, card)
    if isinstance(data, SyntheticConfig):
        width = math.prod(shape_after(config.model.features, data.shape))
        _within(width * (data.examples + data.test_examples), policy.largest_model)
    local = config.strategy.local
    _within(local.steps if local.epochs is None else local.epochs, policy.most_local_steps)
    data = replace(data, root=None, public_root=None)
    if isinstance(data, FolderConfig):
        # The owner's bound, and not the message's, says which records count (`tasks.data.folder`).
        data = replace(data, schema=None, largest_shard=card.largest_shard)
    played = replace(
        config,
        device="auto",
        data=data,
        model=replace(config.model, weights=None),
    )
    return Assignment(played, DataShape(card.shape, len(card.classes)))


def check_size(parameters: int, policy: Policy) -> None:
    """Raise `Refusal` if a model is larger than the owner allows."""
    _within(parameters, policy.largest_model)


def _compare(config: Config, card: DataCard) -> None:
    data = config.data
    fits = data.name == card.data and config.task.targets == card.targets
    if isinstance(data, FolderConfig):
        fits &= (data.shape, data.class_names) == (card.shape, card.classes)
        fits &= (data.fingerprint or "") == card.schema
        if config.privacy.unit is Unit.EXAMPLE:
            fits &= data.largest_shard >= card.largest_shard
    elif isinstance(data, SyntheticConfig):
        fits &= (data.shape, data.classes) == (card.shape, len(card.classes))
    if not fits:
        raise Refusal(
            "The run is for data of another kind than the data card of this device says: compare data.* with the "
            "owners."
        )


def _within(asked: float, allowed: float) -> None:
    if asked > allowed:
        raise Refusal("The run asks for more work than this device's owner allows.")
