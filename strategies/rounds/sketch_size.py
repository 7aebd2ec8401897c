"""How many numbers a sketch has: the meaning of `strategy.sketch_dim`, for all strategies that send a sketch."""

from __future__ import annotations

from fedsketch.errors import ConfigError


def sketch_size(sketch_dim: float, d: int) -> int:
    """Return how many numbers `sketch_dim` stands for: the number itself, or a share of d if it is below 1. Raises
    ConfigError for more than d."""
    if sketch_dim < 1:
        return max(1, round(sketch_dim * d))
    numbers = round(sketch_dim)
    if numbers > d:
        raise ConfigError(
            f"strategy.sketch_dim={numbers:,} is more than the {d:,} numbers that are trained: lower it, "
            "or set strategy=dp_fedavg, which sends all of them."
        )
    return numbers
