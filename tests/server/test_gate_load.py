"""Clients that are slow, many or broken do not keep honest devices from the SuperLink."""

import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fedsketch.server.gate.quiet_log import MOST
from tests.server.gate_in_process import RunningGate, SlowClients, running_gate

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="needs all addresses of the loopback network, and /proc"
)
MIB = 2**20
HEADS = [
    b"host: gate\r\ncontent-length: 99999999",
    b"host: gate\r\ncontent-length: -1",
    b"no host",
    b"host: gate\r\nconnection: upgrade\r\nupgrade: websocket\r\ncontent-length: 1",
    b"host: gate\r\nx: \x1b[31m\r\ncontent-length: 9",
]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[RunningGate]:
    with running_gate(tmp_path) as running:
        yield running


def _is_served(gate: RunningGate, address: str) -> bool:
    """Whether an honest device at this address gets five answers, and how soon."""
    with gate.client(address) as honest:
        for _ in range(5):
            body, began = b"x" * 1000, time.monotonic()
            try:
                answer = honest.post("/v1/fleet/get-run", content=body)
            except httpx.HTTPError as error:
                print(f"{error!r} after {time.monotonic() - began:.1f} s")
                return False
            print(f"{answer.status_code} after {time.monotonic() - began:.3f} s")
            if (answer.status_code, answer.content) != (200, body):
                return False
    return True


def _log_is_short(gate: RunningGate) -> bool:
    time.sleep(0.5)
    print(*gate.log[:10], f"{len(gate.log)} lines", sep="\n")
    return len(gate.log) <= MOST and not any("Traceback" in line for line in gate.log)


def test_500_slow_requests_from_50_addresses_keep_nobody_out(gate: RunningGate) -> None:
    addresses = [f"127.0.1.{1 + number % 50}" for number in range(500)]
    with SlowClients(gate, addresses) as slow:
        assert (slow.open(), slow.refused) == (500, 0)
        assert _is_served(gate, "127.0.2.1")
        assert gate.healthy()
        assert slow.open() == 500
        print(f"{gate.memory() / MIB:.0f} MiB")
        assert gate.memory() < 400 * MIB
    assert _is_served(gate, "127.0.2.1")
    assert _log_is_short(gate)


def test_500_slow_requests_from_one_address_take_what_an_address_may_have(
    gate: RunningGate,
) -> None:
    with SlowClients(gate, ["127.0.1.1"] * 500) as slow:
        assert slow.open() <= 100
        assert _is_served(gate, "127.0.2.1")
        assert gate.healthy()
    assert _is_served(gate, "127.0.1.1")
    assert _log_is_short(gate)


def test_broken_callers_write_few_lines(gate: RunningGate) -> None:
    """No TLS, no HTTP, bodies that are too large, and connections that break off."""
    lines = [b"\r\n".join([b"POST /v1/fleet/x HTTP/1.1", head, b"", b"x"]) for head in HEADS]
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", gate.port)) as plain:
            plain.sendall(lines[0])
    for sent in lines:
        with SlowClients(gate, ["127.0.1.1"] * 20, sent):
            time.sleep(0.3)
    assert _is_served(gate, "127.0.1.1")
    assert _log_is_short(gate)


def test_no_header_says_who_a_caller_is(gate: RunningGate) -> None:
    """Or one caller could have the share of any number of addresses."""
    head = b"host: gate\r\nx-forwarded-for: 203.0.113.9\r\ncontent-length: 99999999"
    sent = b"\r\n".join([b"POST /v1/fleet/get-run HTTP/1.1", head, b"", b"x"])
    with SlowClients(gate, ["127.0.1.7"], sent):
        time.sleep(1)
    told = [line for line in gate.log if "Refused a request" in line]
    assert told
    assert all("127.0.1.7" in line and "203.0.113.9" not in line for line in told)


@pytest.mark.slow  # as long as a body may pause
def test_slow_requests_end_after_their_pause(gate: RunningGate) -> None:
    with SlowClients(gate, [f"127.0.1.{1 + number % 50}" for number in range(500)]) as slow:
        began = time.monotonic()
        while slow.open():
            assert time.monotonic() - began < 60
            assert _is_served(gate, "127.0.2.1")
            time.sleep(2)
        assert time.monotonic() - began > 25
    assert _log_is_short(gate)


@pytest.mark.slow  # for its five seconds
def test_slow_requests_do_not_keep_the_gate_from_stopping(gate: RunningGate) -> None:
    with SlowClients(gate, ["127.0.1.1"] * 50):
        gate.process.terminate()
        gate.process.wait(15)
    assert _log_is_short(gate)
