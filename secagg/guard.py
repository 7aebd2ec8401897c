"""The interface through which a device's owner decides.

The protocol itself checks what makes a round sound (thresholds, signatures, stages, lists). The guard
decides what is a matter of policy, and keeps what must outlive the process: the roster, the smallest
cohort, the noise, the budget, a ledger on disk. Each method is called before the bytes in question
leave the device, and raises `Refusal` to stop them.

A node's state can be older than its last answer (after a crash, or with a second process). A guard
with a ledger should therefore remember each (run, round, step) durably and refuse a second `charge`,
`endorse` or `settle` of a round. The state machine refuses too, but it knows only the state that it
was given.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from .errors import Refusal
from .identity import Directory, Identity
from .pairwise.settings import PairwiseSettings
from .settings import RoundSettings
from .two_trips.settings import TwoTripsSettings


class Guard(Protocol):
    """The decisions of a device's owner."""

    @property
    def quiet(self) -> bool:
        """Whether failures of the train handler are hidden. True wherever there are data to protect."""

    @property
    def identity(self) -> Identity:
        """The device's own long-term key."""

    @property
    def roster(self) -> Directory:
        """The public keys of those whom the owner accepts as peers."""

    def admit(self, settings: RoundSettings) -> None:
        """Before keys leave: refuse settings that are not acceptable, and rounds that were seen before."""

    def charge(self, settings: RoundSettings) -> None:
        """Before the train handler runs: record the worst case of this release, durably. From here on a vector
        leaves."""

    def endorse(self, settings: PairwiseSettings, survivors: tuple[int, ...]) -> None:
        """Before the signature on a survivor list leaves: at most one list per round."""

    def settle(self, settings: PairwiseSettings, survivors: tuple[int, ...]) -> None:
        """Before shares leave: record what the round really released, given who is in the sum."""

    def answer(self, settings: TwoTripsSettings, survivors: tuple[int, ...]) -> None:
        """Before the answer about a list leaves: record it durably. One list per round: the same list may come
        again."""

    def last_charge(self, run: int) -> bytes | None:
        """Return the context of the last round of two trips that was charged in the run, b"" if none was. None where
        nothing is kept."""

    def admit_unmasked(self, message_type: str) -> None:
        """Before the plain reply to a train message without secure aggregation leaves: refuse it, or let it pass."""

    def wait(self, begun: float) -> None:
        """Before any reply to a train message leaves: wait until a time that says nothing about the data. `begun` is
        when the message came, by `time.monotonic`."""


class SimulationGuard:
    """A guard without a policy, for simulations and tests: its keys are public.

    Every node's private key follows from its id, so that the nodes of one simulation know each
    other without a roster file. This protects nobody: never install it on a real device.
    """

    quiet = False  # so that authors of a train handler see its errors

    def __init__(self, node: int) -> None:
        self.identity = simulated_identity(node)
        self.roster = SimulationRoster()

    def admit(self, settings: RoundSettings) -> None:
        """Admit every sound round."""

    def charge(self, settings: RoundSettings) -> None:
        """Do nothing: there is no budget."""

    def endorse(self, settings: PairwiseSettings, survivors: tuple[int, ...]) -> None:
        """Do nothing: the state machine's own check is enough in a simulation."""

    def settle(self, settings: PairwiseSettings, survivors: tuple[int, ...]) -> None:
        """Do nothing: there is no budget."""

    def answer(self, settings: TwoTripsSettings, survivors: tuple[int, ...]) -> None:
        """Do nothing: the state machine's own check is enough in a simulation."""

    def last_charge(self, run: int) -> bytes | None:
        """Return None: nothing is kept."""
        return None

    def admit_unmasked(self, message_type: str) -> None:
        """Refuse, because an author who forgot to wrap the grid should notice."""
        raise Refusal(
            f"A {message_type!r} message came without secure aggregation: wrap the grid in SecAggGrid."
        )

    def wait(self, begun: float) -> None:
        """Do not wait."""


class SimulationRoster:
    """A roster that knows every id, because simulated keys follow from ids."""

    def key_of(self, node: int) -> bytes | None:
        """Return the public key of a simulated node."""
        return simulated_identity(node).public


@lru_cache(maxsize=16384)
def simulated_identity(node: int) -> Identity:
    """Return the key of a simulated node, which everybody can compute from its id."""
    seed = hashlib.sha256(b"secagg/1 simulation, not secret" + node.to_bytes(8, "little")).digest()
    return Identity(Ed25519PrivateKey.from_private_bytes(seed))
