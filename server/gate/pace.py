"""A deadline that moves on with every byte: slow devices may take their time, silent ones may not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from fedsketch.server.gate.limits import Limits

T = TypeVar("T")


class Pace:
    """The time that a transfer has left. Each byte adds 1 / `limits.slowest` seconds, but never more than
    `limits.pause` seconds are left. So nobody earns a long silence by sending a lot before it. Only the time in `wait`
    counts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = limits.pause

    async def wait(self, step: Awaitable[T]) -> T:
        """Await a step of the transfer; raises TimeoutError if it does not come in time."""
        began = time.monotonic()
        async with asyncio.timeout(self._left):
            result = await step
        self._left -= time.monotonic() - began
        return result

    def moved(self, size: int) -> None:
        """Take note that so many bytes were transferred."""
        self._left = min(self._left + size / self._limits.slowest, self._limits.pause)
