"""Client updates per second of our runtimes, beside a plain Flower FedAvg app of the same model and data, in one run.

    python benchmarks/simulation.py [--rounds 12]

Start-up is excluded: the first two rounds (process start, imports, data) are not counted. The plain app does what
Flower's quickstart does (state dict down, SGD on the shard, state dict up) under `run_simulation`, with one step over
the whole shard; ours does the same work as `strategy=fedavg` with one local step.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# Some files of this folder have the names of packages, so the folder above is searched first.
sys.path.insert(0, str(Path(__file__).parents[1]))

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import cpu_time
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, TensorDataset

from fedsketch.conf import Config, compose
from fedsketch.runtime.cli import run
from fedsketch.tasks.workload import Workload

WARM_UP = 2
CLIENTS = 100
DATA = ("data=digits", f"clients.total={CLIENTS}")


ONE_STEP = ("strategy.local.steps=1", "strategy.local.batch=0")  # over all of a client's examples
ONE_EPOCH = ("strategy.local.epochs=1", "strategy.local.batch=32")  # as Flower's quickstart trains


@dataclass(frozen=True)
class Speed:
    """Client updates per second of the clock, and milliseconds of CPU for each, of all processes; None where nobody
    counted."""

    per_second: float
    cpu: float | None = None


def config(
    rounds: int, runtime: str, data: Sequence[str] = DATA, local: Sequence[str] = ONE_STEP
) -> Config:
    """Return the overrides of FedAvg, with one local step unless told otherwise."""
    return compose(
        [
            *("strategy=fedavg", "strategy.local.lr=0.1", *local),
            *(f"clients.per_round={CLIENTS}", f"runtime={runtime}", "device=cpu", *data),
            *(f"rounds={rounds}", f"evaluate_every={rounds}", f"checkpoint_every={rounds}"),
        ]
    )


def ours(settings: Config) -> Speed:
    """Return the record of a run, by its own metrics."""
    with tempfile.TemporaryDirectory() as folder:
        run(settings, Path(folder) / "run", quiet=True)
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").open()]
    counted = rows[WARM_UP:]
    updates = sum(row["clients"] for row in counted)
    return Speed(updates / sum(row["seconds"]["round"] for row in counted))


def plain(settings: Config) -> Speed:
    """Return Flower as its quickstart uses it, on shards of the same size, with the same model and the same local
    steps."""
    client_app, server_app = ClientApp(), ServerApp()
    notes: list[tuple[float, float | None]] = []
    total, rounds = settings.clients.total, settings.rounds
    share = settings.clients.per_round / total

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        from fedsketch.tasks.data import datasets

        train = datasets.load(settings.data, settings.seed).train  # cached in the process
        mine = slice(int(context.node_config["partition-id"]), None, total)
        inputs, targets = train.inputs[mine], train.targets[mine]
        model = Workload(settings).model().module
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch, answers in _batches(settings, inputs, targets):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), answers).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(targets)}),
            }
        )
        return Message(content, reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        def mark(server_round: int, arrays: ArrayRecord) -> None:
            notes.append((time.monotonic(), cpu_time.of_all_processes()))

        strategy = FedAvg(
            fraction_train=share,
            fraction_evaluate=0.0,
            min_train_nodes=settings.clients.per_round,
            min_available_nodes=total,
        )
        initial = ArrayRecord(Workload(settings).model().module.state_dict())
        strategy.start(grid, initial, num_rounds=rounds, evaluate_fn=mark)

    run_simulation(
        server_app,
        client_app,
        num_supernodes=total,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    (start, cpu), (stop, cpu_then) = notes[WARM_UP], notes[-1]
    updates = settings.clients.per_round * (rounds - WARM_UP)
    used = None if cpu is None or cpu_then is None else 1e3 * (cpu_then - cpu) / updates
    return Speed(updates / (stop - start), used)


def _batches(
    settings: Config, inputs: torch.Tensor, targets: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the whole shard at once, or one epoch of shuffled batches from torch's loader, as in the quickstart."""
    local = settings.strategy.local
    if local.epochs is None:
        yield inputs, targets
    else:
        shard = TensorDataset(inputs, targets)
        for _ in range(local.epochs):
            yield from DataLoader(shard, batch_size=local.batch, shuffle=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    logging.getLogger("flwr").setLevel(logging.ERROR)
    speeds = {
        "plain Flower FedAvg, run_simulation": plain(config(rounds, "simulation")),
        "fedsketch runtime=simulation": ours(config(rounds, "simulation")),
        "fedsketch runtime=local": ours(config(rounds, "local")),
    }
    peer = speeds["plain Flower FedAvg, run_simulation"]
    table = Table(title=f"{CLIENTS} clients, mlp on digits, {rounds - WARM_UP} rounds")
    for heading in ("", "client updates per second", "ratio to plain Flower"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, speed in speeds.items():
        table.add_row(name, f"{speed.per_second:.0f}", f"{speed.per_second / peer.per_second:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
