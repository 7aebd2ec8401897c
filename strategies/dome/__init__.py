"""DOME: a sketch that learns the subspace of the gradients. Start with `strategy`, which has both halves; `state`
holds the step from one round to the next."""

from __future__ import annotations

from fedsketch.strategies.dome.strategy import DEVICE, REPLICA, SERVER

__all__ = ["DEVICE", "REPLICA", "SERVER"]
