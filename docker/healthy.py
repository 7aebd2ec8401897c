"""Whether a service answers: `healthy.py https://HOST:PORT CA`, `healthy.py http://HOST:PORT`; `healthy.py HOST:PORT`
only connects. Without arguments, the SuperLink, gate or node of this container is asked, wherever its arguments say
that it listens; a container that runs something else is healthy."""

from __future__ import annotations

import socket
import ssl
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

PATIENCE = 8.0
# What each server calls the certificate of the authority that signed its own.
AUTHORITIES = {"flower-superlink": "--ssl-ca-certfile", "fedsketch-gate": "--root-certificates"}


def ask(address: str, authority: str | None = None) -> None:
    """Raise OSError if nobody answers there, or with another code than 200."""
    if address.startswith("http"):
        trusted = ssl.create_default_context(cafile=authority) if authority else None
        urllib.request.urlopen(f"{address}/health", timeout=PATIENCE, context=trusted).close()
    else:
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()


def server_in(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return what to ask about the first server among these commands; nothing if there is none."""
    for command in commands:
        for position, word in enumerate(command):
            name, options = Path(word).name, _options(command[position + 1 :])
            if name in AUTHORITIES:
                port = options.get("--port", "8000")
                if "--insecure" in options:
                    return [f"http://127.0.0.1:{port}"]
                return [f"https://127.0.0.1:{port}", options[AUTHORITIES[name]]]
            if name == "fedsketch-node":
                return [f"http://127.0.0.1:{options.get('--port', '9094')}"]
    return []


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return `--name=value` and `--name value` as a table."""
    joined = "\0".join(words).replace("\0--", "\n--").replace("\0", "=")
    pairs = [option.partition("=") for option in joined.split("\n")]
    return {name: value for name, _, value in pairs}


def _running() -> list[list[str]]:
    files = sorted(Path("/proc").glob("[0-9]*/cmdline"), key=lambda file: int(file.parent.name))
    return [file.read_text().split("\0")[:-1] for file in files if file.exists()]


if __name__ == "__main__":
    if wanted := sys.argv[1:] or server_in(_running()):
        ask(*wanted)
