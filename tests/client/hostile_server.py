"""A hostile server: rounds with crafted models and configurations, whose messages are lost, repeated, reordered, cut,
flipped, sent to others, replayed; and data of many kinds for the devices that it asks."""

import json
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.policy import Policy
from fedsketch.conf import compose
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import SecAggError, WrappedGrid, is_train, vector_in
from fedsketch.server.grids.stack import wrap_grid
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.codec import EVALUATION
from fedsketch.strategies.rounds.evaluation import FederatedEvaluation
from fedsketch.tasks.data.folder import DATA_VARIABLE
from fedsketch.tasks.data.tabular import resolved
from fedsketch.tasks.workload import Workload
from tests.client import fragile
from tests.rounds import ask, coordinator_of

NODES = 3
POLICY = Policy(
    smallest_cohort=2,
    assumed_colluders=0.0,
    smallest_noise=0.1,
    epsilon=1000.0,
    largest_model=20_000,
    most_local_steps=50,
    largest_drops=0.5,
    plugins="fragile",
)
CARD = DataCard("folder", (1, 2, 2), ("0", "1"), 8)
COMMON = [
    "data=folder",
    "data.shape=[1,2,2]",
    "data.classes=2",
    "data.largest_shard=8",
    "model=logistic",
    "device=cpu",
    f"clients.total={NODES}",
    f"clients.per_round={NODES}",
    "clients.tolerated_dropouts=0.34",
    "secagg.colluders=0",
    "privacy.epsilon=null",
    "privacy.noise_multiplier=1",
]
EVALUATED = ("evaluation=federated", "evaluation.groups=1", "evaluation.epsilon=20")
RUNS = (
    ("strategy=dp_fedavg",),
    (
        "strategy=dp_fedavg",
        "secagg=pairwise",
        "secagg.merged=true",
        "strategy.local.steps=3",
        "strategy.local.batch=2",
    ),
    ("strategy=dp_fedavg", "privacy=example", "privacy.epsilon=null", "privacy.noise_multiplier=1"),
    ("strategy=fed_sgm", "strategy.sketch_dim=4"),
    (
        *("strategy=csgm", "strategy.mask=common", "strategy.rate=0.4"),
        *("secagg=pairwise", "privacy=client"),
    ),
    ("strategy=fedceo", "strategy.every=null", "strategy.local.epochs=1"),
    (
        *("strategy=fedpcdp", "strategy.projection=none", "strategy.local.steps=2"),
        *("strategy.local.batch=2", "privacy.epsilon=null", "privacy.noise_multiplier=4"),
    ),
    ("strategy=dome", "strategy.sketch=flat", "strategy.sketch_dim=6"),
    ("strategy=dome", "strategy.broadcast=replay", "strategy.keep=all"),
    ("strategy=dp_fedavg", "privacy.clip=adaptive"),
    (
        *("strategy=dome", "strategy.broadcast=replay", "privacy=example", "privacy.clip=adaptive"),
        *("privacy.epsilon=null", "privacy.noise_multiplier=1"),
    ),
    ("strategy=dp_fedavg", *EVALUATED),
    (
        *("strategy=dome", "strategy.broadcast=replay", "privacy=example", *EVALUATED),
        *("privacy.epsilon=null", "privacy.noise_multiplier=1"),
    ),
    fragile.RUN,
    (
        *("strategy=fragile", "privacy=example"),
        *("privacy.epsilon=null", "privacy.noise_multiplier=1"),
    ),
)
EXAMPLE_POLICY = replace(POLICY, unit="example")
EXAMPLE_RUNS = tuple(run for run in RUNS if "privacy=example" in run or "strategy=fedpcdp" in run)
SHAPED = ("data.shape=[1,2,2]", "data.classes=2")  # of `COMMON`: what differs between kinds of data


# ---------------------------------------------------------------------------- data
def data_pool(folder: Path) -> list[Path | None]:
    """Data of every kind: good, few, many, hostile, broken, none."""
    rng = np.random.default_rng(0)

    def arrays(name: str, inputs: Any, targets: Any) -> Path:
        np.savez(folder / f"{name}.npz", inputs=inputs, targets=targets)
        return folder / f"{name}.npz"

    def images(count: int, value: float | None = None) -> Any:
        if value is not None:
            return np.full((count, 1, 2, 2), value, dtype=np.float32)
        return rng.random((count, 1, 2, 2), dtype=np.float32)

    zeros = np.zeros(3, dtype=np.int64)
    (folder / "broken.npz").write_bytes(b"PK not an archive")
    return [
        arrays("good", images(5), np.array([0, 1, 0, 1, 1])),
        arrays("other", images(8), rng.integers(0, 2, 8)),
        arrays("one", images(1), np.array([1])),
        arrays("low", images(3, 0.4), zeros),
        arrays("high", images(3, 0.9), zeros),
        arrays("bytes", np.full((3, 1, 2, 2), 200, dtype=np.uint8), zeros),
        arrays("many", images(137), rng.integers(0, 2, 137)),
        arrays("huge", images(3, 3e38), zeros),
        arrays("nan", images(3, float("nan")), zeros),
        arrays("classes", images(3), np.array([0, 7, 1])),
        arrays("shape", np.zeros((3, 1, 3, 3), np.float32), zeros),
        arrays("empty", images(0), np.zeros(0, np.int64)),
        folder / "broken.npz",
        folder / "missing.npz",
        None,
    ]


