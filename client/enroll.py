"""`fedsketch-enroll`: makes a device's folder, describes its data, adds its key to a roster, and shows what it has
spent.

The private key is made here and never leaves the folder. The SuperLink gives a node its id when the node is registered,
so the id may come later. The roster is passed from owner to owner, by hand, and never through the server.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedsketch.client.fingerprints import node_fingerprint, roster_fingerprint
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.guard import (
    CARD,
    DEVICE_VARIABLE,
    IDENTITY,
    LEDGER,
    POLICY,
    ROSTER,
)
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.ledger_file import sync_folder
from fedsketch.client.guard.policy import Policy
from fedsketch.command_line import Parser, run_command
from fedsketch.errors import UsageError
from fedsketch.secagg import Identity, Roster, SettingsError

_PRIVATE, _SHARED = 0o600, 0o666  # modes of files; the umask may forbid more


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; returns 0, or 1 after one sentence on stderr."""
    return run_command(_parser(), arguments, _run)


def _parser() -> Parser:
    parser = Parser(
        prog="fedsketch-enroll", description="Make a device's folder and put its key into a roster."
    )
    parser.add_argument("folder", type=Path, nargs="?", help="the device's folder")
    parser.add_argument(
        "--node-id", type=int, metavar="N", help="the id that `flwr supernode register` printed"
    )
    parser.add_argument(
        "--roster",
        type=Path,
        metavar="FILE",
        help="the roster that all devices of a federation share",
    )
    parser.add_argument("--policy", type=Path, metavar="FILE", help="a policy to begin with")
    add_data_arguments(parser)
    parser.add_argument(
        "--public-key", metavar="HEX", help="instead of a folder: the key of a device elsewhere"
    )
    parser.add_argument(
        "--rotate", action="store_true", help="make a new key, and replace the one in the roster"
    )
    parser.add_argument("--show", action="store_true", help="print the key and what was spent")
    parser.add_argument(
        "--fingerprints",
        action="store_true",
        help="print the keys of the roster as digits that owners compare over the telephone",
    )
    parser.add_argument("--verify", action="store_true", help="check the whole ledger")
    parser.add_argument(
        "--reset-witness",
        action="store_true",
        help="accept the ledger as it is, though its witness is lost or has seen another; what was spent since "
        "an older copy is forgotten",
    )
    return parser


def add_data_arguments(parser: Parser) -> None:
    """Add the arguments of every command that makes a data card."""
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="the device's data (images by class, an .npz file, or a table) for its data card; or the name "
        "of a data set that holds nothing private",
    )
    parser.add_argument(
        "--schema",
        type=Path,
        metavar="FILE",
        help="the schema of a table, where it does not lie beside --data as NAME.schema.yaml",
    )
    parser.add_argument(
        "--classes",
        metavar="NAMES",
        help="the classes of the runs, with commas between, or their number, where --data does not show them all",
    )


def asked_card(asked: argparse.Namespace) -> DataCard | None:
    """Return the card of the data that a command names; None if it names none."""
    if asked.data is None:
        if asked.classes is not None or asked.schema is not None:
            raise UsageError("--classes and --schema go with --data.")
        return None
    # Imports torch, which other uses of the command do not need.
    from fedsketch.client.data_survey import card_of

    return card_of(asked.data, asked.classes, asked.schema)


