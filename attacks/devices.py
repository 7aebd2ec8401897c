"""The devices of a trial, behind a Grid: the clients' real work, and the sums that secure aggregation would make of it.

Masks cancel in every sum, so masks, keys and signatures are left out: the server gets the same sum in the same ring, of
the same survivors. The promises of secure aggregation itself are not audited here.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedsketch.attacks.canaries import CanaryWorkload
from fedsketch.client.app import make_app
from fedsketch.client.guard.guard import SimulatedGuard
from fedsketch.client.workspace import Workspace
from fedsketch.delivery.parcels import Parcels
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.records import mechanism_from_record
from fedsketch.privacy.mechanisms.ring_integers import reduced, unreduced_sum
from fedsketch.runtime.local import SERVER_ID, LocalGrid
from fedsketch.secagg import RECORD, SURVIVORS, is_train
from fedsketch.strategies.rounds.codec import GROUPS, HEAD, MECHANISM, summed, uploaded

Vector = NDArray[np.generic]
_FIRST_NODE = SERVER_ID + 1
# What makes a mechanism's upload deterministic: no noise, and every example is drawn.
QUIET: dict[str, Any] = {"local_variance": 0, "local_multiplier": 0.0, "rate": 1.0}


@dataclass
class ObservedRound:
    """One round as the devices saw it: what they were sent, what each arriving device sent, and which uploads were
    summed."""

    content: RecordDict
    mechanism: Mechanism
    uploads: dict[int, Vector] = field(default_factory=dict)
    parts: list[tuple[list[int], Vector]] = field(default_factory=list)


class Devices(LocalGrid):
    """All clients of a run in this process. The caller sets who drops out of the next round, and the parcels of a
    strategy."""

    def __init__(self, workload: CanaryWorkload, clients: int, masked: bool) -> None:
        super().__init__(make_app(), clients)
        self.workload = workload
        self.dropping: list[int] = []
        self.parcels: Parcels | None = None
        self.last: ObservedRound | None = None
        self._masked = masked
        self._workspace = Workspace(lambda config, kind: workload)
        self._states: dict[int, RecordDict] = {}
        self._version = 0

    def begin(self, parcels: Parcels | None) -> None:
        """Begin a new trial: devices remember nothing."""
        self.parcels, self._states, self._version, self.last = parcels, {}, 0, None

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        asked = list(messages)
        if not asked or not is_train(asked[0]):
            return super().send_and_receive(asked, timeout=timeout)
        content = asked[0].content
        self._deliver(content)
        mechanism = mechanism_from_record(content.config_records[MECHANISM])
        self.last = ObservedRound(content, mechanism)
        by_client = {message.metadata.dst_node_id - _FIRST_NODE: message for message in asked}
        for client in by_client:
            if client not in self.dropping:
                state = self._states.setdefault(client, RecordDict())
                self.last.uploads[client] = self._upload(content, client, state)
        if not self._masked:
            self.last.parts = [([client], vector) for client, vector in self.last.uploads.items()]
            return [
                Message(summed(vector), reply_to=by_client[client])
                for client, vector in self.last.uploads.items()
            ]
        assert mechanism.ring is not None
        replies = []
        for members in self._groups(content):
            uploads = [self.last.uploads[client] for client in members]
            total = reduced(unreduced_sum(uploads), mechanism.ring.modulus)
            self.last.parts.append((members, total))
            reply = summed(total)
            reply[RECORD] = ConfigRecord({SURVIVORS: [_FIRST_NODE + c for c in members]})
            replies.append(Message(reply, reply_to=by_client[members[0]]))
        return replies

    def alone(self, client: int, state: RecordDict, round: int) -> NDArray[np.float64]:
        """Return what this client would contribute to the last round's sum with the present workload, without noise.
        Whoever knows the code and the broadcast can compute that. `state` is the client's memory."""
        assert self.last is not None
        known = self.last.mechanism.to_record()
        quiet = mechanism_from_record({**known, **{k: v for k, v in QUIET.items() if k in known}})
        content = RecordDict(dict(self.last.content))
        content[MECHANISM] = ConfigRecord(quiet.to_record())  # type: ignore[arg-type]
        return quiet.total([self._upload(content, client, state)], round)

    def _upload(self, content: RecordDict, client: int, state: RecordDict) -> Vector:
        return uploaded(self._workspace.take_part(content, client, state, SimulatedGuard(0)))

    def _deliver(self, content: RecordDict) -> None:
        if self.parcels is not None:
            parcel = self.parcels.parcel(self._version)
            self._workspace.prepare(content, parcel, RecordDict(), SimulatedGuard(0))
            self._version = self.parcels.version

    def _groups(self, content: RecordDict) -> list[list[int]]:
        """Return random disjoint groups of equal size."""
        assert self.last is not None
        count = int(content.config_records.get(HEAD, ConfigRecord()).get(GROUPS, 1))  # type: ignore[arg-type]
        order = sorted(self.last.uploads)
        if count > 1:
            secrets.SystemRandom().shuffle(order)
        return [sorted(order[group::count]) for group in range(count)]
