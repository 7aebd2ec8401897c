"""What the gate spends on callers whom it does not know yet. docs/how-to/operate.md has the numbers for operators."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20
# Flower sends arrays in parts of 5 MiB, one part per request, however large the model is; other requests are smaller.
LARGEST_REQUEST = 16


@dataclass(frozen=True)
class Limits:
    """Bounds on time (seconds), memory (bytes) and connections. An address is an IPv4 address or an IPv6 network of 64
    bits, which is what one customer gets."""

    largest_request: int = LARGEST_REQUEST * MIB
    connections: int = 1000
    connections_per_address: int = 100
    # Bodies wait in memory until they are complete.
    memory: int = 192 * MIB
    memory_per_address: int = 64 * MIB
    # Requests that are with the SuperLink at the same time.
    upstream: int = 100
    upstream_per_address: int = 25
    # For the TLS handshake, and again for the head of each request.
    head: float = 10.0
    # A body or a reply may pause so long, and is slower than `slowest` (bytes per second) for at most that long.
    pause: float = 30.0
    slowest: float = 8192.0
    # For the SuperLink's answer, and for a free connection to it. Flower's nodes wait for 30 s and try again.
    answer: float = 60.0
    turn: float = 20.0
    health: float = 5.0
