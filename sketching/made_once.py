"""What is made once and used by all who ask for it in turn, such as the sketch of a round."""

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

_Made = TypeVar("_Made")


class MadeOnce(Generic[_Made]):
    """Keeps what was made last. Threads that ask for the same thing at once wait until the first of them has made it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: tuple[object, _Made] | None = None

    def of(self, key: object, make: Callable[[], _Made]) -> _Made:
        """What belongs to `key`; `make` is called if that is not what was made last."""
        with self._lock:
            if self._last is None or self._last[0] != key:
                self._last = (key, make())
            return self._last[1]
