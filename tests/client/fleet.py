"""Real devices (policy, ledger, roster, the real ClientApp) in this process, and a server that attacks them."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, RecordDict

from fedsketch.client.app import make_app
from fedsketch.client.enroll import enrol
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.policy import Policy
from fedsketch.conf import compose
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import Aborted, WrappedGrid
from fedsketch.server.grids.stack import wrap_grid
from fedsketch.strategies.registry import make_strategy
from fedsketch.tasks.data.tabular import resolved
from fedsketch.tasks.workload import Workload
from tests.rounds import ask, coordinator_of

NODES = 4
POLICY = Policy(smallest_cohort=3, assumed_colluders=0.0, smallest_noise=0.1, epsilon=1000.0)
CARD = DataCard("folder", (1, 2, 2), ("0", "1"), 4)
RUN = [
    "strategy=dp_fedavg",
    "data=folder",
    "data.shape=[1,2,2]",
    "data.classes=2",
    "model=logistic",
    "device=cpu",
    f"clients.total={NODES}",
    f"clients.per_round={NODES}",
    "clients.timeout=60",
    "secagg.colluders=0",
    "privacy.epsilon=null",
    "privacy.noise_multiplier=1",
]


class _Watching(WrappedGrid):
    """Remembers what comes from the devices, but for random bytes."""

    def __init__(self, grid: LocalGrid) -> None:
        super().__init__(grid)
        self.seen: list[Any] = []
        self.sent: list[tuple[RecordDict, int]] = []  # train messages as they were sent

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        outgoing = list(messages)
        self.sent += [
            (RecordDict(dict(message.content)), message.metadata.dst_node_id)
            for message in outgoing
            if message.metadata.message_type == "train"
        ]
        return super().push_messages(outgoing)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        self.seen += [(reply.metadata.src_node_id, _shape(reply)) for reply in replies]
        return replies


def _shape(reply: Message) -> Any:
    if reply.has_error():
        return ("error", reply.error.code, reply.error.reason)
    told = {
        name: {key: len(v) if isinstance(v, bytes) else v for key, v in record.items()}
        for name, record in reply.content.config_records.items()
    }
    arrays = {
        name: {key: (a.dtype, tuple(a.shape), len(a.data)) for key, a in record.items()}
        for name, record in reply.content.array_records.items()
    }
    return (reply.metadata.message_type, told, arrays, sorted(reply.content))


@dataclass
class Fleet:
    """Devices with the same data each, and the server that attacks them."""

    root: Path
    overrides: tuple[str, ...] = ()
    card: DataCard = CARD
    policy: Policy = POLICY
    grid: _Watching = field(init=False)

    def __post_init__(self) -> None:
        by_example = "strategy=fedpcdp" in self.overrides
        policy = replace(self.policy, unit="example") if by_example else self.policy
        (self.root / "policy.toml").write_text(policy.to_toml())
        roster = self.root / "roster.json"
        folders = {node: self.root / f"device{node}" for node in range(2, NODES + 2)}
        for node, folder in folders.items():
            enrol(folder, node, roster, self.root / "policy.toml", self.card)
        for folder in folders.values():
            enrol(folder, roster=roster)
        local = LocalGrid(make_app(), NODES)
        for node, folder in folders.items():
            local.folders[node] = folder
        self.grid = _Watching(local)
        config = resolved(compose([*RUN, *self.overrides]))
        workload = Workload(config)
        self.strategy = make_strategy(config, workload, workload.model())
        self.secure_grid = wrap_grid(
            self.grid, config, self.strategy.parcels, frozen=coordinator_of(self.strategy).frozen
        )

    def play(self, vector: torch.Tensor, server_round: int = 1, **changes: dict[str, Any]) -> str:
        """One round with this model, and with changes to the configuration in the message; how it ended, as the server
        sees it."""
        self.strategy.model.load(vector)
        asked = ask(self.strategy, server_round, self.secure_grid)
        head = asked[0].content.config_records["head"]
        config = json.loads(str(head["config"]))
        for group, keys in changes.items():
            whole = group != "strategy" and "name" in keys  # another choice has other keys
            config[group] = keys if whole else {**config[group], **keys}
        head["config"] = json.dumps(config)
        try:
            list(self.secure_grid.send_and_receive(asked, timeout=60))
        except Aborted as aborted:
            return str(aborted)
        return "a sum"

    def ledgers(self) -> list[list[dict[str, Any]]]:
        """All lines, but for the clock, the chain of hashes and the hash of the round, which hold random keys."""
        read = []
        for node in range(2, NODES + 2):
            text = (self.root / f"device{node}" / "ledger.jsonl").read_text()
            lines = [json.loads(line) for line in text.splitlines()]
            random = ("time", "before", "digest", "survivors", "hash", "key", "list")
            read.append([{k: v for k, v in line.items() if k not in random} for line in lines])
        return read


def npz(path: Path, pixel: float, count: int = 3) -> Path:
    """A device's data: images of class 0 whose first pixel is given."""
    inputs = np.zeros((count, 1, 2, 2), dtype=np.float32)
    inputs[:, 0, 0, 0] = pixel
    np.savez(path, inputs=inputs, targets=np.zeros(count, dtype=np.int64))
    return path


def same(told: Any) -> None:
    """Assert that two worlds let out the same."""
    (ends, seen, ledgers), (other_ends, other_seen, other_ledgers) = told
    assert ends == other_ends
    assert seen == other_seen
    assert ledgers == other_ledgers


def overflows_above(threshold: float, size: int) -> torch.Tensor:
    """A logistic model whose loss is not a number exactly if the first pixel exceeds the threshold."""
    model = torch.zeros(size)
    model[0], model[8] = 3e38, 3.4e38 - 3e38 * threshold  # the largest float32 is 3.4028e38
    return model
