"""How many numbers a sketch has: `strategy.sketch_dim` of all strategies that send one."""

from fedsketch.conf import ConfigError


def sketch_size(sketch_dim: float, d: int) -> int:
    """How many numbers `sketch_dim` stands for: a number, or below 1 a share of d. Raises ConfigError for more than
    there are."""
    if sketch_dim < 1:
        return max(1, round(sketch_dim * d))
    numbers = round(sketch_dim)
    if numbers > d:
        raise ConfigError(
            f"strategy.sketch_dim={numbers:,} is more than the {d:,} numbers that are trained: lower it, "
            "or set strategy=dp_fedavg, which sends all of them."
        )
    return numbers
