"""`fedsketch-certs`: makes the keys and certificates that a federation needs before its first start.

These are a certificate authority, a certificate each for the SuperLink and for the gate in front of it, and a folder
for each node. The folder holds the key by which the SuperLink knows the node (ECDSA), and the device's folder with the
key by which its peers know it (Ed25519), its policy and its ledger. Calling the command again keeps what is there. Only
a server's certificate that lacks a name or is about to expire is replaced.

Whoever can read a node's folder can act as that node, and whoever can read `ca.key` can act as the server. So folders
have mode 700 and keys have mode 600. The gate is what strangers reach, so its key is its own, and its certificate does
not have the names that only the SuperLink has.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedsketch.client.enroll import add_data_arguments, asked_card, enrol
from fedsketch.client.guard.card import DataCard
from fedsketch.command_line import Parser, run_command
from fedsketch.errors import CertificateError

ALWAYS = ("localhost", "127.0.0.1", "::1")
CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER, SERVER_CERTIFICATE, SERVER_KEY = "server", "server.crt", "server.key"
GATE, GATE_CERTIFICATE, GATE_KEY = "gate", "gate.crt", "gate.key"
NODES, AUTH_KEY, AUTH_PUBLIC, IDENTITY_PUBLIC = "nodes", "auth.key", "auth.key.pub", "identity.pub"
DEVICE = "device"
_CA_LIFE = timedelta(days=3650)
_RENEW_WITHIN = timedelta(days=30)
_CLOCKS_DIFFER = timedelta(hours=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; returns 0, or 1 after one sentence on stderr."""
    return run_command(_parser(), arguments, _run)


def _run(asked: argparse.Namespace) -> None:
    if not 1 <= asked.days <= _CA_LIFE.days:
        raise CertificateError(f"--days is from 1 to {_CA_LIFE.days}, not {asked.days}.")
    if asked.nodes < 0:
        raise CertificateError(f"--nodes is a number of folders, not {asked.nodes}.")
    if not all(name.strip() for name in (*asked.name, *asked.superlink_name)):
        raise CertificateError("--name is a host name or an address, and one is empty.")
    if asked.device is not None:
        if asked.folder is not None or asked.nodes or asked.name or asked.superlink_name:
            raise CertificateError(
                "--device makes one node's folder and goes with --policy and --data alone."
            )
        make_node(asked.device, None, asked.policy, asked_card(asked))
        print(
            f"Send {asked.device / AUTH_PUBLIC} and {asked.device / IDENTITY_PUBLIC} to the operator of the server; "
            f"put the ca.crt and roster.json that come back into {asked.device} and {asked.device / DEVICE}."
        )
    elif asked.folder is None:
        raise CertificateError("name the folder: fedsketch-certs FOLDER.")
    else:
        life = timedelta(days=asked.days)
        for line in make_all(
            asked.folder,
            asked.name,
            asked.nodes,
            asked.policy,
            life,
            asked_card(asked),
            asked.superlink_name,
        ):
            print(line)


def _parser() -> Parser:
    parser = Parser(
        prog="fedsketch-certs", description="Make the keys and certificates of a federation."
    )
    parser.add_argument("folder", type=Path, nargs="?", help="where everything goes")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name or address that devices dial, besides localhost; may be repeated",
    )
    parser.add_argument(
        "--superlink-name",
        action="append",
        default=[],
        metavar="HOST",
        help="a name of the SuperLink that the gate's certificate does not get; may be repeated",
    )
    parser.add_argument(
        "--nodes", type=int, default=0, metavar="N", help="make folders nodes/0 to nodes/N-1"
    )
    parser.add_argument("--policy", type=Path, metavar="FILE", help="the policy of new devices")
    add_data_arguments(parser)
    parser.add_argument(
        "--days", type=int, default=365, metavar="N", help="life of the server's certificate"
    )
    parser.add_argument(
        "--device", type=Path, metavar="FOLDER", help="instead: one node's folder, on the device"
    )
    return parser


def make_all(
    folder: Path,
    names: Iterable[str] = (),
    nodes: int = 0,
    policy: Path | None = None,
    life: timedelta = timedelta(days=365),
    card: DataCard | None = None,
    superlink_names: Iterable[str] = (),
) -> list[str]:
    """Make what is missing; returns a line about each thing that was made or kept."""
    _private(folder)
    both = {*ALWAYS, *names}
    lines = [
        _make_ca(folder),
        _make_server(
            folder,
            folder / SERVER / SERVER_CERTIFICATE,
            folder / SERVER / SERVER_KEY,
            both | set(superlink_names),
            life,
        ),
        _make_server(
            folder, folder / GATE / GATE_CERTIFICATE, folder / GATE / GATE_KEY, both, life
        ),
    ]
    _private(folder / NODES)
    for number in range(nodes):
        lines.append(make_node(folder / NODES / str(number), folder / CA_CERTIFICATE, policy, card))
    return lines


