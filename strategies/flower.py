"""One of Flower's own strategies under our privacy: FedAvg, FedAvgM, FedAdagrad, FedAdam or FedYogi (`strategy.use`).

Devices do what they do in DP-FedAvg: they clip their updates and add noise, and masks hide them. The server has the
noisy mean of the updates. It hands the model minus this mean to Flower's strategy, as if one client had replied with
this model, and takes over the model that the strategy makes of it.

Formal guarantees: those of DP-FedAvg (`strategies.noise.device`). What Flower's strategy computes from a noisy sum is
post-processing, whatever it does. Strategies that need the replies of single clients are refused
(`conf.strategy.flower`).
"""

from __future__ import annotations

from typing import Any

import flwr.serverapp.strategy
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsketch.conf.strategy.flower import FlowerConfig
from fedsketch.strategies.algorithm import Aggregate, DeviceHalf, Strategy

# What Flower's strategies keep from round to round.
_KEPT = ("current_arrays", "momentum_vector", "m_t", "v_t")
_NOBODY: Any = None  # a Grid that is not used, because nobody is sampled


class FlowerStrategy(Strategy[FlowerConfig]):
    """The server half."""

    def start(self) -> None:
        make = getattr(flwr.serverapp.strategy, self.settings.use)
        # It samples nobody: who takes part is decided elsewhere.
        self.inner = make(fraction_train=0.0, fraction_evaluate=0.0, **self.settings.options.given)

    def update(self, server_round: int, aggregate: Aggregate) -> None:
        model, mean = self.model, aggregate.sum / self.units(aggregate)
        self.inner.configure_train(
            server_round, self._arrays(model.vector), ConfigRecord(), _NOBODY
        )
        reply = RecordDict(
            {
                "arrays": self._arrays(model.vector - mean),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        message = Message(reply, dst_node_id=1, message_type="train")
        made, _ = self.inner.aggregate_train(server_round, [message])
        assert made is not None  # there was a reply
        for name, view in model.views(model.vector).items():
            view.copy_(torch.from_numpy(np.array(made[name].numpy(), dtype=np.float32)))

    def _arrays(self, vector: torch.Tensor) -> ArrayRecord:
        views = self.model.views(vector).items()
        return ArrayRecord({name: Array(view.detach().cpu().numpy()) for name, view in views})

    # ------------------------------------------------------------------ checkpoints
    def state_dict(self) -> dict[str, Any]:
        kept = {name: getattr(self.inner, name, None) for name in _KEPT}
        return {name: _as_tensors(value) for name, value in kept.items() if value is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            found = _as_arrays(value)
            if name == "current_arrays" and self.settings.use == "FedAvgM":
                found = ArrayRecord({key: Array(array) for key, array in found.items()})
            setattr(self.inner, name, found)


def _as_tensors(value: Any) -> Any:
    """Return what Flower keeps in numpy as tensors, which checkpoints hold."""
    if isinstance(value, ArrayRecord):
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in value.items()}
    if isinstance(value, dict):
        return {name: torch.from_numpy(np.array(array)) for name, array in value.items()}
    return [torch.from_numpy(np.array(array)) for array in value]


def _as_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: tensor.numpy() for name, tensor in value.items()}
    return [tensor.numpy() for tensor in value]


SERVER, DEVICE = FlowerStrategy, DeviceHalf
