"""A gate as a process of its own, with TLS, in front of a SuperLink that only echoes; and clients that are slow."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fedsketch.runtime.certificates import make_all

ROOT = Path(__file__).parents[2]
GATE = "import sys; from fedsketch.server.gate import main; sys.exit(main())"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class EchoingSuperLink:
    """Answers a request with its body, and remembers headers."""

    port: int = field(default_factory=free_port)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        body = await request.body()
        self.headers.append(dict(request.headers))
        await Response(body)(scope, receive, send)

    @contextmanager
    def serving(self, certificate: Path, key: Path) -> Iterator[None]:
        server = uvicorn.Server(
            uvicorn.Config(
                self.answer,
                port=self.port,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                log_level="critical",
                interface="asgi3",
                lifespan="off",
            )
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(10)


@dataclass
class RunningGate:
    """Where the gate is reached, by whom it is trusted, and what it has written."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    superlink: EchoingSuperLink

    @property
    def trusted(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "ca.crt"))

    @property
    def log(self) -> list[str]:
        return (self.folder / "gate.log").read_text().splitlines()

    def client(self, address: str = "127.0.0.1") -> httpx.Client:
        """An honest device at this address of the loopback network."""
        return httpx.Client(
            base_url=f"https://127.0.0.1:{self.port}",
            transport=httpx.HTTPTransport(verify=self.trusted, local_address=address),
            timeout=10,
        )

    def healthy(self) -> bool:
        try:
            with self.client("127.9.9.9") as client:
                return client.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    def memory(self) -> int:
        """The largest memory of the process so far, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (peak,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(peak.split()[1]) * 1024


@contextmanager
def running_gate(folder: Path, options: Sequence[str] = ()) -> Iterator[RunningGate]:
    """Start both; afterwards neither is left."""
    make_all(folder)
    place = folder / "server"
    certificate, key = place / "server.crt", place / "server.key"
    superlink, port = EchoingSuperLink(), free_port()
    command = [sys.executable, "-c", GATE, "--superlink", f"127.0.0.1:{superlink.port}"]
    files = {
        "--root-certificates": folder / "ca.crt",
        "--ssl-certfile": certificate,
        "--ssl-keyfile": key,
    }
    for option, path in files.items():
        command += [option, str(path)]
    with superlink.serving(certificate, key), (folder / "gate.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), *options], cwd=ROOT, stdout=log, stderr=log
        )
        gate = RunningGate(folder, port, process, superlink)
        try:
            deadline = time.monotonic() + 60
            while not gate.healthy():
                assert process.poll() is None, gate.log
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield gate
        finally:
            process.kill()
            process.wait()


class SlowClients:
    """Connections that send the head of a POST, one byte of its body, and nothing more."""

    HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: gate\r\ncontent-length: 100000\r\n\r\nx"

    def __init__(self, gate: RunningGate, addresses: Sequence[str], sent: bytes = HEAD) -> None:
        self._gate, self._addresses, self._sent = gate, addresses, sent
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._open: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.refused = 0

    def __enter__(self) -> SlowClients:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._connect_all(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _connect_all(self) -> None:
        trusted, few = self._gate.trusted, asyncio.Semaphore(20)

        async def connect(address: str) -> None:
            async with few:
                try:
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1",
                        self._gate.port,
                        ssl=trusted,
                        server_hostname="127.0.0.1",
                        local_addr=(address, 0),
                    )
                    writer.write(self._sent)
                    await writer.drain()
                except OSError:  # also ssl.SSLError
                    self.refused += 1
                else:
                    self._open.append((reader, writer))

        await asyncio.gather(*map(connect, self._addresses))

    def open(self) -> int:
        """How many of them the gate still listens to."""
        return sum(not writer.transport.is_closing() for _, writer in self._open)

    def leave(self) -> None:
        """Break all connections off."""

        async def abort() -> None:
            for _, writer in self._open:
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(abort(), self._loop).result(10)