def make_node(
    folder: Path, ca: Path | None, policy: Path | None, card: DataCard | None = None
) -> str:
    """Make a node's two keys and its device folder."""
    _private(folder)
    known = (folder / AUTH_KEY).exists()
    if not known:
        key = ec.generate_private_key(ec.SECP384R1())
        _write_secret(
            folder / AUTH_KEY,
            key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        )
    private = load_ssh_private_key((folder / AUTH_KEY).read_bytes(), password=None)
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / AUTH_PUBLIC).write_bytes(public + b"\n")
    identity = enrol(folder / DEVICE, policy=policy, card=card)
    (folder / IDENTITY_PUBLIC).write_text(identity.hex() + "\n")
    if ca is not None:
        (folder / CA_CERTIFICATE).write_bytes(ca.read_bytes())
    return f"{folder}: {'kept' if known else 'made'}"


def _make_ca(folder: Path) -> str:
    file = folder / CA_CERTIFICATE
    if file.exists():
        ends = _load(file).not_valid_after_utc
        if ends < datetime.now(UTC) + _RENEW_WITHIN:
            raise CertificateError(
                f"{file} expires on {ends:%Y-%m-%d}: move it and {CA_KEY} away, call again, and give every node the "
                f"new {CA_CERTIFICATE}."
            )
        return f"{file}: kept"
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedsketch certificate authority")])
    usage = _usage(signs_certificates=True)
    certificate = (
        _builder(name, name, key.public_key(), _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_secret(folder / CA_KEY, _pem(key))
    file.write_bytes(certificate.public_bytes(Encoding.PEM))
    return f"{file}: made, good until {certificate.not_valid_after_utc:%Y-%m-%d}"


def _make_server(
    folder: Path, file: Path, key_file: Path, wanted: set[str], life: timedelta
) -> str:
    ca = _load(folder / CA_CERTIFICATE)
    _private(file.parent)
    (file.parent / CA_CERTIFICATE).write_bytes(ca.public_bytes(Encoding.PEM))
    reason = "made"
    if file.exists():
        old = _load(file)
        wanted = wanted | names_of(old)
        if old.issuer != ca.subject or not _signed(old, ca):
            reason = "made anew, because the authority is another"
        elif not _belongs(key_file, old):
            reason = "made anew, because its key was another or none"
        elif names_of(old) < wanted:
            reason = "made anew, because a name was missing"
        elif old.not_valid_after_utc < datetime.now(UTC) + _RENEW_WITHIN:
            reason = f"made anew, because it would expire on {old.not_valid_after_utc:%Y-%m-%d}"
        else:
            return f"{file}: kept, good until {old.not_valid_after_utc:%Y-%m-%d}"
    if not (folder / CA_KEY).exists():
        raise CertificateError(
            f"{folder / CA_KEY} is not here, and without it no certificate can be signed: bring it back, or start "
            "with a new folder."
        )
    authority = load_pem_private_key((folder / CA_KEY).read_bytes(), password=None)
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fedsketch {file.stem}")])
    certificate = (
        _builder(subject, ca.subject, key.public_key(), life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general(n) for n in sorted(wanted)]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA256())
    )
    _write_secret(key_file, _pem(key))
    file.write_bytes(certificate.public_bytes(Encoding.PEM))
    return f"{file}: {reason}, good until {certificate.not_valid_after_utc:%Y-%m-%d}, for {', '.join(sorted(wanted))}"


def names_of(certificate: x509.Certificate) -> set[str]:
    """Return the names and addresses that a server certificate is good for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    }


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + life) - _CLOCKS_DIFFER)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise CertificateError(f"{name!r} is neither a host name nor an address.") from error


def _belongs(key: Path, certificate: x509.Certificate) -> bool:
    if not key.exists():
        return False
    private = load_pem_private_key(key.read_bytes(), password=None)
    return private.public_key() == certificate.public_key()


def _signed(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _load(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise CertificateError(
            f"{path} is not a PEM certificate: move it away and call again."
        ) from error


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _private(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file in one step, so that others can never read it, not even for a moment."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
