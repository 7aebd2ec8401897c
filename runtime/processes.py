"""A deployment without containers: a SuperLink and one SuperNode per client as processes of this machine.

Everything is as on real devices: TLS, and for each device a registered key, a roster, a policy and a ledger. There are
two differences: the devices' policy is made here, to fit the run, and the nodes split one data set by their
`partition-id`. A run with `privacy.randomness=seeded` simulates its devices instead, because a device refuses noise
that is not secret.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedsketch.client.guard.guard import DEVICE_VARIABLE
from fedsketch.client.guard.policy import Policy
from fedsketch.conf import Config
from fedsketch.conf.schema import NoSecAggConfig, Randomness
from fedsketch.conf.table_settings import TableSettings
from fedsketch.errors import FlowerError
from fedsketch.privacy.simulation import SEED_VARIABLE, SIMULATION_VARIABLE
from fedsketch.runtime.certificates import (
    AUTH_KEY,
    CA_CERTIFICATE,
    DEVICE,
    NODES,
    SERVER,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    make_all,
)
from fedsketch.runtime.children import Children
from fedsketch.runtime.flower import (
    COMMANDS,
    REFUSED,
    Connection,
    connected,
    environment,
    unreachable,
)
from fedsketch.runtime.registration import ROSTER, register_all
from fedsketch.runtime.submission import follow, submit
from fedsketch.server.roster import ROSTER_VARIABLE
from fedsketch.server.run_folder import RUNS_VARIABLE, RunFolder

if TYPE_CHECKING:
    from fedsketch.server.observers.observer import Display

_SUPERLINK = "superlink"
_STATE = "state.db"
_START_TIMEOUT = 120.0
_ANY = 0.99  # the largest share of a cohort that a policy can allow


def run_processes(
    config: Config, overrides: Sequence[str], folder: Path, observer: Display
) -> None:
    """Start all processes of the run in `folder`, follow the run to its end, and end the processes."""
    with Network(config, folder).running() as network:
        run = submit(network.connection, overrides, folder.name, send=False).run
        follow(network.connection, run, config, folder, observer)


class Network:
    """The processes of one run. In a resumed run they have the same keys and ledgers, but the SuperLink is a new
    one."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self.folder = folder.absolute()
        self.private = RunFolder(self.folder).processes  # mode 700
        self.connection: Connection
        self._children: Children
        self._port = 0

    @contextmanager
    def running(self, late: Collection[int] = ()) -> Iterator[Network]:
        """Register all nodes and start all processes but those of `late` clients; afterwards none is left."""
        # Imports torch, which a refusal does not need.
        from fedsketch.client.data_survey import card_for
        from fedsketch.tasks.data.tabular import resolved, write_parts
        from fedsketch.tasks.workload import Workload

        config, nodes = resolved(self.config), self.config.clients.total
        self.private.mkdir(parents=True, exist_ok=True, mode=0o700)
        policy = self.private / "policy.toml"
        policy.write_text(fitting_policy(self.config).to_toml())
        make_all(self.private, nodes=nodes, policy=policy, card=card_for(config))
        if self._tables:
            files = [self._table(client) for client in range(nodes)]
            write_parts(config, Workload(config).partitioned.client_indices, files)
        for state in self.private.glob(f"{_STATE}*"):
            state.unlink()  # otherwise the SuperLink would start the interrupted run again, beside the resumed one
        self._port = _free_port()
        with (
            Children(self.private) as self._children,
            connected(self._address, self.private / CA_CERTIFICATE) as self.connection,
        ):
            self.start_superlink()
            register_all(self.private, self.connection)
            for client in range(nodes):
                if client not in late:
                    self.start_node(client)
            yield self

    def start_superlink(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        certificates = self.private / SERVER
        command: list[str | Path] = [
            COMMANDS / "flower-superlink",
            *("--ssl-ca-certfile", certificates / CA_CERTIFICATE),
            *("--ssl-certfile", certificates / SERVER_CERTIFICATE),
            *("--ssl-keyfile", certificates / SERVER_KEY),
            "--enable-supernode-auth",
            *("--host", "127.0.0.1"),
            *("--port", str(self._port)),
            *("--database", self.private / _STATE),
            "--disable-runtime-dependency-installation",
        ]
        variables = {**self._environment(_SUPERLINK), RUNS_VARIABLE: str(self.folder.parent)}
        if not self._simulated:
            variables[ROSTER_VARIABLE] = str(self.private / ROSTER)
        self._children.start(_SUPERLINK, command, variables)
        deadline = time.monotonic() + _START_TIMEOUT
        while problem := unreachable(self._address, self.private / CA_CERTIFICATE):
            hopeless = REFUSED in problem or self._children.ended(_SUPERLINK)
            if hopeless or time.monotonic() > deadline:
                raise FlowerError(
                    f"The SuperLink did not start ({problem}); the end of its log: "
                    f"{self._children.end_of_log(_SUPERLINK)}"
                )
            time.sleep(0.1)

    def start_node(self, client: int) -> None:
        """Start the SuperNode that holds a client's data."""
        name, place = f"node-{client}", self.private / NODES / str(client)
        parts = f"partition-id={client} num-partitions={self.config.clients.total}"
        command: list[str | Path] = [
            COMMANDS / "fedsketch-node",
            *("--superlink", self._address),
            *("--root-certificates", place / CA_CERTIFICATE),
            *("--auth-supernode-private-key", place / AUTH_KEY),
            *("--host", "127.0.0.1"),
            *("--port", str(_free_port())),
            *("--node-config", parts),
        ]
        variables = {**self._environment(name), **polling(self.config.clients.total)}
        if self._simulated:
            variables[SIMULATION_VARIABLE] = "1"
            variables[SEED_VARIABLE] = str(self.config.seed)
        else:
            variables[DEVICE_VARIABLE] = str(place / DEVICE)
        if self._tables:
            from fedsketch.tasks.data.folder import DATA_VARIABLE
            from fedsketch.tasks.data.tabular import SCHEMA_VARIABLE

            variables[DATA_VARIABLE] = str(self._table(client))
            variables.pop(SCHEMA_VARIABLE, None)  # the schema is beside the file
        self._children.start(name, command, variables)

    @property
    def _tables(self) -> bool:
        """Whether each node gets its rows of a table as a separate file, as an owner would have them."""
        return isinstance(self.config.data, TableSettings) and not self._simulated

    def _table(self, client: int) -> Path:
        return self.private / NODES / str(client) / "data.csv"

    @property
    def _simulated(self) -> bool:
        return self.config.privacy.randomness is Randomness.SEEDED

    @property
    def _address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def stop_superlink(self) -> None:
        self._children.stop(_SUPERLINK)

    def pid(self, client: int | None) -> int:
        """Return the process id of a client's node, or of the SuperLink for None."""
        return self._children.pid(_SUPERLINK if client is None else f"node-{client}")

    def _environment(self, name: str) -> dict[str, str]:
        variables = environment(self.private / "homes" / name)
        for secret in (SIMULATION_VARIABLE, SEED_VARIABLE, DEVICE_VARIABLE, ROSTER_VARIABLE):
            variables.pop(secret, None)  # settings of this process need not be those of a device
        threads = max(1, (os.cpu_count() or 1) // self.config.clients.total)
        variables.setdefault("OMP_NUM_THREADS", str(threads))
        return variables


def polling(nodes: int) -> dict[str, str]:
    """Return how often a node asks for work, as Flower's setting (1 s by default). Asking costs about 10 ms of CPU, so
    many nodes ask less often."""
    return {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(max(0.2, 0.05 * nodes))}


def fitting_policy(config: Config) -> Policy:
    """Return the policy that the owners of these devices would have to agree to. It sets no budget: the devices exist
    only for this run, which has one."""
    masked = not isinstance(config.secagg, NoSecAggConfig)
    default, losses, colluders = (
        Policy(),
        config.clients.tolerated_losses,
        config.secagg.colluders,
    )
    return Policy(
        smallest_cohort=2,
        largest_drops=max(default.largest_drops, config.clients.tolerated_dropouts),
        largest_losses=max(default.largest_losses, losses) if losses < 1 else _ANY,
        assumed_colluders=float(
            colluders if colluders >= 1 else min(default.assumed_colluders, colluders)
        ),
        largest_clip=max(default.largest_clip, config.privacy.largest_clip or 0.0),
        smallest_noise=0.0,
        unit=config.privacy.unit.value,
        epsilon=math.inf,
        plugins=",".join(sorted(set(config.plugins.values()))),
        allow_semi_honest=config.secagg.name == "semi_honest",
        allow_unmasked=not masked,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