def _run(asked: argparse.Namespace) -> None:
    if asked.public_key is not None:
        if asked.folder is not None or asked.roster is None or asked.node_id is None:
            raise UsageError("--public-key goes with --roster and --node-id, and without a folder.")
        try:
            public = bytes.fromhex(asked.public_key)
        except ValueError as error:
            raise UsageError("a public key is 64 hexadecimal digits.") from error
        _add(asked.roster, asked.node_id, public, replace=asked.rotate)
        print(f"Node {asked.node_id} is in {asked.roster}.")
        return
    if asked.fingerprints:
        if asked.folder is None and asked.roster is None:
            raise UsageError("--fingerprints goes with the device's folder, or with --roster.")
        _print_fingerprints(asked.roster or asked.folder / ROSTER, asked.folder)
        return
    if asked.folder is None:
        raise UsageError("name the device's folder: fedsketch-enroll FOLDER.")
    if asked.show or asked.verify:
        _show(asked.folder, verify=asked.verify)
        return
    if asked.reset_witness:
        ledger_of(asked.folder).reset_witness()
        print("The ledger is accepted as it is.")
        return
    card = asked_card(asked)
    public = enrol(
        asked.folder, asked.node_id, asked.roster, asked.policy, card, rotate=asked.rotate
    )
    _say_what_is_next(asked.folder, public)


