"""FedPCDP: local training with noised steps in a public subspace. Start with `strategy`, which has both halves; `state`
is what devices follow."""

from __future__ import annotations

from fedsketch.strategies.fedpcdp.strategy import DEVICE, REPLICA, SERVER

__all__ = ["DEVICE", "REPLICA", "SERVER"]
