"""DOME: a sketch that learns the gradients' subspace. `strategy` has both halves, `state` the step from one round to the next."""

from fedsketch.strategies.dome.strategy import LOCAL_STEP, REPLICA, SERVER

__all__ = ["LOCAL_STEP", "REPLICA", "SERVER"]