# ---------------------------------------------------------------------------- the server
class Hostile(LocalGrid):
    """Devices behind a wire that a hostile server owns: what it sends is decided by a seed, and all that comes back is
    written down."""

    def __init__(
        self,
        app: Any,
        folders: dict[int, Path],
        data: dict[int, Path | None],
        rng: random.Random,
        before: Callable[[int], None],
    ) -> None:
        super().__init__(app, NODES)
        self.data, self.before = data, before
        for node, folder in folders.items():
            self.folders[node] = folder
        self.rng = rng
        self.told: list[Any] = []
        self.vectors: list[bytes] = []
        self.senders: list[int] = []  # of the vectors
        self.slowest = 0.0
        self.delivered = 0
        self._sent: list[tuple[RecordDict, str, int]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """In any order."""
        outgoing = list(messages)
        answered = self.rng.sample(outgoing, len(outgoing)) if self.rng.random() < 0.3 else outgoing
        super().push_messages(answered)
        return [message.metadata.message_id for message in outgoing]

    def _answer(self, message: Message) -> Message:
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        self._sent.append((_copy(message.content), kind, node))
        choice = self.rng.random()
        if choice < 0.04:
            return Message(Error(3, "lost"), reply_to=message)
        if choice < 0.14:
            self._send(*self._disturbed(*self._sent[-1]))
        if choice < 0.20:
            content, kind_before, node_before = self.rng.choice(self._sent)
            self._send(content, kind_before, node_before)
        reply = self._deliver(message)
        if 0.20 < choice < 0.30:
            self._send(*self._sent[-1])
        return reply

    def _send(self, content: RecordDict, kind: str, node: int) -> None:
        self._deliver(Message(_copy(content), node, kind))

    def _deliver(self, message: Message) -> Message:
        self.delivered += 1
        self.before(self.delivered)
        place = self.data[message.metadata.dst_node_id]
        os.environ.pop(DATA_VARIABLE, None)
        if place is not None:
            os.environ[DATA_VARIABLE] = str(place)
        began = time.thread_time()
        reply = super()._answer(message)
        self.slowest = max(self.slowest, time.thread_time() - began)
        self.told.append((message.metadata.dst_node_id, self._read(reply)))
        node = message.metadata.dst_node_id
        self.senders += [node] * (len(self.vectors) - len(self.senders))
        return reply

    def _read(self, reply: Message) -> Any:
        if reply.has_error():
            return reply.error.code, reply.error.reason
        vector = vector_in(reply.content) if is_train(reply) else None
        if vector is not None:
            self.vectors.append(vector)
        records: dict[str, Any] = {}
        for name, record in reply.content.items():
            records[name] = sorted(record)
            for key, value in record.items():
                parts = [value]
                if isinstance(value, Array):
                    parts = [value.dtype, tuple(value.shape), value.stype, value.data]
                records[f"{name}/{key}"] = [len(x) if x is vector else x for x in parts]
        return reply.metadata.message_type, sorted(records.items())

    def _disturbed(self, content: RecordDict, kind: str, node: int) -> tuple[RecordDict, str, int]:
        """A message that no honest server sends: bytes cut, flipped or lost, records missing, another kind, another
        node."""
        rng, content = self.rng, _copy(content)
        what = rng.randrange(6)
        if what == 0:
            kinds = ("train", "query.secagg_share", "query.secagg_sign", "query.secagg_unmask")
            return content, rng.choice((*kinds, "query.introduce", "evaluate")), node
        if what == 1:
            return content, kind, rng.choice(list(self._nodes))
        if what == 2 and len(content) > 0:
            del content[rng.choice(sorted(content))]
            return content, kind, node
        for name, record in list(content.items()):
            if isinstance(record, ArrayRecord):
                continue
            changed = ConfigRecord({key: _changed(rng, value) for key, value in record.items()})  # type: ignore[misc]
            content[name] = changed
        return content, kind, node


def _copy(content: RecordDict) -> RecordDict:
    return RecordDict(dict(content))


def _changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bytes) and value:
        place = rng.randrange(len(value))
        flipped = value[:place] + bytes([value[place] ^ (1 << rng.randrange(8))])
        return flipped + value[place + 1 :] if rng.random() < 0.5 else flipped
    if isinstance(value, str) and value:
        return value[: rng.randrange(len(value))]
    return value


