"""`fedsketch-register`: registers nodes at a running SuperLink, and writes the roster by which they know each other.

The SuperLink gives each node an id, bound to the node's ECDSA key. The roster says which Ed25519 key belongs to which
id, and every device folder on this machine gets a copy. Devices elsewhere get the roster from whoever ran this command,
and must trust them: whoever writes the roster decides which keys a device accepts for its masks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedsketch.client.enroll import enrol
from fedsketch.command_line import Parser, run_command
from fedsketch.errors import RegistrationError
from fedsketch.runtime.certificates import (
    AUTH_PUBLIC,
    CA_CERTIFICATE,
    DEVICE,
    IDENTITY_PUBLIC,
    NODES,
)
from fedsketch.runtime.flower import Connection, connected
from fedsketch.secagg import Roster

NODE_ID = "node-id"
ROSTER = "roster.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; returns 0, or 1 after one sentence on stderr."""
    return run_command(_parser(), arguments, _run)


def _run(asked: argparse.Namespace) -> None:
    certificates = asked.root_certificates or asked.folder / CA_CERTIFICATE
    roster = asked.roster or asked.folder / ROSTER
    with connected(asked.superlink, certificates) as connection:
        for name, node in register_all(asked.folder, connection, roster).items():
            print(f"Node {name} is {node}.")
    print(f"All are in {roster}: copy it to every device on another machine.")


def _parser() -> Parser:
    parser = Parser(
        prog="fedsketch-register",
        description="Register the nodes of a folder that fedsketch-certs made, and write the roster.",
    )
    parser.add_argument("folder", type=Path, help="the folder")
    parser.add_argument(
        "--superlink",
        default="127.0.0.1:8000",
        metavar="WHERE",
        help="host:port, or a connection of your Flower configuration (127.0.0.1:8000)",
    )
    parser.add_argument(
        "--root-certificates",
        type=Path,
        metavar="FILE",
        help="who signed the SuperLink's certificate (FOLDER/ca.crt)",
    )
    parser.add_argument(
        "--roster", type=Path, metavar="FILE", help="where the roster goes (FOLDER/roster.json)"
    )
    return parser


def register_all(
    folder: Path, connection: Connection, roster: Path | None = None
) -> dict[str, int]:
    """Register new nodes and write all rosters; returns node ids by the names of the nodes' folders."""
    places = sorted((folder / NODES).iterdir(), key=_natural) if (folder / NODES).exists() else []
    if not places:
        raise RegistrationError(f"{folder} has no nodes: make some with fedsketch-certs --nodes N.")
    known = connection.nodes()
    with ThreadPoolExecutor(2) as two:  # each registration starts a process that takes seconds
        ids = list(two.map(lambda place: _register(place, connection, known), places))
    keys = {
        node: bytes.fromhex((place / IDENTITY_PUBLIC).read_text())
        for place, node in zip(places, ids, strict=True)
    }
    roster = roster or folder / ROSTER
    others = Roster.load(roster).keys if roster.exists() else {}
    mine = set(keys.values())
    kept = {node: key for node, key in others.items() if node in known and key not in mine}
    Roster({**kept, **keys}).save(roster)
    for place in places:
        if (place / DEVICE).exists():
            enrol(place / DEVICE, roster=roster)
    return {place.name: node for place, node in zip(places, ids, strict=True)}


def _register(place: Path, connection: Connection, known: set[int]) -> int:
    note = place / NODE_ID
    if note.exists() and int(note.read_text()) in known:
        return int(note.read_text())
    node = connection.register(place / AUTH_PUBLIC)
    if node is None:
        raise RegistrationError(
            f"The SuperLink knows the key of {place} under an id that should be in {note}: unregister that node, or "
            "give this one a new key."
        )
    note.write_text(f"{node}\n")
    return node


def _natural(path: Path) -> tuple[int, str]:
    return (int(path.name) if path.name.isdigit() else sys.maxsize, path.name)


if __name__ == "__main__":
    sys.exit(main())
