"""What passes the gate: the Fleet API, unchanged; and nothing else, however it is spelt."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fedsketch.server.gate import LARGEST_REQUEST, Limits, gate, main
from fedsketch.server.gate.guests import Guests

SMALL = Guests(Limits(largest_request=1000))


@dataclass
class Answer:
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class SuperLink:
    """Answers everything, and remembers it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, dict[str, str]]] = []
        transport = httpx.ASGITransport(self._answer)
        self.client = httpx.AsyncClient(transport=transport, base_url="https://superlink:8000")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        self.seen.append((str(request.url), body, dict(request.headers)))
        headers = {
            "x-told": "yes",
            "keep-alive": "timeout=5",
            "connection": "X-Inside",
            "x-inside": "of this connection",
        }
        answer = Response(b"answer to " + body, 418, headers)
        await answer(scope, receive, send)


def call(
    app: Starlette,
    path: str,
    method: str = "POST",
    body: bytes = b"",
    pieces: Sequence[bytes] = (),
    **headers: str,
) -> Answer:
    """A request whose path arrives as it is written here: client libraries would tidy it up. Its body comes whole,
    after `pieces` of it."""
    raw, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "https",
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "headers": [
            (b"host", b"gate:8000"),
            *((k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()),
        ],
    }
    answer = Answer()
    inbox = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    inbox.append({"type": "http.request", "body": body})

    async def receive() -> Message:
        return inbox.pop(0) if inbox else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status, answer.headers = message["status"], dict(message["headers"])
        else:
            answer.body += message.get("body", b"")

    asyncio.run(app(scope, receive, send))
    return answer


@pytest.fixture
def superlink() -> SuperLink:
    return SuperLink()


def test_fleet_calls_and_their_answers_pass_unchanged(superlink: SuperLink) -> None:
    body = bytes(range(256)) * 5000
    answer = call(
        gate(superlink.client),
        "/v1/fleet/pull-messages",
        body=body,
        flwr_signature="abc",
        content_type="application/x-protobuf",
    )
    (address, received, told) = superlink.seen[0]
    assert (address, received) == ("https://superlink:8000/v1/fleet/pull-messages", body)
    assert (told["flwr-signature"], told["content-type"]) == ("abc", "application/x-protobuf")
    assert (answer.status, answer.body) == (418, b"answer to " + body)
    assert answer.headers[b"x-told"] == b"yes"
    assert not {b"keep-alive", b"connection", b"x-inside"} & set(answer.headers)


def test_headers_that_flower_does_not_send_end_at_the_gate(superlink: SuperLink) -> None:
    call(
        gate(superlink.client),
        "/v1/fleet/get-run",
        connection="close, X-Trace ,\tx-Other",
        x_trace="1",
        X_Other="2",
        flwr_timestamp="3",
        x_flwr_client="4",
        proxy_authorization="secret",
        cookie="5",
    )
    told = superlink.seen[0][2]
    assert (told["flwr-timestamp"], told["x-flwr-client"]) == ("3", "4")
    ours = {"host", "content-length", "accept", "accept-encoding", "connection", "user-agent"}
    assert set(told) == ours | {"flwr-timestamp", "x-flwr-client"}
    assert "X-Trace" not in told.get("connection", "")


@pytest.mark.parametrize(
    "header",
    [
        *("forwarded", "x_forwarded_for", "X_Forwarded_Host", "x_forwarded_proto", "x_real_ip"),
        *("x_client_ip", "true_client_ip", "cf_connecting_ip", "via", "x_original_url"),
    ],
)
def test_nobody_says_in_a_header_that_another_has_sent_it(
    superlink: SuperLink, header: str
) -> None:
    call(gate(superlink.client), "/v1/fleet/get-run", **{header: "192.0.2.1"})
    assert "192.0.2.1" not in superlink.seen[0][2].values()


def test_every_header_of_flowers_nodes_passes() -> None:
    """A new release of Flower may send others: then they have to be let through."""
    from flwr.common import constant as common
    from flwr.supercore import constant as core
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

    from fedsketch.server.gate.application import _FROM_DEVICES

    sent = {
        *dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()),
        common.TIMESTAMP_HEADER,
        core.FLEET_HTTP_PUBLIC_KEY_HEADER,
        core.FLEET_HTTP_SIGNATURE_HEADER,
        core.FLWR_CLIENT_METADATA_KEY,
    }
    assert all(_FROM_DEVICES.fullmatch(name.encode()) for name in sent)


