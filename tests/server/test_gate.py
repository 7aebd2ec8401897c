"""What passes the gate: the Fleet API, unchanged; and nothing else, however it is spelt."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fedsketch.server.gate import gate, main


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
        answer = Response(b"answer to " + body, 418, {"x-told": "yes", "keep-alive": "timeout=5"})
        await answer(scope, receive, send)


def call(
    app: Starlette, path: str, method: str = "POST", body: bytes = b"", **headers: str
) -> Answer:
    """A request whose path arrives as it is written here: client libraries would tidy it up."""
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
    answer, inbox = Answer(), [{"type": "http.request", "body": body}]

    async def receive() -> Message:
        return inbox.pop() if inbox else {"type": "http.disconnect"}

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
    assert b"keep-alive" not in answer.headers


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


def test_health_is_the_gates_own(superlink: SuperLink) -> None:
    assert call(gate(superlink.client), "/health", "GET").status == 200
    assert superlink.seen == []


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