def enrol(
    folder: Path,
    node_id: int | None = None,
    roster: Path | None = None,
    policy: Path | None = None,
    card: DataCard | None = None,
    *,
    rotate: bool = False,
) -> bytes:
    """Make what is missing, keep what is there, and add the key to the roster if the node's id is known; returns the
    public key."""
    wanted = Policy() if policy is None else Policy.load(policy)
    if roster is not None and node_id is None and not roster.exists():
        raise UsageError(
            f"{roster} does not exist: name the shared roster, or begin one by --node-id."
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(folder / IDENTITY):
        if not (folder / IDENTITY).exists():
            Identity.generate().save(folder / IDENTITY)
        identity = Identity.load(folder / IDENTITY)
        if not (folder / POLICY).exists():
            _write(folder / POLICY, wanted.to_toml() if policy is None else policy.read_text())
        elif policy is not None and (folder / POLICY).read_text() != policy.read_text():
            raise UsageError(f"{folder / POLICY} exists and differs: edit it, it is not replaced.")
        if card is not None:
            (folder / CARD).unlink(missing_ok=True)
            _write(folder / CARD, card.to_toml())
        with contextlib.suppress(FileExistsError):
            Ledger(folder / LEDGER).create()
        ledger_of(folder).begin_witness()
        own = folder / ROSTER
        shared = own if roster is None else roster
        if rotate:
            identity = _rotated(folder, shared, node_id, identity)
        elif node_id is not None:
            _add(shared, node_id, identity.public, replace=False, mode=_mode(shared, own))
        if not (own.exists() and shared.exists() and own.samefile(shared)) and shared.exists():
            Roster.load(shared).save(own, _PRIVATE)
        sync_folder(folder)
    return identity.public


def _rotated(folder: Path, shared: Path, node_id: int | None, old: Identity) -> Identity:
    """Make a new key in the folder and enter it into the roster under the device's id. The ledger continues, because
    the data are the same."""
    node = _node_of(shared, old.public) if node_id is None else node_id
    if node is None:
        raise UsageError("--rotate needs --node-id: the roster does not know this device's key.")
    draft = folder / (IDENTITY + ".new")
    draft.unlink(missing_ok=True)
    Identity.generate().save(draft)
    new = Identity.load(draft)
    _add(shared, node, new.public, replace=True, mode=_mode(shared, folder / ROSTER))
    draft.replace(folder / IDENTITY)
    return new


def _mode(roster: Path, own: Path) -> int:
    """Return the largest mode of a roster's file: others read the shared one, which holds public keys only."""
    return _PRIVATE if roster == own else _SHARED


def _add(path: Path, node: int, public: bytes, *, replace: bool, mode: int = _SHARED) -> None:
    path = path.resolve()  # so that a symbolic link is kept
    with _locked(path):
        known = Roster.load(path) if path.exists() else Roster({})
        if replace:
            known = Roster({i: key for i, key in known.keys.items() if i != node})
        try:
            known.add(node, public).save(path, mode)
        except SettingsError as error:
            if known.key_of(node) in (None, public):
                raise
            raise UsageError(
                f"{path} has another key for node {node}: if this device replaces that one, call again with --rotate."
            ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock for a file that is replaced as a whole, and so cannot be locked itself."""
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_WRONLY | os.O_CREAT, _PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _node_of(path: Path, public: bytes) -> int | None:
    if not path.exists():
        return None
    return next((node for node, key in Roster.load(path).keys.items() if key == public), None)


def _say_what_is_next(folder: Path, public: bytes) -> None:
    node = _node_of(folder / ROSTER, public)
    print(f"Public key: {public.hex()}")
    if not (folder / CARD).exists():
        print(
            "Next: describe the data, or the device takes part in nothing:\n"
            f"  fedsketch-enroll {folder} --data <images by class, an .npz file, or a table>"
        )
    if node is None:
        print(
            "Next: register the node (flwr supernode register NODE.pub) and call\n"
            f"  fedsketch-enroll {folder} --node-id <the id it printed> --roster <the shared roster>"
        )
        return
    print(f"Node {node} is in a roster of {len(Roster.load(folder / ROSTER).keys)} nodes.")
    print(
        f"Next: read {folder / POLICY}; when all devices are enrolled, give each the whole roster\n"
        f"  (fedsketch-enroll {folder} --roster <the shared roster>);\n"
        f"  start the node with {DEVICE_VARIABLE}={folder}."
    )


def _print_fingerprints(path: Path, folder: Path | None) -> None:
    """Print a line for the roster and one for each node. The device of the folder must be among them."""
    known, own = Roster.load(path), None
    if folder is not None:
        own = _node_of(path, Identity.load(folder / IDENTITY).public)
        if own is None:
            raise UsageError(f"{path} does not hold this device's key: do not accept it.")
    print(f"Roster of {len(known.keys)} nodes: {roster_fingerprint(known)}")
    width = max((len(str(node)) for node in known.keys), default=0)
    for node, key in sorted(known.keys.items()):
        mark = "  this device" if node == own else ""
        print(f"{node:>{width}}: {node_fingerprint(node, key)}{mark}")


def _show(folder: Path, *, verify: bool) -> None:
    policy, public = Policy.load(folder / POLICY), Identity.load(folder / IDENTITY).public
    ledger = ledger_of(folder)
    if verify:
        state, lines = ledger.verified()
        print(f"Ledger: {lines} lines, whole and in order")
    else:
        state = ledger.state()
    node = _node_of(folder / ROSTER, public)
    spent = state.spent(policy.delta)
    left = max(0.0, policy.epsilon - spent) if state.unmasked == 0 else 0.0
    print(f"Public key: {public.hex()}")
    print(f"Node: {'not in the roster yet' if node is None else node}")
    print(f"Data: {_described(folder / CARD)}")
    print(
        f"Spent: epsilon {spent:.4g} of {policy.epsilon:g} at delta {policy.delta:g}, {left:.4g} left "
        f"(per {policy.unit}, against the server and the assumed colluders, zero-out)"
    )
    print(f"Witness: {policy.witness or 'none, so an older copy of the ledger is not noticed'}")
    print(
        f"Rounds: {state.rounds} of {policy.most_rounds}, {state.settled} of them settled, {state.answered} answered "
        "in two trips"
    )
    if state.unmasked:
        print(f"Unmasked replies: {state.unmasked}; no epsilon holds for this device any more")


def ledger_of(folder: Path) -> Ledger:
    """Return the ledger of a device, with the witness that its policy names."""
    return Ledger(folder / LEDGER, Policy.load(folder / POLICY).witness_file)


def _described(file: Path) -> str:
    if not file.exists():
        return "no card yet (--data)"
    card = DataCard.load(file)
    shape = " x ".join(map(str, card.shape))
    return f"{card.data}, {shape}, {len(card.classes)} {card.targets}, at most {card.largest_shard} examples"


if __name__ == "__main__":
    sys.exit(main())
