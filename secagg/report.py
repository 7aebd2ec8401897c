"""What a round cost and who took part, for logs and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from .settings import RoundSettings


@dataclass
class RoundReport:
    """One round as the server saw it. Bytes are those of the protocol, with the masked vectors
    and without the broadcast; `dropouts` maps nodes to the stage and the reason."""

    settings: RoundSettings
    survivors: list[tuple[int, ...]] = field(default_factory=list)
    dropouts: dict[int, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    round_trips: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
