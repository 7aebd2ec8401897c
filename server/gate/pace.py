"""A deadline that moves on with every byte: slow devices may take their time, silent ones may not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fedsketch.server.gate.limits import Limits

T = TypeVar("T")


class Pace:
    """The time that a body has left. Each byte adds 1 / `limits.slowest` seconds, but never more than `limits.pause`
    seconds are left. So nobody earns a long silence by sending a lot before it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._due = self._now() + limits.pause

    async def wait(self, step: Awaitable[T]) -> T:
        """Await a step of the transfer; raises TimeoutError if it does not come in time."""
        async with asyncio.timeout_at(self._due):
            return await step

    def moved(self, size: int) -> None:
        """Take note that so many bytes were transferred."""
        longest = self._now() + self._limits.pause
        self._due = min(self._due + size / self._limits.slowest, longest)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
