"""Calls Flower's own commands as programs, because Flower keeps its command lines stable, and its modules not.

A connection says which SuperLink is meant: a name in the user's Flower configuration, or an address with the
certificate that verifies it.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from fedsketch.errors import FlowerError
from fedsketch.server.observers.events import LONGEST_LINE

_CALL_TIMEOUT = 120.0
_OURS = "fedsketch"
REFUSED = "its certificate is refused"
COMMANDS = Path(sys.executable).parent


def environment(home: Path | None = None) -> dict[str, str]:
    """Return the environment of every Flower program that we start: found by name, no telemetry, nothing installed at
    run time."""
    variables = {
        **os.environ,
        "PATH": os.pathsep.join([str(COMMANDS), os.environ.get("PATH", os.defpath)]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    if home is not None:
        variables["FLWR_HOME"] = str(home)
    return variables


class Connection:
    """A SuperLink to which runs are submitted and at which nodes are registered."""

    def __init__(
        self,
        name: str,
        home: Path | None = None,
        address: str | None = None,
        root_certificates: Path | None = None,
    ) -> None:
        self.name = name
        self.shown = address or name
        self._environment = environment(home)
        self._address = address
        self._root_certificates = root_certificates

    def register(self, public_key: Path) -> int | None:
        """Register a node; returns its id, or None if the SuperLink knows the key already."""
        try:
            return int(self._call("supernode", "register", str(public_key), self.name)["node-id"])
        except FlowerError as error:
            if "already in use" in str(error):
                return None
            raise

    def nodes(self) -> set[int]:
        """Return the ids of all registered nodes."""
        rows = self._call("supernode", "list", self.name)["nodes"]
        return {int(row["node-id"]) for row in rows if row["status"] != "unregistered"}

    def submit(self, app: Path, **run_config: str | bool) -> int:
        """Start a run of the app in this folder; returns its id."""
        with TemporaryDirectory(prefix="fedsketch-") as folder:
            # A file, because Flower's command line takes no quotes inside of quotes. Strings and booleans of JSON are
            # valid TOML.
            settings = Path(folder) / "run.toml"
            lines = [
                f"{key} = {json.dumps(v, ensure_ascii=False)}" for key, v in run_config.items()
            ]
            settings.write_text("\n".join(lines) + "\n")
            answer = self._call("run", str(app), self.name, "--run-config", str(settings))
        return int(answer["run-id"])

    def status(self, run: int) -> tuple[str, str]:
        """Return the status of a run, such as `running` or `finished:completed`, and its details."""
        rows = self._call("list", self.name, "--run-id", str(run))["runs"]
        return str(rows[0]["status"]), str(rows[0].get("status-details") or "")

    def stop(self, run: int) -> None:
        self._call("stop", str(run), self.name)

    @contextmanager
    def log(self, run: int) -> Iterator[Iterator[str]]:
        """Yield the lines of a run's log from the first on, as they arrive. They end when the run has ended or the
        SuperLink is gone."""
        process = subprocess.Popen(
            [COMMANDS / "flwr", "log", str(run), self.name, "--stream"],
            env={**self._environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,  # so that Ctrl-C reaches only this process
        )
        assert process.stdout is not None
        try:
            yield _lines(process.stdout)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def _call(self, *arguments: str) -> dict[str, Any]:
        try:
            done = subprocess.run(
                [COMMANDS / "flwr", *arguments, "--format", "json"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_CALL_TIMEOUT,
                check=False,
                start_new_session=True,
            )
            answer = json.loads(done.stdout)
        except subprocess.TimeoutExpired as error:
            raise FlowerError(
                f"The SuperLink {self.shown} did not answer `flwr {arguments[0]}` in {_CALL_TIMEOUT:.0f} s."
            ) from error
        except ValueError as error:
            words = " ".join((done.stderr or done.stdout).split())[-300:]
            raise FlowerError(f"`flwr {arguments[0]}` failed: {words}") from error
        if not answer.get("success"):
            if self._address and (problem := unreachable(self._address, self._root_certificates)):
                raise FlowerError(f"No SuperLink can be reached at {self._address}: {problem}.")
            raise FlowerError(
                f"The SuperLink {self.shown} refused `flwr {arguments[0]}`: {_sentence(answer)}"
            )
        return answer


@contextmanager
def connected(superlink: str, root_certificates: Path | None) -> Iterator[Connection]:
    """Yield a connection by its name in the user's Flower configuration, or by host:port."""
    if ":" not in superlink:
        yield Connection(superlink)
        return
    trust = "insecure = true"
    if root_certificates is not None:
        trust = f"root-certificates = {json.dumps(str(root_certificates.absolute()))}"
        if not root_certificates.exists():
            raise FlowerError(f"There is no root certificate {root_certificates}.")
    with TemporaryDirectory(prefix="fedsketch-") as home:
        (Path(home) / "config.toml").write_text(
            f'[superlink]\ndefault = "{_OURS}"\n[superlink.{_OURS}]\naddress = {json.dumps(superlink)}\n{trust}\n'
        )
        yield Connection(_OURS, Path(home), superlink, root_certificates)


def _lines(log: IO[str]) -> Iterator[str]:
    """Yield the lines of a log, of a longer one than any of ours only the beginning: it may have no end."""
    while line := log.readline(LONGEST_LINE):
        yield line
        while line and not line.endswith("\n"):
            line = log.readline(LONGEST_LINE)


def unreachable(address: str, root_certificates: Path | None) -> str | None:
    """Return why no server with a valid certificate answers at an address; None if one does. Flower itself does not
    say."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as plain:
            if root_certificates is not None:
                trust = ssl.create_default_context(cafile=str(root_certificates))
                trust.wrap_socket(plain, server_hostname=host.strip("[]")).close()
    except ssl.SSLCertVerificationError as error:
        return f"{REFUSED}, {error.verify_message} (fedsketch-certs makes a new one)"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _sentence(answer: dict[str, Any]) -> str:
    """Return Flower's error message in one line, without its first line about which SuperLink it used."""
    lines = [
        line.strip() for line in str(answer.get("error-message", "no reason given")).splitlines()
    ]
    return " ".join(line for line in lines if line and not line.startswith("Using SuperLink"))
