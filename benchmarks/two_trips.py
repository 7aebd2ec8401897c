"""What a sum in two trips costs, beside pairwise masks and Flower's own SecAgg+ primitives, in one run.

    python benchmarks/two_trips.py [--quick]

All devices of three rounds of an epoch are real, and all answer. 5 % of them may drop out, 5 % may be lost after they
sent, and 10 % may collude. The first round has the meeting of all devices, which is shown apart: it comes once in 32
rounds. The others are shown without it. CPU milliseconds are those of one device and of the server in one round, caches
cleared before each device; "all" is the CPU time of a round of all devices in one process. Bytes are those of the
protocol beside the vector. What the other two columns measure is in pairwise_masks.py.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
from pairwise_masks import COMPLETE, flowers, ours

from fedsketch.secagg import (
    ProtocolName,
    SecAggOptions,
    SimulationGuard,
    SimulationRoster,
    VectorFormat,
)
from fedsketch.secagg.identity import verify
from fedsketch.secagg.node import Node
from fedsketch.secagg.packing import packed_size
from fedsketch.secagg.server_session import Numbers, RoundStage
from fedsketch.secagg.two_trips import device
from fedsketch.secagg.two_trips.sessions import TwoTripsSessions

MODEL = bytes(32)
BITS = 20
OPTIONS = SecAggOptions(
    drops=0.05, losses=0.05, colluders=0.1, protocol=ProtocolName.TWO_TRIPS, closed=True
)
MEASURED = 4  # devices whose time is taken


@dataclass
class Cost:
    """CPU milliseconds of a device, of the server and of everybody; bytes of a device beside its vector."""

    device: float = 0.0
    server: float = 0.0
    all: float = 0.0
    up: int = 0
    down: int = 0


class Epoch:
    """Devices that play rounds of one epoch."""

    def __init__(self, n: int, dim: int) -> None:
        self.nodes = [Node(i, 1, SimulationGuard(i)) for i in range(n)]
        self.states = [b""] * n
        self.vector = VectorFormat(dim, BITS)
        self.sessions = TwoTripsSessions(OPTIONS, SimulationRoster())
        self.numbers = Numbers(1)

    def round(self) -> Cost:
        """Play a round, and return what it cost."""
        cost, everything = Cost(), time.process_time()
        began = time.process_time()
        session = self.sessions.begin(1, self.numbers, range(len(self.nodes)), self.vector, MODEL)
        cost.server += time.process_time() - began
        while session.stage is not RoundStage.DONE:
            stage, began = session.stage, time.process_time()
            requests = session.requests()
            cost.server += time.process_time() - began
            for node, request in requests.items():
                verify.cache_clear()
                began = time.process_time()
                reply = self._take(stage, node, request)
                if node < MEASURED:
                    cost.device += time.process_time() - began
                    cost.up, cost.down = cost.up + len(reply), cost.down + len(request)
                began = time.process_time()
                session.receive(node, reply)
                cost.server += time.process_time() - began
            began = time.process_time()
            session.close()
            cost.server += time.process_time() - began
        if session.sums[0].total.any():
            raise RuntimeError("The sum of zeros is not zero.")
        cost.all = 1000 * (time.process_time() - everything)
        cost.device, cost.server = 1000 * cost.device / MEASURED, 1000 * cost.server
        cost.up = cost.up // MEASURED - packed_size(self.vector.dim, BITS)
        cost.down //= MEASURED
        return cost

    def _take(self, stage: RoundStage, node: int, request: bytes) -> bytes:
        me, state = self.nodes[node], self.states[node]
        if stage is RoundStage.MASK:
            ticket = device.open_mask(me, state, request, MODEL)
            device.spend(me, ticket)
            self.states[node], reply = device.mask(ticket, np.zeros(self.vector.dim, "<u4"))
        else:
            take = device.hello if stage is RoundStage.HELLO else device.answer
            self.states[node], reply = take(me, state, request)
        return reply


def print_row(n: int, dim: int) -> None:
    """Print what a round of n clients with vectors of `dim` numbers costs."""
    epoch = Epoch(n, dim)
    first, _, usual = epoch.round(), epoch.round(), epoch.round()
    peers = f"{'':>9} | {'':>9} | {'':>7}"
    if n <= 100:  # of 1,000 clients, those two would take minutes
        flower, pairwise = flowers(n - 1, dim).client, ours(n, dim, COMPLETE).client
        peers = f"{pairwise:>9.1f} | {flower:>9.1f} | {flower / usual.device:>7.0f}"
    print(
        f"{n:>5} | {dim:>6,} | {usual.device:>9.2f} | {peers} | {usual.up:>7,} | {usual.down:>6,} | "
        f"{usual.server:>9.1f} | {usual.all / 1000:>6.2f} | {first.device - usual.device:>9.1f} | "
        f"{first.up - usual.up:>5,} | "
        f"{first.down - usual.down:>8,}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="up to 100 clients")
    quick = parser.parse_args().quick
    print(f"Sums in two trips, {BITS} bits; one device, unless it says otherwise\n")
    print(
        f"{'n':>5} | {'dims':>6} | {'CPU ms':>9} | {'pairwise':>9} | {'SecAgg+':>9} | {'times':>7} | {'up':>7} | "
        f"{'down':>6} | {'server ms':>9} | {'all, s':>6} | {'first: ms':>9} | {'up':>5} | {'down':>8}"
    )
    rows = [(10, 64), (100, 64), (100, 1_386), (100, 10_000)]
    for n, dim in rows if quick else [*rows, (1_000, 64), (1_000, 10_000)]:
        print_row(n, dim)


if __name__ == "__main__":
    main()
