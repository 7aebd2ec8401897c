"""A cache for one object that many clients or threads need, such as the sketch of a round."""

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

_Made = TypeVar("_Made")


class LastMade(Generic[_Made]):
    """Keeps the last object. If several threads ask for the same one at once, the first makes it and the others
    wait."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: tuple[object, _Made] | None = None

    def of(self, key: object, make: Callable[[], _Made]) -> _Made:
        """Return the object for `key`. `make` is called if the last object was made for another key."""
        with self._lock:
            if self._last is None or self._last[0] != key:
                self._last = (key, make())
            return self._last[1]
