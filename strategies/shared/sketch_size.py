"""How many numbers a sketch has: `strategy.sketch_dim` of all strategies that send one."""


def sketch_size(sketch_dim: float, d: int) -> int:
    """How many numbers `sketch_dim` stands for: a number, or below 1 a share of d."""
    return min(d, max(1, round(sketch_dim if sketch_dim >= 1 else sketch_dim * d)))
