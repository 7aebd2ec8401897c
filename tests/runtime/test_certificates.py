"""`fedsketch-certs`: certificates that verify, keys that only their owner reads, and nothing made twice."""

import os
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.runtime.certificates import main, make_all, names_of


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def _server(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "server" / "server.crt").read_bytes())


def _fetch(folder: Path, host: str = "localhost") -> bytes:
    """A page over TLS from a server with the folder's certificate, by a client that trusts the folder's authority."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = HTTPServer(("127.0.0.1", 0), Page)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server" / "server.crt", folder / "server" / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        with urlopen(f"https://{host}:{server.server_port}/", context=trust, timeout=10) as page:
            return bytes(page.read())
    finally:
        server.shutdown()
        server.server_close()


def test_a_client_that_trusts_the_authority_trusts_the_server(tmp_path: Path) -> None:
    make_all(tmp_path / "certs")
    assert _fetch(tmp_path / "certs") == b"hello"
    assert _fetch(tmp_path / "certs", "127.0.0.1") == b"hello"


def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    make_all(tmp_path / "certs")
    make_all(tmp_path / "other")
    (tmp_path / "certs" / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes())
    with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
        _fetch(tmp_path / "certs")


def test_the_certificate_names_what_is_asked_for_and_this_machine(tmp_path: Path) -> None:
    make_all(tmp_path, names=["fl.example.org", "192.0.2.7"])
    wanted = {"localhost", "127.0.0.1", "::1", "fl.example.org", "192.0.2.7"}
    assert names_of(_server(tmp_path)) == wanted


def test_the_gate_has_a_key_of_its_own_that_cannot_speak_as_the_superlink(tmp_path: Path) -> None:
    make_all(tmp_path, names=["fl.example.org"], superlink_names=["superlink"])
    keys = [(tmp_path / name).read_bytes() for name in ("server/server.key", "gate/gate.key")]
    assert keys[0] != keys[1]
    gate = x509.load_pem_x509_certificate((tmp_path / "gate" / "gate.crt").read_bytes())
    assert names_of(gate) == {"localhost", "127.0.0.1", "::1", "fl.example.org"}
    assert names_of(_server(tmp_path)) == names_of(gate) | {"superlink"}
    authority = (tmp_path / "ca.crt").read_bytes()
    gate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    assert (tmp_path / "gate" / "ca.crt").read_bytes() == authority


def test_calling_again_changes_nothing(tmp_path: Path) -> None:
    make_all(tmp_path, names=["a.example"], nodes=2)
    before = _contents(tmp_path)
    told = make_all(tmp_path, names=["a.example"], nodes=2)
    assert _contents(tmp_path) == before
    assert all("kept" in line for line in told)


def test_calling_again_adds_nodes_and_keeps_the_others(tmp_path: Path) -> None:
    make_all(tmp_path, nodes=1)
    before = _contents(tmp_path)
    make_all(tmp_path, nodes=2)
    after = _contents(tmp_path)
    assert {name: after[name] for name in before} == before
    assert "nodes/1/auth.key" in after


def test_a_missing_name_makes_a_new_certificate_that_keeps_the_old_names(tmp_path: Path) -> None:
    make_all(tmp_path, names=["a.example"])
    authority = (tmp_path / "ca.crt").read_bytes()
    told = make_all(tmp_path, names=["b.example"])
    assert {"a.example", "b.example"} <= names_of(_server(tmp_path))
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert any("a name was missing" in line for line in told)
    assert _fetch(tmp_path) == b"hello"


@pytest.mark.parametrize("left", [timedelta(days=-1), timedelta(days=20)])
def test_a_certificate_near_its_end_is_renewed(tmp_path: Path, left: timedelta) -> None:
    make_all(tmp_path, life=left)
    told = make_all(tmp_path)
    assert _server(tmp_path).not_valid_after_utc > datetime.now(UTC) + timedelta(days=300)
    assert any("expire" in line for line in told)
    assert _fetch(tmp_path) == b"hello"


def test_an_expired_certificate_is_refused_by_clients(tmp_path: Path) -> None:
    make_all(tmp_path, life=timedelta(days=-1))
    with pytest.raises(URLError, match="expired"):
        _fetch(tmp_path)


def test_a_key_that_is_not_the_certificates_makes_a_new_pair(tmp_path: Path) -> None:
    make_all(tmp_path)
    make_all(tmp_path / "other")
    key = tmp_path / "server" / "server.key"
    key.write_bytes((tmp_path / "other" / "server" / "server.key").read_bytes())
    make_all(tmp_path)
    assert _fetch(tmp_path) == b"hello"


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)  # the most careless user
    try:
        (tmp_path / "certs" / "server").mkdir(parents=True)
        make_all(tmp_path / "certs", nodes=2)
    finally:
        os.umask(old)
    folders = [p for p in [tmp_path / "certs", *tmp_path.rglob("certs/**/*")] if p.is_dir()]
    secrets = [*tmp_path.rglob("*.key"), *tmp_path.rglob("policy.toml"), *tmp_path.rglob("ledger*")]
    assert (
        len(secrets) == 3 + 2 * 4
    )  # authority, SuperLink, gate; per node two keys, policy, ledger
    assert {stat.S_IMODE(p.stat().st_mode) for p in folders} == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in secrets} == {0o600}


def test_a_nodes_key_is_what_flower_asks_for(tmp_path: Path) -> None:
    make_all(tmp_path, nodes=1)
    node = tmp_path / "nodes" / "0"
    private = load_ssh_private_key((node / "auth.key").read_bytes(), password=None)
    public = load_ssh_public_key((node / "auth.key.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert private.public_key() == public
    assert public.curve.name == "secp384r1"


def test_a_device_folder_is_ready_for_its_guard(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("smallest_cohort = 3\n")
    make_all(tmp_path / "certs", nodes=1, policy=policy)
    node = tmp_path / "certs" / "nodes" / "0"
    guard = DeviceGuard(node / "device")
    assert guard.policy.smallest_cohort == 3
    assert guard.identity.public.hex() == (node / "identity.pub").read_text().strip()
    assert guard.ledger.state().rounds == 0


def test_a_lone_device_gets_keys_and_no_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--device", str(tmp_path / "phone")]) == 0
    names = {path.name for path in (tmp_path / "phone").iterdir()}
    assert names == {"auth.key", "auth.key.pub", "identity.pub", "device"}
    assert "auth.key.pub" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "name the folder"),
        (["{}", "--nodes", "many"], "--help"),
        (["{}", "--name", "ünïcode"], "host name"),
        (["{}", "--policy", "nowhere.toml", "--nodes", "1"], "nowhere.toml"),
    ],
)
def test_mistakes_end_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    assert main([a.format(tmp_path / "certs") for a in arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedsketch-certs: ")
    assert word in line


def test_without_the_authoritys_key_nothing_new_is_signed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_all(tmp_path)
    (tmp_path / "ca.key").unlink()
    assert main([str(tmp_path)]) == 0  # nothing to do
    assert main([str(tmp_path), "--name", "new.example"]) == 1
    assert "ca.key" in capsys.readouterr().err


def test_new_nodes_get_the_data_card_of_a_data_set_that_everybody_has(tmp_path: Path) -> None:
    assert main([str(tmp_path / "certs"), "--nodes", "2", "--data", "digits"]) == 0
    for node in ("0", "1"):
        card = DataCard.load(tmp_path / "certs" / "nodes" / node / "device" / "data.toml")
        assert (card.data, card.shape, len(card.classes)) == ("digits", (1, 8, 8), 10)


@pytest.mark.parametrize(
    "wrong", ["--days=-5", "--days=0", "--days=99999999", "--nodes=-1", "--name=", "--name= "]
)
def test_numbers_and_names_that_make_no_sense_are_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    assert main([str(tmp_path / "certs"), wrong]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert wrong.split("=")[0] in line
    assert not (tmp_path / "certs").exists()
