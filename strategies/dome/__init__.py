"""DOME: a sketch that learns the gradients' subspace. `strategy` has both halves, `state` the step from one round to
the next."""

from fedsketch.strategies.dome.strategy import DEVICE, REPLICA, SERVER

__all__ = ["DEVICE", "REPLICA", "SERVER"]
