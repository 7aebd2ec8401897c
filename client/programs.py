"""Flower's programs on a device, with the installed app instead of the server's: nothing that a server sends is
unpacked or imported.

On a device each of Flower's programs starts the next one. `flower-supernode` holds the connection, its
`flower-superexec` waits for messages, and for each message a `flwr-clientapp` unpacks the bundle that the server sent
and imports the ClientApp from it. Here each program starts the next one from this file, whatever it asks for, and the
last one uses the app of the package that this file is part of.

They talk over HTTP on this machine, where every user of it can connect. Flower has a secret for that, which it leaves
out if one program starts the other, and it gives the key of a message as an argument, which every user can read. Here
each program writes what the next one needs to its standard input.

Flower has no setting for that, so names inside of its modules are replaced. They are those of one release: with another
release, or if one of the names is missing, nothing starts.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points, version
from secrets import token_hex
from typing import Any

from flwr.clientapp import ClientApp

from fedsketch.errors import ForeignCode

RELEASE = "1.41.0"  # the release of Flower that pyproject.toml pins
_SUPERNODE, _SUPEREXEC, _CLIENTAPP = "flower-supernode", "flower-superexec", "flwr-clientapp"
_OURS = "fedsketch"
_TOKEN = "--token"  # the argument with which Flower names the key to one message


def run_supernode() -> None:
    """Run `flower-supernode` with the arguments of this process."""
    secret = token_hex(32)
    _replace("flwr.supernode.start_client_internal", subprocess=_Next(_SUPEREXEC, secret))
    command = "flwr.supernode.cli.flower_supernode"
    serve = "_start_supernode_http_api"
    _replace(
        command,
        start_client_internal=_judged(_original(command, "start_client_internal")),
        **{serve: _closed(_original(command, serve), secret)},
    )
    _run(_SUPERNODE)


def run_superexec() -> None:
    """Run `flower-superexec`. Whatever kind of app a server names (such as an AgentApp), the installed ClientApp
    answers."""
    executor = "flwr.supercore.superexec.executor.subprocess_executor"
    _replace(executor, subprocess=_Next(_CLIENTAPP))
    command = "flwr.supercore.cli.flower_superexec"
    _replace(command, run_superexec=_introduced(_original(command, "run_superexec"), _told()))
    _run(_SUPEREXEC)


def run_clientapp() -> None:
    """Run `flwr-clientapp` for one message."""
    _replace(
        "flwr.supernode.runtime.run_clientapp",
        install_from_fab=_leave_packed,
        get_load_client_app_fn=_installed,
    )
    sys.argv += [_TOKEN, _told()]  # other users cannot see this list
    _run(_CLIENTAPP)


class _Next:
    """Replaces `subprocess` in a module of Flower: it starts one of our programs, whichever the module asks for.

    The program gets the secret on its standard input; without one, the token among its arguments, which is taken out.
    """

    DEVNULL = subprocess.DEVNULL

    def __init__(self, program: str, secret: str | None = None) -> None:
        self._program, self._secret = program, secret

    def Popen(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        # -P: a module in the working directory must not be imported either.
        ours = [sys.executable, "-P", "-m", "fedsketch.client.programs", self._program]
        arguments, secret = command[1:], self._secret
        if secret is None:
            place = arguments.index(_TOKEN)
            _, secret = arguments[place : place + 2]
            del arguments[place : place + 2]
        started = subprocess.Popen([*ours, *arguments], stdin=subprocess.PIPE, **options)
        assert started.stdin is not None
        with contextlib.suppress(BrokenPipeError), started.stdin as pipe:  # it may have ended
            pipe.write(secret.encode())
        return started


def _told() -> str:
    """Return what the program that started this one wrote to its standard input."""
    if not (secret := sys.stdin.read().strip()):
        raise ForeignCode("this program is started by fedsketch-node only.")
    return secret


def _closed(serve: Callable[..., Any], secret: str) -> Callable[..., Any]:
    """Serve Flower's local API to those who know the secret."""

    def start(config: Any, *others: Any) -> Any:
        return serve(replace(config, superexec_auth_secret=secret.encode()), *others)

    return start


def _introduced(run: Callable[..., None], secret: str) -> Callable[..., None]:
    """Run Flower's program with the secret of its local API."""

    def start(**settings: Any) -> None:
        run(**{**settings, "superexec_auth_secret": secret.encode()})

    return start


def _judged(start: Callable[..., None]) -> Callable[..., None]:
    """Start the SuperNode unless its arguments would let other code run."""

    def judge(**settings: Any) -> None:
        if settings["isolation"] != "subprocess":
            raise ForeignCode(
                "leave `--isolation process` out: a program that is started apart from the node would run the "
                "server's code."
            )
        if settings["runtime_dependency_install"]:
            raise ForeignCode(
                "leave `--allow-runtime-dependency-installation` out: it installs what the server names; install it "
                "yourself."
            )
        start(**settings)

    return judge


def _leave_packed(bundle: bytes, skip_prompt: bool) -> None:
    """Do not unpack the bundle. Unpacking runs nothing, but writes where the bundle says: its version may be a path
    outside of Flower's folder."""


def _installed(**_: Any) -> Callable[[str, str, str], ClientApp]:
    def load(app: str, release: str, _hash: str) -> ClientApp:
        """Return the installed app if the server uses the same version. Otherwise both sides would misread each other's
        messages."""
        own, asked = f"{_OURS} {version(_OURS)}", f"{app.rpartition('/')[2]} {release}"
        if asked != own:
            raise ForeignCode(
                f"this device runs {own} and the server {asked}: install the same on both."
            )
        from fedsketch.client.app import app as installed

        return installed

    return load


def _original(module: str, name: str) -> Any:
    """Return what a name inside of Flower stands for, if this is the release that we know."""
    if version("flwr") != RELEASE:
        raise ForeignCode(
            f"Flower is {version('flwr')} here: install flwr=={RELEASE}, or the server's code may run."
        )
    home = import_module(module)
    if not hasattr(home, name):
        raise ForeignCode(
            f"{module} of Flower has no {name}: install flwr=={RELEASE} again, unchanged."
        )
    return getattr(home, name)


def _replace(module: str, **names: Any) -> None:
    for name, value in names.items():
        _original(module, name)
        setattr(import_module(module), name, value)


def _run(program: str) -> None:
    (script,) = entry_points(group="console_scripts", name=program)
    script.load()()


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    {_SUPEREXEC: run_superexec, _CLIENTAPP: run_clientapp}[sys.argv[0]]()