def test_a_request_that_says_it_is_too_large_is_refused_unread(superlink: SuperLink) -> None:
    answer = call(gate(superlink.client, SMALL), "/v1/fleet/push-object", content_length="1001")
    assert (answer.status, answer.body) == (413, b"A request has at most 1000 bytes here.")
    assert superlink.seen == []


def test_a_request_that_turns_out_too_large_never_reaches_the_superlink_whole(
    superlink: SuperLink,
) -> None:
    app, pieces = gate(superlink.client, SMALL), [bytes(400), bytes(400)]
    assert call(app, "/v1/fleet/push-object", body=bytes(201), pieces=pieces).status == 413
    assert superlink.seen == []
    assert call(app, "/v1/fleet/push-object", body=bytes(200), pieces=pieces).status == 418
    assert superlink.seen[0][1] == bytes(1000)


def test_a_piece_of_an_array_as_flower_sends_it_passes(superlink: SuperLink) -> None:
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as PIECE

    assert 2 * PIECE < LARGEST_REQUEST * 2**20
    body = bytes(PIECE + 4096)
    assert call(gate(superlink.client), "/v1/fleet/push-object", body=body).status == 418


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol%2fstart-run",
        "/v1/fleet/%2e%2e",
        "/v1/fleet//start-run",
        "/v1/fleet/pull-messages%00",
        "/v1/fleet/pull-messages/",
        "/v1//control/start-run",
        "/V1/FLEET/pull-messages",
        "/docs",
        "/openapi.json",
        "/",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_nothing_else_reaches_the_superlink(superlink: SuperLink, path: str, method: str) -> None:
    assert call(gate(superlink.client), path, method, b"code").status in (307, 404, 405)
    assert superlink.seen == []


def test_a_query_is_left_behind(superlink: SuperLink) -> None:
    call(gate(superlink.client), "/v1/fleet/get-run?run=1")
    assert superlink.seen[0][0] == "https://superlink:8000/v1/fleet/get-run"


@pytest.mark.parametrize(("code", "told"), [(200, 200), (418, 503), (500, 503)])
def test_health_is_that_of_the_way_to_the_superlink(code: int, told: int) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(code)

    inside = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://superlink")
    assert call(gate(inside), "/health", "GET").status == told
    assert asked == ["/health"]


def test_a_superlink_that_is_away_is_a_code_after_which_nodes_try_again() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    inside = httpx.AsyncClient(transport=httpx.MockTransport(refuse), base_url="https://superlink")
    assert call(gate(inside), "/v1/fleet/get-run").status == 502


def test_missing_certificates_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "absent.crt")
    files = ["--root-certificates", missing, "--ssl-certfile", missing, "--ssl-keyfile", missing]
    assert main(["--superlink", "superlink:8000", *files]) == 1
    assert "cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "99999"], "--port is a whole number from 1 to 65535, not '99999'."),
        (["--port", "0"], "--port is a whole number from 1 to 65535, not '0'."),
        (["--port", "http"], "--port is a whole number from 1 to 65535, not 'http'."),
        (["--superlink", "nonsense"], "--superlink is HOST:PORT, such as 127.0.0.1:8000, not 'nonsense'."),
        (["--superlink", "host:99999"], "--superlink is HOST:PORT, such as 127.0.0.1:8000, not 'host:99999'."),
        (["--superlink", "a@b:80"], "--superlink is HOST:PORT, such as 127.0.0.1:8000, not 'a@b:80'."),
        (["--superlink", "host:80/x"], "--superlink is HOST:PORT, such as 127.0.0.1:8000, not 'host:80/x'."),
        (["--connections", "0"], "--connections is a whole number from 1 to 100000, not '0'."),
        (["--largest-request", "-1"], "--largest-request is a whole number from 1 to 2048, not '-1'."),
    ],
)  # fmt: skip
def test_a_wrong_address_or_number_is_one_sentence_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    files = ["--root-certificates", "a", "--ssl-certfile", "b", "--ssl-keyfile", "c"]
    assert main(["--superlink", "[::1]:8000", *files, *arguments]) == 1
    assert capsys.readouterr().err == f"fedsketch-gate: {sentence}\n"
