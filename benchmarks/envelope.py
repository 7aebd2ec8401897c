"""What the messages of a round cost beside what they are for: by record and key, for one client, without dropouts.

    python benchmarks/envelope.py [--settings demo "flat 64" ...] [--records] [--overrides secagg=pairwise ...]

Bytes are those of the objects into which Flower divides a message, as runs count them (server/grids/byte_meter.py):
`vector` is the masked vector, `model` the numbers from which devices make the model, `protocol` the bytes of secure
aggregation, and `envelope` all the rest, Flower's and ours. With --records each record and key has a line: what it
holds, and what is around that. What a device gets once in a run is in no sum. Needs no data.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from flwr.app import Array, RecordDict
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load

from fedsketch.conf import Config, compose
from fedsketch.delivery.parcels import STEPS
from fedsketch.delivery.records import PARCEL
from fedsketch.secagg import RECORD, planned_traffic
from fedsketch.secagg.names import VECTOR_RECORD
from fedsketch.secagg.packing import packed_size
from fedsketch.server.expected_traffic import message_size
from fedsketch.server.grids.named_settings import planned_broadcast
from fedsketch.strategies.noise.protocol import secagg_options
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.codec import RingCodec
from fedsketch.strategies.rounds.coordinator import Coordinator
from fedsketch.strategies.rounds.sampling import CohortSampler
from fedsketch.tasks.workload import Workload

PURPOSES = ("vector", "model", "protocol", "envelope")
SETTINGS = {
    "demo": [],
    "dome": ["experiment=dome"],
    "flat 64": ["experiment=dome_flat"],
    "fed_sgm": ["experiment=fed_sgm"],
    "dp_fedavg": ["experiment=dp_fedavg"],
}


@dataclass(frozen=True)
class Entry:
    """A record, or a value in it: how many of its bytes are for what, and how many are around them."""

    record: str
    key: str
    held: dict[str, int]
    around: int


@dataclass(frozen=True)
class Sent:
    """A message."""

    label: str
    direction: str
    entries: list[Entry]


def messages(config: Config) -> Iterator[Sent]:
    """Yield the messages between the server and a client in a round."""
    workload = Workload(config, only_to_plan=True)
    strategy = make_strategy(config, workload, workload.model())
    coordinator = Coordinator(strategy, CohortSampler(config.clients, 0))
    broadcast = planned_broadcast(coordinator)
    clients, codec = config.clients.per_round, RingCodec()
    options = secagg_options(config)
    vector = codec.describe(broadcast, options.sizes(clients))
    size = packed_size(vector.dim, vector.bits)
    for number, trip in enumerate(
        planned_traffic(options, codec, broadcast, clients).usual, start=1
    ):
        trains = set(trip.request) != {RECORD}  # this request has the broadcast too
        yield Sent(f"{number} down", "down", list(_entries(trip.request, 0)))
        yield Sent(f"{number} up", "up", list(_entries(trip.reply, size if trains else 0)))


def _entries(content: RecordDict, vector: int) -> Iterator[Entry]:
    """Yield the entries of a message, of which one may have a vector of so many bytes."""
    whole = RecordDict()
    size = message_size(whole)
    yield Entry("(message)", "", {}, size)
    for name, record in content.items():
        whole[name] = type(record)()
        size, before = message_size(whole), size
        yield Entry(name, "", {}, size - before)
        for key, value in record.items():
            whole[name][key] = value  # type: ignore[assignment]
            size, before = message_size(whole), size
            held = _held(name, key, value, vector)
            yield Entry(name, key, held, size - before - sum(held.values()))


def _held(name: str, key: str, value: Any, vector: int) -> dict[str, int]:
    """Return how many bytes of a value are for what."""
    if isinstance(value, Array):
        return {"model": value.numpy().nbytes} if name != VECTOR_RECORD else {"vector": vector}
    if name == RECORD:
        return {"vector": vector, "protocol": len(value) - vector}
    if isinstance(value, bytes) and name == PARCEL:
        steps = key == STEPS  # by which a device follows the model
        return {"model": len(value) if steps else sum(x.nbytes for x in load(value).values())}
    return {}


def _totals(name: str, sent: list[Sent], table: Table) -> None:
    for direction in ("up", "down"):
        these = [one for one in sent if one.direction == direction]
        held = Counter[str]()
        for one in these:
            for entry in one.entries:
                held.update({**entry.held, "envelope": entry.around})
        purposes = [f"{held[purpose]:,}" for purpose in PURPOSES]
        table.add_row(name, direction, str(len(these)), *purposes, f"{held.total():,}")


def _listed(name: str, sent: list[Sent]) -> Table:
    table = Table("message", "record", "key", "for", "bytes", "around", title=name)
    for one in sent:
        for entry in one.entries:
            held = {purpose: size for purpose, size in entry.held.items() if size}
            purposes, sizes = ", ".join(held), ", ".join(f"{size:,}" for size in held.values())
            table.add_row(one.label, entry.record, entry.key, purposes, sizes, f"{entry.around:,}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--records", action="store_true", help="list every record and key")
    parser.add_argument("--overrides", nargs="*", default=[])
    asked = parser.parse_args()
    console, table = Console(), Table("", "", "messages", *PURPOSES, "all")
    for name in asked.settings:
        sent = list(messages(compose([*SETTINGS[name], *asked.overrides])))
        if asked.records:
            console.print(_listed(name, sent))
        _totals(name, sent, table)
    console.print(table)


if __name__ == "__main__":
    main()
