"""Data sets by name, loaded once per process.

A loader takes `root` (a folder for data that lie on disk, or None) and its own options. The result
is cached by all arguments, because a process that simulates many clients must hold one copy.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Hashable
from typing import Any

from fedsketch.tasks import digits, folder, synthetic, vision
from fedsketch.tasks.errors import DataError
from fedsketch.tasks.examples import Dataset

_LOADERS: dict[str, Callable[..., Dataset]] = {
    "digits": digits.load,
    "synthetic": synthetic.load,
    "folder": folder.load,
    "fashion_mnist": functools.partial(vision.load, "fashion_mnist"),
    "mnist": functools.partial(vision.load, "mnist"),
    "cifar10": functools.partial(vision.load, "cifar10"),
}
NAMES = tuple(_LOADERS)

# lru_cache lets two threads that ask at once both load: then there would be two copies.
_lock = threading.Lock()


def load(name: str, root: str | None = None, **options: Any) -> Dataset:
    """The data set of this name; the same arguments give the same object, which is read-only."""
    if name not in _LOADERS:
        raise DataError(f"There is no data set {name!r}: choose one of {', '.join(NAMES)}.")
    known = [key for key in inspect.signature(_LOADERS[name]).parameters if key != "root"]
    for key in options:
        if key not in known:
            raise DataError(
                f"Data set {name} has no option {key!r}: "
                f"{'it knows ' + ', '.join(known) if known else 'it has none'}."
            )
    with _lock:
        return _load(name, root, tuple(sorted((k, _frozen(v)) for k, v in options.items())))


@functools.lru_cache(maxsize=4)
def _load(name: str, root: str | None, options: tuple[tuple[str, Hashable], ...]) -> Dataset:
    return _LOADERS[name](root=root, **dict(options))


def _frozen(value: Any) -> Hashable:
    """Lists from a configuration file as tuples, which a cache can hold as keys."""
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return value
    return tuple(_frozen(item) for item in value)
