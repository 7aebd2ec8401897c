"""Finds data sets by name. They are loaded once per process, so that a process that simulates many clients holds one
copy."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from fedsketch.conf.plugins import implementation
from fedsketch.conf.settings import DataSettings
from fedsketch.errors import DataError
from fedsketch.tasks.data import digits, folder, synthetic, tabular, vision
from fedsketch.tasks.data.examples import Dataset

Load = Callable[[Any, int], Dataset]  # arguments: settings of the data set, seed of the run

BUILT_IN: dict[str, Load] = {
    "digits": digits.load,
    "synthetic": synthetic.load,
    "folder": folder.load,
    "csv": tabular.load,
    "text": tabular.load,
    "fashion_mnist": vision.load,
    "mnist": vision.load,
    "emnist": vision.load,
    "cifar10": vision.load,
}

# Without a lock, lru_cache would let two threads load the same data set at once: then there would be two copies.
_lock = threading.Lock()


def load(settings: DataSettings, seed: int) -> Dataset:
    """Return the data set of these settings, a built-in one or one of an installed package. The same arguments give
    the same object, which is read-only."""
    with _lock:
        return _load(settings, seed)


def load_to_plan(settings: DataSettings, seed: int, *, exact: bool) -> Dataset:
    """Load a data set for a plan, without a download. If the data set is not on this machine, published facts about it
    are used, unless the plan needs its `exact` contents."""
    if BUILT_IN.get(settings.name) is not vision.load or vision.is_here(settings):
        return load(settings, seed)
    if exact:
        raise DataError(
            f"The plan needs the examples of data={settings.name} and downloads nothing: set data.root to the folder "
            "that has them, or let a run with rounds=1 download them."
        )
    return vision.outline(settings.name)


@functools.lru_cache(maxsize=2)
def _load(settings: DataSettings, seed: int) -> Dataset:
    make = BUILT_IN.get(settings.name) or implementation("data", settings.name)
    return make(settings, seed)
