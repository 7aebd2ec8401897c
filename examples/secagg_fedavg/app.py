"""Flower's FedAvg, unchanged, with secure aggregation: the server sees the mean and no single
update.

    pip install ./secagg
    python examples/secagg_fedavg/app.py

Ten simulated nodes fit one linear model, each on data of its own. Three lines make it secure: the
ClientApp comes from `secagg.client_app`, the grid is wrapped in `SecAggGrid`, and both sides
share one codec. The guard here is that of simulations; a real device has one with a roster, a
policy and a ledger.
"""

from __future__ import annotations

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.simulation import run_simulation

from secagg import FixedPoint, SecAggGrid, SecAggOptions, SimulationGuard, client_app

TRUTH = np.array([2.0, -3.0, 0.5])
CODEC = FixedPoint(value_limit=16.0, weight_limit=1000, metrics=("loss",))

app = client_app(CODEC, lambda context: SimulationGuard(context.node_id))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Ten steps of gradient descent on this node's data; the weight and the loss stay in the sum."""
    (weights,) = message.content.array_records["arrays"].to_numpy_ndarrays()
    partition = int(context.node_config["partition-id"])
    rng = np.random.default_rng(partition)
    features = rng.normal(size=(50 + 10 * partition, len(TRUTH)))
    targets = features @ TRUTH + 0.1 * rng.normal(size=len(features))
    for _ in range(10):
        weights = weights - 0.1 * features.T @ (features @ weights - targets) / len(features)
    loss = float(np.mean((features @ weights - targets) ** 2))
    metrics = MetricRecord({"num-examples": len(features), "loss": loss})
    content = RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics})
    return Message(content, reply_to=message)


def learn(grid: Grid, rounds: int, strategy: Strategy | None = None) -> Result:
    """FedAvg, or another strategy, over the wrapped grid."""
    secure = SecAggGrid(grid, SecAggOptions(protocol=None, drops=0.2, merged=True), CODEC)
    initial = ArrayRecord([np.zeros(len(TRUTH))])
    strategy = strategy or FedAvg(fraction_evaluate=0.0)
    return strategy.start(grid=secure, initial_arrays=initial, num_rounds=rounds)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    result = learn(grid, rounds=5)
    print("learned", result.arrays.to_numpy_ndarrays()[0].round(2), "truth", TRUTH)


if __name__ == "__main__":
    run_simulation(server_app=server, client_app=app, num_supernodes=10)
