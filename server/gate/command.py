"""The console script `fedsketch-gate`."""

from __future__ import annotations

import argparse
import re
import resource
import ssl
from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx
import uvicorn

from fedsketch.command_line import Parser, run_command
from fedsketch.errors import UsageError
from fedsketch.server.gate import quiet_log
from fedsketch.server.gate.application import gate
from fedsketch.server.gate.door import Entrance
from fedsketch.server.gate.guests import Guests
from fedsketch.server.gate.limits import LARGEST_REQUEST, MIB, Limits

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]+)", re.ASCII)
_OTHER_FILES = 50  # what the process has open beside connections


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script: serves until it is stopped; returns 1 after one sentence on stderr if it cannot start."""
    return run_command(_parser(), arguments, _serve)


def _serve(asked: argparse.Namespace) -> None:
    _check_address(asked.superlink)
    port = _number("--port", asked.port, 65535)
    limits = _limits(asked)
    try:
        trusted = ssl.create_default_context(cafile=asked.root_certificates)
        client = httpx.AsyncClient(
            base_url=f"https://{asked.superlink}",
            verify=trusted,
            timeout=httpx.Timeout(limits.answer, connect=10.0, pool=limits.turn),
            limits=httpx.Limits(max_connections=limits.upstream),
            trust_env=False,
        )
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(asked.ssl_certfile, asked.ssl_keyfile)
    except (OSError, ssl.SSLError, httpx.InvalidURL) as error:
        raise UsageError(f"certificates or address cannot be used ({error}).") from error
    _allow_open_files(limits.connections + limits.upstream + _OTHER_FILES)
    quiet_log.install()
    guests = Guests(limits)
    entrance: Any = partial(Entrance, guests, tls)
    uvicorn.run(
        gate(client, guests),
        host=asked.host,
        port=port,
        http=entrance,
        ws="none",
        loop="asyncio",
        proxy_headers=False,  # or a header could say who the peer is
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=5,  # or slow callers would keep it from stopping
    )


def _limits(asked: argparse.Namespace) -> Limits:
    """Return the limits that were asked for. Memory grows with the size of a request, and what an address may have
    grows with its connections."""
    largest = _number("--largest-request", asked.largest_request, 2048) * MIB
    each = _number("--connections-per-address", asked.connections_per_address, 100_000)
    usual = Limits()
    memory = max(usual.memory, 12 * largest)
    factor = max(1.0, each / usual.connections_per_address)
    return Limits(
        largest_request=largest,
        connections=_number("--connections", asked.connections, 100_000),
        connections_per_address=each,
        memory=memory,
        memory_per_address=min(memory, int(factor * max(usual.memory_per_address, 4 * largest))),
        upstream_per_address=min(usual.upstream, int(factor * usual.upstream_per_address)),
    )


def _allow_open_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"--connections needs {needed} open files, and this process may have {hard}: raise the limit (ulimit -n) "
            "or allow fewer connections."
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _parser() -> Parser:
    parser = Parser(
        prog="fedsketch-gate",
        description="Let devices reach a SuperLink's Fleet API, and nothing else of it.",
    )
    parser.add_argument(
        "--superlink", required=True, metavar="HOST:PORT", help="where the SuperLink is"
    )
    parser.add_argument(
        "--root-certificates", required=True, metavar="FILE", help="who signed its certificate"
    )
    parser.add_argument(
        "--ssl-certfile", required=True, metavar="FILE", help="certificate shown to devices"
    )
    parser.add_argument("--ssl-keyfile", required=True, metavar="FILE", help="its key")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", default="8000", help="port to listen on (8000)")
    parser.add_argument(
        "--largest-request",
        default=str(LARGEST_REQUEST),
        metavar="MIB",
        help=f"size of the largest request that passes ({LARGEST_REQUEST} MiB)",
    )
    parser.add_argument(
        "--connections",
        default=str(Limits.connections),
        metavar="N",
        help=f"connections at the same time ({Limits.connections})",
    )
    parser.add_argument(
        "--connections-per-address",
        default=str(Limits.connections_per_address),
        metavar="N",
        help=f"those of one address ({Limits.connections_per_address}); devices behind one router share it",
    )
    return parser


def _check_address(superlink: str) -> None:
    address = _ADDRESS.fullmatch(superlink)
    if not address or not 1 <= int(address[1][:9]) <= 65535:
        raise UsageError(f"--superlink is HOST:PORT, such as 127.0.0.1:8000, not {superlink!r}.")


def _number(option: str, text: str, most: int) -> int:
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise UsageError(f"{option} is a whole number from 1 to {most}, not {text!r}.")
    return int(text)