SIZES = (0, 1, 7, 10**3, 10**6, 10**9, 10**12, 2**62, -1)


def hostile_value(rng: random.Random, value: Any) -> Any:
    """Something else in the place of a setting."""
    texts = ("", "folder", "mnist", "/etc", "os.system", "example", "client", "x" * 5000)
    choices: list[Any] = [rng.choice(SIZES), rng.choice(texts), None, True, [], 1e308, -1.0]
    if isinstance(value, list):
        choices.append([rng.choice(SIZES) for _ in value])
    return rng.choice(choices)


def hostile_config(rng: random.Random, text: str) -> str:
    """The configuration of a run with one to three settings changed to anything."""
    config = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        table = config
        while True:
            key = rng.choice(sorted(table))
            if not isinstance(table[key], dict) or not table[key] or rng.random() < 0.05:
                break
            table = table[key]
        table[key] = hostile_value(rng, table[key])
    return json.dumps(config)


def crafted_model(rng: random.Random, size: int) -> torch.Tensor:
    """Models that overflow, on every input or beyond a threshold of one pixel, and ordinary ones."""
    model = torch.zeros(size)
    what = rng.randrange(6)
    if what == 0:
        model[:] = rng.choice((float("nan"), float("inf"), 3e38, -3e38))
    elif what == 1:
        model[0], model[size - 2] = 3e38, 3.4e38 - 3e38 * rng.random()
    elif what == 2:
        model[rng.randrange(size)] = rng.choice((float("nan"), 3e38, -3e38))
    elif what == 3:
        model += torch.tensor([rng.uniform(-2, 2) for _ in range(size)])
    return model


@cache
def _strategy(run: tuple[str, ...], common: tuple[str, ...]) -> Strategy:
    config = resolved(compose([*common, *run]))
    workload = Workload(config)
    return make_strategy(config, workload, workload.model())


@cache
def _evaluation(run: tuple[str, ...], common: tuple[str, ...]) -> Strategy:
    """The evaluations of a run, or, where it has none, its training once more."""
    trained = _strategy(run, common)
    federated = trained.config.evaluation.name == "federated"
    return FederatedEvaluation(trained) if federated else trained


def attack(
    grid: Hostile,
    rng: random.Random,
    hostility: float,
    runs: Sequence[tuple[str, ...]] = RUNS,
    common: tuple[str, ...] = tuple(COMMON),
) -> tuple[tuple[str, ...], list[Mechanism]]:
    """One or two rounds of a hostile server; returns the run, and the mechanisms that were announced."""
    run = rng.choice(runs)
    known = _strategy(run, common)
    secure = wrap_grid(WrappedGrid(grid), known.config, known.parcels)
    announced = []
    for server_round in range(1, rng.randint(1, 2) + 1):
        strategy = _evaluation(run, common) if rng.random() < 0.6 else _strategy(run, common)
        # As if all had met.
        coordinator_of(strategy).nodes = {client: client + 2 for client in range(NODES)}
        strategy.model.load(crafted_model(rng, strategy.model.size))
        if strategy.parcels is not None:
            strategy.parcels._made.clear()  # they hold the model of another sequence
        strategy.clipping.load_state_dict({"clip": rng.choice((0.01, 0.3, 0.9))})
        asked = ask(strategy, server_round, secure)
        content = asked[0].content
        if rng.random() < 0.1:  # a training round as an evaluation
            content.config_records["head"][EVALUATION] = True
        announced.append(mechanism_from_record(content.config_records["mechanism"]))
        head = content.config_records["head"]
        if rng.random() < hostility:
            head["config"] = hostile_config(rng, str(head["config"]))
        if rng.random() < 0.1:
            head["round"] = rng.choice((0, 1, 2, 10**9))
        if rng.random() < 0.1 and "arrays" in content:
            odd = (np.zeros(3, np.float32), np.zeros((2, 2)), np.array(["x"]), np.zeros(0, np.int8))
            content["arrays"] = ArrayRecord({"model": Array(odd[rng.randrange(4)])})
        try:
            list(secure.send_and_receive(asked, timeout=60))
        except SecAggError as error:
            grid.told.append(str(error))
    return run, announced
