"""What secure aggregation costs, beside Flower's own SecAgg+ primitives, in one run.

    python benchmarks/pairwise_masks.py [--quick] [--whole]

Ours is the real protocol: all devices of a round with one client more than the neighbours, 5 % of which drop out before
they send their vectors; the time is the CPU time of one device over all its steps (caches cleared) and of the server.
Flower's is the sequence of calls that its SecAgg+ mod and workflow make, without their messages; its server time is
that of one client's work times the number of clients. Encoding (clip, round, noise) is on neither side.

A second table is one device in the complete graph of 1,000 clients (10 % colluders, 5 % drops), step by step. Its peers
are imitated: they sign and encrypt for it, and have no vectors. --whole plays a round of 1,000 clients with everybody
in it, in the complete graph and in a ring, and prints what the server and what all clients together need.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import (
    decrypt,
    encrypt,
    generate_shared_key,
)
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

from fedsketch.secagg import (
    SecAggOptions,
    SimulationGuard,
    SimulationRoster,
    VectorFormat,
    x25519,
)
from fedsketch.secagg.guard import simulated_identity
from fedsketch.secagg.identity import verify
from fedsketch.secagg.node import Node
from fedsketch.secagg.pairwise import device, keys, messages, shamir
from fedsketch.secagg.pairwise.masking import apply_masks
from fedsketch.secagg.pairwise.server_session import PairwiseSession
from fedsketch.secagg.pairwise.settings import PairwiseSettings
from fedsketch.secagg.server_session import RoundStage
from fedsketch.secagg.wire import bitmap

MODEL = bytes(32)
COMPLETE = SecAggOptions(drops=0.05)
RING = SecAggOptions(drops=0.05, consistency=False)
MEASURED = 2  # devices whose time is taken, with cold caches
STEPS = {
    RoundStage.ADVERTISE: device.advertise,
    RoundStage.SHARE: device.share,
    RoundStage.SIGN: device.sign,
    RoundStage.UNMASK: device.unmask,
}


@dataclass
class Cost:
    """CPU milliseconds of a client and of the server; bytes that a client sends, in all and masked."""

    client: float
    server: float
    up: int
    vector: int


def cpu(work: Callable[[], object]) -> float:
    """Return CPU milliseconds of one call."""
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)


def ours(n: int, dim: int, options: SecAggOptions = COMPLETE) -> Cost:
    """Return a whole round of n clients; the mean over the measured devices."""
    settings = PairwiseSettings.proposed(options, 1, 1, range(n), VectorFormat(dim, 32), MODEL)
    nodes = [Node(i, 1, SimulationGuard(i)) for i in range(n)]
    states = [b""] * n
    silent = set(range(n - settings.drops, n))
    session = PairwiseSession(settings, SimulationRoster())
    vector = np.zeros(dim, dtype="<u4")
    client = server = 0.0
    up = sent = 0
    while session.stage is not RoundStage.DONE:
        step = session.stage
        began = time.process_time()
        requests = session.requests()
        server += time.process_time() - began
        for i, request in requests.items():
            if step is RoundStage.MASK and i in silent:
                continue
            if i < MEASURED:
                verify.cache_clear()
                PairwiseSettings.decode.cache_clear()
            began = time.process_time()
            if step is RoundStage.MASK:
                ticket = device.open_mask(nodes[i], states[i], request, MODEL)
                states[i] = device.spend(nodes[i], ticket)
                states[i], reply = device.mask(ticket, vector)
            else:
                states[i], reply = STEPS[step](nodes[i], states[i], request)
            if i < MEASURED:
                client += time.process_time() - began
                up += len(reply)
                sent = len(reply) if step is RoundStage.MASK else sent
            began = time.process_time()
            session.receive(i, reply)
            server += time.process_time() - began
        began = time.process_time()
        session.close()
        server += time.process_time() - began
    if session.sums[0].total.any():
        raise RuntimeError("The sum of zeros is not zero.")
    return Cost(1000 * client / MEASURED, 1000 * server, up // MEASURED, sent)


def flowers(neighbours: int, dim: int) -> Cost:
    """Return the calls of one client of Flower's SecAgg+, and the server's per client."""
    n = neighbours + 1
    threshold, modulus = n // 2 + 1, 1 << 32
    drops = int(0.05 * n)
    peers = [public_key_to_bytes(generate_key_pairs()[1]) for _ in range(neighbours)]
    kept: dict[str, list[bytes]] = {}

    def client() -> None:
        secret_1, secret_2 = (private_key_to_bytes(generate_key_pairs()[0]) for _ in range(2))
        seed = os.urandom(32)
        seed_shares = create_shares(seed, threshold, n)
        key_shares = create_shares(secret_1, threshold, n)
        agreed, sealed = [], []
        for i, public in enumerate(peers):
            key = generate_shared_key(bytes_to_private_key(secret_2), bytes_to_public_key(public))
            text = share_keys_plaintext_concat(0, i, seed_shares[i], key_shares[i])
            agreed.append(key)
            sealed.append(encrypt(key, text))
        for key, text in zip(agreed, sealed, strict=True):
            decrypt(key, text)
        vector = [np.zeros(dim, dtype=np.int64)]
        vector = parameters_addition(vector, pseudo_rand_gen(seed, modulus, [(dim,)]))
        for i, public in enumerate(peers):
            key = generate_shared_key(bytes_to_private_key(secret_1), bytes_to_public_key(public))
            mask = pseudo_rand_gen(key, modulus, [(dim,)])
            combine = parameters_addition if i % 2 else parameters_subtraction
            vector = combine(vector, mask)
        vector = parameters_mod(vector, modulus)
        kept.update(seed=seed_shares, key=key_shares, sealed=sealed, secret=[secret_1])

    def one_mask() -> None:
        mask = pseudo_rand_gen(bytes(32), modulus, [(dim,)])
        parameters_subtraction([np.zeros(dim, dtype=np.int64)], mask)

    def one_agreement() -> None:
        generate_shared_key(bytes_to_private_key(kept["secret"][0]), bytes_to_public_key(peers[0]))

    client_ms = cpu(client)
    join_seed = cpu(lambda: combine_shares(kept["seed"][:threshold]))
    join_key = cpu(lambda: combine_shares(kept["key"][:threshold]))
    mask, agreement = cpu(one_mask), cpu(one_agreement)
    server_ms = (n - drops) * (join_seed + 2 * mask)  # the vector itself is added too
    server_ms += drops * (join_key + (n - drops) * (mask + agreement))
    up = sum(len(text) for text in kept["sealed"]) + 8 * dim
    up += sum(len(share) for share in kept["seed"])
    return Cost(client_ms, server_ms, up, 8 * dim)


class OneOfMany:
    """Device 0 of a large round: CPU milliseconds and bytes (down, up) of its steps."""

    def __init__(self, n: int, dim: int) -> None:
        options = SecAggOptions(drops=0.05, colluders=0.1)
        self.settings = PairwiseSettings.proposed(
            options, 1, 1, range(n), VectorFormat(dim, 32), MODEL
        )
        self.milliseconds: dict[RoundStage, float] = {}
        self.traffic: dict[RoundStage, tuple[int, int]] = {}
        self._node, self._state = Node(0, 1, SimulationGuard(0)), b""
        for i in range(n):
            simulated_identity(i)  # a real roster has its keys at hand
        self._round()

    def _round(self) -> None:
        settings = self.settings
        everyone, peers = range(settings.n), range(1, settings.n)
        reply = self._take(RoundStage.ADVERTISE, settings.encoded)
        mine = messages.read_advertise_reply(settings, reply)
        private = {i: x25519.new_private() for i in peers}
        adverts = {}
        for i in peers:
            pair = x25519.public_of(private[i]) + x25519.public_of(x25519.new_private())
            statement = messages.key_statement(settings.digest, i, pair)
            adverts[i] = pair + simulated_identity(i).sign(statement)
        self._take(RoundStage.SHARE, messages.share_request(settings, everyone, adverts))
        sealed = {}
        for i in peers:
            secret = x25519.agree(x25519.load_private(private[i]), mine[:32])
            key, _ = keys.share_keys(secret, settings.digest, i, 0)
            sealed[i] = keys.seal(key, os.urandom(keys.SHARES_BYTES), settings.digest, i, 0)
        self._take(RoundStage.MASK, messages.mask_request(settings, everyone, sealed))
        survivors = range(settings.sizes.least)
        self._take(RoundStage.SIGN, messages.sign_request(settings, survivors))
        lists = bitmap(settings.n, everyone), bitmap(settings.n, survivors)
        statement = messages.survivor_statement(settings.digest, MODEL, *lists)
        signed = {i: simulated_identity(i).sign(statement) for i in range(settings.quorum)}
        self._take(RoundStage.UNMASK, messages.unmask_request(settings, survivors, signed))

    def _take(self, step: RoundStage, request: bytes) -> bytes:
        verify.cache_clear()
        PairwiseSettings.decode.cache_clear()
        began = time.process_time()
        if step is RoundStage.MASK:
            vector = np.zeros(self.settings.dim, dtype="<u4")
            ticket = device.open_mask(self._node, self._state, request, MODEL)
            self._state, reply = device.mask(ticket, vector)
        else:
            self._state, reply = STEPS[step](self._node, self._state, request)
        self.milliseconds[step] = 1000 * (time.process_time() - began)
        self.traffic[step] = len(request), len(reply)
        return reply

    def parts(self) -> dict[str, float]:
        """Return CPU milliseconds of the same amount of each kind of work, done apart from the protocol."""
        settings, peers = self.settings, self.settings.n - 1
        identity, statement = simulated_identity(0), bytes(64)
        signature, private = identity.sign(statement), x25519.load_private(x25519.new_private())
        public, key = x25519.public_of(x25519.new_private()), os.urandom(32)
        sealed = keys.seal(key, bytes(keys.SHARES_BYTES), MODEL, 0, 1)
        points = range(1, settings.n + 1)
        checks = peers + settings.quorum
        mask_keys = [os.urandom(16) for _ in range(settings.n)]
        vector = np.zeros(settings.dim, dtype="<u4")

        def repeat(times: int, work: Callable[[], object]) -> float:
            return cpu(lambda: [work() for _ in range(times)])

        def seal_and_open() -> None:
            keys.seal(key, bytes(keys.SHARES_BYTES), MODEL, 0, 1)
            keys.unseal(key, sealed, MODEL, 0, 1)

        return {
            f"{checks:,} signatures checked": repeat(
                checks, lambda: verify.__wrapped__(identity.public, signature, statement)
            ),
            f"{2 * peers:,} key agreements": repeat(
                2 * peers, lambda: x25519.agree(private, public)
            ),
            f"{2 * peers:,} keys derived": repeat(
                2 * peers, lambda: keys.pair_mask_key(key, MODEL, MODEL, 0, 1)
            ),
            f"2 secrets shared, {settings.threshold} of {settings.n:,}": repeat(
                2, lambda: shamir.split(key, settings.threshold, points)
            ),
            f"{peers:,} shares sealed and opened": repeat(peers, seal_and_open),
            f"{settings.n:,} masks of {settings.dim:,} numbers": cpu(
                lambda: apply_masks(vector, mask_keys, [])
            ),
        }


def print_one_of_many(n: int, dim: int) -> None:
    one = OneOfMany(n, dim)
    degree, threshold = one.settings.degree, one.settings.threshold
    print(f"\nOne device of {n:,}: degree {degree}, threshold {threshold}, {dim:,} dimensions\n")
    print(f"{'step':>10} | {'CPU ms':>8} | {'bytes down':>11} | {'bytes up':>11}")
    for step, milliseconds in one.milliseconds.items():
        down, up = one.traffic[step]
        print(f"{step.name.lower():>10} | {milliseconds:>8.1f} | {down:>11,} | {up:>11,}")
    total = sum(one.milliseconds.values())
    down, up = (sum(column) for column in zip(*one.traffic.values(), strict=True))
    print(f"{'all':>10} | {total:>8.1f} | {down:>11,} | {up:>11,}\n")
    parts = one.parts()
    for name, milliseconds in {**parts, "everything else": total - sum(parts.values())}.items():
        print(f"{name:>38}: {milliseconds:>6.1f} ms")


def print_whole_rounds(n: int, dim: int) -> None:
    print(f"\nA whole round of {n:,} clients, {dim:,} dimensions, 5 % of them lost; CPU seconds\n")
    for name, options in (("complete graph", COMPLETE), ("ring", RING)):
        began = time.process_time()
        server = ours(n, dim, options).server / 1000
        everything = time.process_time() - began
        print(f"{name:>14}: server {server:.1f}, with all clients {everything:.0f}", flush=True)


def openssl_speed() -> float | None:
    """Return GB/s of `openssl speed -evp aes-128-ctr` on blocks of 16 KiB, or None without openssl."""
    program = shutil.which("openssl")
    if program is None:
        return None
    command = [program, "speed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-128-ctr"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"AES-128-CTR\s+([\d.]+)k", output, re.IGNORECASE)
    return float(found.group(1)) * 1000 / 1e9 if found else None


def mask_speed() -> float:
    """Return GB/s of keystream expanded and added to a vector of a million 32-bit numbers."""
    keys = [os.urandom(16) for _ in range(50)]
    vector = np.zeros(1_000_000, dtype="<u4")
    best = min(cpu(lambda: apply_masks(vector, keys, [])) for _ in range(5))
    return len(keys) * vector.nbytes / (best / 1000) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only 1e4 dimensions")
    parser.add_argument("--whole", action="store_true", help="also a whole round of 1,000 clients")
    asked = parser.parse_args()
    dims = [10**4] if asked.quick else [10**4, 10**5, 10**6]
    print("CPU ms per round (ours / Flower's SecAgg+ = times faster); bytes up per client\n")
    head = f"{'neighbours':>10} {'dims':>8} | {'client':>28} | {'server':>32} | "
    print(head + f"{'bytes up':>25} | {'vector, B/coord':>15}")
    for neighbours in (10, 50, 100):
        for dim in dims:
            we, they = ours(neighbours + 1, dim), flowers(neighbours, dim)
            print(
                f"{neighbours:>10} {dim:>8.0e} | "
                f"{we.client:>8.1f} / {they.client:>8.1f} = {they.client / we.client:>5.0f}x | "
                f"{we.server:>9.1f} / {they.server:>10.1f} = {they.server / we.server:>6.0f}x | "
                f"{we.up:>11,} / {they.up:>11,} | {we.vector / dim:>6.3f} / {they.vector / dim:.3f}",
                flush=True,
            )
    print_one_of_many(1000, 10**4)
    if asked.whole:
        print_whole_rounds(1000, 10**4)
    speed, limit = mask_speed(), openssl_speed()
    print(f"\nmask expansion and addition: {speed:.2f} GB/s", end="")
    if limit is None:
        print("; openssl is not installed, so there is no ratio")
    else:
        print(f" = {speed / limit:.0%} of openssl's AES-128-CTR ({limit:.2f} GB/s)")


if __name__ == "__main__":
    main()
