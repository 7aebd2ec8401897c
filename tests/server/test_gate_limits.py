"""What the gate spends on a caller: time that moves on with what arrives, memory, connections, lines of its log."""

import asyncio
import io
import logging
import re
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Message
from uvicorn.server import ServerState

from fedsketch.runtime.certificates import make_all
from fedsketch.server.gate import Limits, command, gate
from fedsketch.server.gate.door import Entrance
from fedsketch.server.gate.guests import Guests, address_of
from fedsketch.server.gate.quiet_log import MOST, MOST_OF_A_KIND, QuietHandler

MIB = 2**20
HASTY = Limits(pause=0.2, slowest=100_000, head=0.3, turn=0.2)
Receive = Callable[[], Awaitable[Message]]


class _Pieces(httpx.AsyncByteStream):
    """An answer that arrives piece by piece."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece

    async def aclose(self) -> None:
        self.closed = True


def _superlink(answer: httpx.Response | None = None) -> tuple[httpx.AsyncClient, list[int]]:
    """One that answers with what it got, or with `answer`; and the sizes that it got."""
    got: list[int] = []

    async def respond(request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        got.append(len(body))
        return answer or httpx.Response(200, stream=_Pieces(body))

    transport = httpx.MockTransport(respond)
    return httpx.AsyncClient(transport=transport, base_url="https://superlink"), got


def _body(*steps: float | bytes) -> Receive:
    """A body that comes in these pieces, with these pauses between them; an empty piece ends it."""
    left = list(steps)

    async def receive() -> Message:
        while left:
            step = left.pop(0)
            if isinstance(step, bytes):
                return {"type": "http.request", "body": step, "more_body": bool(step)}
            await asyncio.sleep(step)
        return {"type": "http.disconnect"}

    return receive


async def _post(
    client: httpx.AsyncClient,
    guests: Guests,
    receive: Receive,
    address: str = "192.0.2.1",
    send: Callable[[Message], Awaitable[None]] | None = None,
) -> tuple[int, bytes]:
    told: list[Message] = []

    async def keep(message: Message) -> None:
        told.append(message)
        if send:
            await send(message)

    scope = {
        **{"type": "http", "method": "POST", "scheme": "https", "query_string": b""},
        **{"path": "/v1/fleet/push-object", "raw_path": b"/v1/fleet/push-object"},
        **{"headers": [(b"host", b"gate")], "client": (address, 1)},
    }
    await gate(client, guests)(scope, receive, keep)
    code = next((message["status"] for message in told if "status" in message), 0)
    return code, b"".join(message.get("body", b"") for message in told)


def test_a_body_that_pauses_too_long_ends_with_a_code_after_which_nodes_try_again() -> None:
    client, got = _superlink()
    code, said = asyncio.run(_post(client, Guests(HASTY), _body(b"x" * 90_000, 5.0, b"y", b"")))
    assert (code, said) == (503, b"The body of the request came too slowly.")
    assert got == []


def test_a_large_part_earns_no_long_silence_after_it() -> None:
    guests, (client, _) = Guests(HASTY), _superlink()

    async def play() -> float:
        began = asyncio.get_running_loop().time()
        await _post(client, guests, _body(b"x" * 5_000_000, 60.0))  # 50 s at the slowest rate
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(play()) < 5


def test_a_body_that_drips_below_the_slowest_rate_ends() -> None:
    client, got = _superlink()
    drips: list[float | bytes] = [0.05, b"x"] * 100
    assert asyncio.run(_post(client, Guests(HASTY), _body(*drips, b"")))[0] == 503
    assert got == []


def test_a_slow_device_takes_much_longer_than_a_pause() -> None:
    client, got = _superlink()
    steps: list[float | bytes] = [0.02, b"x" * 4_000] * 40  # twice the slowest rate, over 0.8 s
    assert asyncio.run(_post(client, Guests(HASTY), _body(*steps, b"")))[0] == 200
    assert got == [160_000]


def test_a_caller_who_leaves_costs_no_line_and_no_turn(caplog: pytest.LogCaptureFixture) -> None:
    client, got = _superlink()
    assert asyncio.run(_post(client, Guests(HASTY), _body(b"x"))) == (0, b"")
    assert (got, caplog.records) == ([], [])


def test_an_address_has_its_share_of_the_memory_and_gives_it_back() -> None:
    guests = Guests(Limits(memory=3000, memory_per_address=1000, pause=5))
    client, got = _superlink()

    async def play() -> None:
        waiting = asyncio.Event()

        async def hold() -> Message:
            if not waiting.is_set():
                waiting.set()
                return {"type": "http.request", "body": bytes(900), "more_body": True}
            await asyncio.sleep(5)
            return {"type": "http.disconnect"}

        holding = asyncio.create_task(_post(client, guests, hold))
        await waiting.wait()
        await asyncio.sleep(0.01)
        assert guests.memory == 900
        refused = await _post(client, guests, _body(bytes(101), b""))
        assert refused == (503, b"There is no room for another request now.")
        assert (await _post(client, guests, _body(bytes(1000), b""), "192.0.2.2"))[0] == 200
        await asyncio.gather(
            *(
                _post(client, guests, _body(bytes(1000), 0.1, b""), f"192.0.2.{number}")
                for number in range(3, 6)
            )
        )
        assert got.count(1000) == 3  # of the last three only two had room
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)

    asyncio.run(play())
    assert (guests.memory, guests.known) == (0, {})


def test_bytes_that_come_one_by_one_take_no_more_memory_than_together() -> None:
    guests = Guests(Limits())
    with guests.request("192.0.2.1") as (_, body):
        tracemalloc.start()
        for number in range(50_000):
            body.add(bytes([number % 256]))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert guests.memory == 50_000
    assert peak < 150_000  # as single objects they would take 34 bytes and a reference each


def test_an_address_has_its_share_of_the_turns_at_the_superlink() -> None:
    guests = Guests(Limits(upstream_per_address=2, turn=0.1))
    done, inside, most = asyncio.Event(), 0, 0

    async def respond(_: httpx.Request) -> httpx.Response:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await done.wait()
        return httpx.Response(200, stream=_Pieces())

    transport = httpx.MockTransport(respond)
    client = httpx.AsyncClient(transport=transport, base_url="https://superlink")

    async def play() -> list[int]:
        posts = [asyncio.create_task(_post(client, guests, _body(b""))) for _ in range(5)]
        await asyncio.sleep(0.3)
        other = asyncio.create_task(_post(client, guests, _body(b""), "192.0.2.9"))
        await asyncio.sleep(0.05)
        done.set()
        return [code for code, _ in await asyncio.gather(*posts, other)]

    assert asyncio.run(play()) == [200, 200, 503, 503, 503, 200]
    assert most == 3


def test_who_reads_an_answer_too_slowly_gives_the_connection_to_the_superlink_back() -> None:
    answer = _Pieces(*[bytes(2**16)] * 100)
    client, _ = _superlink(httpx.Response(200, stream=answer))

    async def never(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    async def play() -> None:
        await asyncio.wait_for(_post(client, Guests(HASTY), _body(b""), send=never), 5)

    asyncio.run(play())
    assert answer.closed


def test_a_superlink_that_answers_slowly_is_not_the_devices_fault() -> None:
    class Slow(_Pieces):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for number in range(4):
                await asyncio.sleep(0.15)  # together three times as long as a pause
                yield bytes([number])

    client, _ = _superlink(httpx.Response(200, stream=Slow()))
    assert asyncio.run(_post(client, Guests(HASTY), _body(b""))) == (200, bytes(range(4)))


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::9", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        (None, ""),
    ],
)
def test_an_address_is_what_one_customer_gets(peer: Sequence[Any] | None, address: str) -> None:
    assert address_of(peer) == address


class Door:
    """A gate on a real port, in this process, with `HASTY` limits."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        make_all(folder)
        self.guests = Guests(limits)
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.tls.load_cert_chain(folder / "server" / "server.crt", folder / "server" / "server.key")
        self.trusted = ssl.create_default_context(cafile=folder / "ca.crt")
        self.port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        client, _ = _superlink()
        config = uvicorn.Config(
            gate(client, self.guests), ws="none", log_config=None, lifespan="off"
        )
        config.load()

        def enter() -> Entrance:
            state = ServerState()
            return Entrance(self.guests, self.tls, config=config, server_state=state, app_state={})

        server = await asyncio.get_running_loop().create_server(enter, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()

    async def connect(self, tls: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        options = {"ssl": self.trusted, "server_hostname": "127.0.0.1"} if tls else {}
        return await asyncio.open_connection("127.0.0.1", self.port, **options)  # type: ignore[arg-type]


async def _ends(reader: asyncio.StreamReader) -> bool:
    """Whether a connection ends within three seconds without having said anything."""
    try:
        return await asyncio.wait_for(reader.read(), 3) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


GET = b"POST /v1/fleet/get-run HTTP/1.1\r\nhost: gate\r\ncontent-length: 2\r\n\r\nhi"


def test_connections_that_say_nothing_are_cut_off(tmp_path: Path) -> None:
    """Before the handshake, after it, in the middle of a head, and in the head of a second request."""
    door = Door(tmp_path, HASTY)

    async def play() -> None:
        async with door.open():
            silent = await door.connect(tls=False)
            idle, half, second = [await door.connect() for _ in range(3)]
            half[1].write(GET[:20])
            second[1].write(GET)
            assert (await second[0].readuntil(b"\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200")
            second[1].write(GET[:20])
            await asyncio.sleep(0.05)
            assert door.guests.connections == 4
            assert all([await _ends(reader) for reader, _ in (silent, idle, half, second)])
            await asyncio.sleep(0.05)
            assert (door.guests.connections, door.guests.known) == (0, {})

    asyncio.run(play())


def test_a_head_has_no_more_than_64_kib(tmp_path: Path) -> None:
    door = Door(tmp_path, HASTY)

    async def play() -> bytes:
        async with door.open():
            reader, writer = await door.connect()
            writer.write(b"POST / HTTP/1.1\r\n" + b"x: " + b"y" * 300_000)
            return await asyncio.wait_for(reader.read(), 3)

    assert asyncio.run(play()).startswith(b"HTTP/1.1 400")


def test_connections_above_the_number_are_refused_until_one_leaves(tmp_path: Path) -> None:
    door = Door(tmp_path, Limits(connections_per_address=2))

    async def play() -> None:
        async with door.open():
            (_, first), _second = await door.connect(), await door.connect()
            for _ in range(3):
                with pytest.raises(OSError, match=r"reset|closed|lost|EOF|abort"):
                    await asyncio.wait_for(door.connect(), 3)
            assert door.guests.connections == 2
            first.transport.abort()
            await asyncio.sleep(0.1)
            reader, writer = await door.connect()
            writer.write(GET)
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")

    asyncio.run(play())


def _asked(*options: str) -> Limits:
    needed = ["--superlink", "a:1", "--root-certificates", "b", "--ssl-certfile", "c"]
    return command._limits(command._parser().parse_args([*needed, "--ssl-keyfile", "d", *options]))


def test_an_address_that_many_devices_share_gets_more_of_everything() -> None:
    assert _asked() == Limits()
    assert _asked("--connections-per-address", "10").memory_per_address == 64 * MIB
    shared = _asked("--connections-per-address", "200")
    assert (shared.memory_per_address, shared.upstream_per_address) == (128 * MIB, 50)
    alone = _asked("--connections-per-address", "1000")
    assert (alone.memory_per_address, alone.upstream_per_address) == (alone.memory, alone.upstream)


def test_memory_has_room_for_several_of_the_largest_requests() -> None:
    large = _asked("--largest-request", "100")
    assert (large.memory_per_address, large.memory) == (400 * MIB, 1200 * MIB)


def _lines(records: Sequence[tuple[str, Sequence[object]]], error: Exception | None = None) -> str:
    stream = io.StringIO()
    handler = QuietHandler(stream)
    for text, values in records:
        information = (type(error), error, None) if error else None
        handler.handle(
            logging.LogRecord("x", logging.WARNING, "", 1, text, tuple(values), information)
        )
    return stream.getvalue()


def test_a_line_is_one_line_whatever_a_stranger_sends() -> None:
    forged = "a\n2026-01-01 CRITICAL forged\x1b[31m" + "b" * 1000
    text = _lines([("got %s", [forged])], ValueError("c\nd"))
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert len(text) < 350
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d WARNING got a 2026-01-01 CRITICAL", text)
    assert _lines([("got", [])], ValueError("c\nd")).endswith("got (ValueError: c d)\n")


def test_one_kind_of_event_writes_few_lines_and_hides_no_other() -> None:
    text = _lines([*([("refused %s", ["x"])] * 1000), ("failed", [])])
    assert (text.count("refused"), text.count("failed")) == (MOST_OF_A_KIND, 1)
    assert _lines([(f"kind {number}", []) for number in range(100)]).count("\n") == MOST


def test_what_was_not_written_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    handler = QuietHandler(stream)
    record = logging.LogRecord("x", logging.WARNING, "", 1, "refused", (), None)
    for _ in range(100):
        handler.handle(record)
    now += 61
    handler.handle(record)
    assert f"{100 - MOST_OF_A_KIND} more lines were not written." in stream.getvalue()
