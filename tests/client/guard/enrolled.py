"""Devices that are enrolled in folders of their own, and the rounds that a server proposes to them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsketch.client.enroll import enrol
from fedsketch.client.guard.card import DataCard
from fedsketch.client.guard.guard import DeviceGuard
from fedsketch.client.guard.policy import Policy
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.secagg import (
    PairwiseSettings,
    ProtocolName,
    Roster,
    SecAggError,
    SecAggOptions,
    Sizes,
    TwoTripsSettings,
    VectorFormat,
    modulus_of,
)
from tests.secagg.protocol import Node, PairwiseSession, RoundStage, take_step

CARD = DataCard("digits", (1, 8, 8), tuple("0123456789"), 512)
RUN, DIM, MODEL, KEY = 1, 6, b"\x11" * 32, b"\x22" * 32
POLICY = Policy(smallest_cohort=4, largest_drops=0.4, assumed_colluders=0.0, epsilon=100.0)


def ring(
    n: int, drops: int = 1, colluders: int = 0, noise: float = 4.0, **plan: Any
) -> SkellamRing:
    """A mechanism whose worst case has this noise multiplier."""
    return choose_ring(
        dim=DIM,
        clients=n,
        clip=plan.pop("clip", 1.0),
        noise=lambda l2, l1: (noise * l2) ** 2,
        drops=drops,
        colluders=colluders,
        **plan,
    )


def settings_of(
    n: int = 6,
    *,
    round: int = 1,
    drops: int = 1,
    colluders: int = 0,
    consistency: bool = True,
    groups: int = 1,
    application: Mapping[str, Any] | None = None,
    record: Mapping[str, Any] | None = None,
    **options: Any,
) -> PairwiseSettings:
    """What an honest server proposes, with changes to what the application commits to."""
    members = -(-n // groups)
    if application is None:
        application = ring(members, drops, colluders, **options).to_record()
    whole = dict(application)
    whole = {**whole, **(record or {})}
    bits = options.get("bits", 32)
    plan = SecAggOptions(drops=drops, colluders=colluders, consistency=consistency, groups=groups)
    vector = VectorFormat(DIM, bits, {k: v for k, v in whole.items() if v is not None})
    return PairwiseSettings.proposed(plan, RUN, round, range(2, n + 2), vector, MODEL)


def two_trips(
    n: int = 6,
    *,
    round: int = 1,
    drops: int = 1,
    losses: int = 0,
    colluders: int = 0,
    groups: int = 1,
    key: bytes = KEY,
    **options: Any,
) -> TwoTripsSettings:
    """What an honest server proposes for a sum in two trips of `n` clients in `groups`, to a device of the first."""
    sizes = Sizes(n, drops, colluders, groups)
    bits = options.get("bits", 32)
    prime = modulus_of(ProtocolName.TWO_TRIPS, bits)
    record = ring(sizes.most, drops, colluders, prime=prime, **options).to_record()
    return TwoTripsSettings(
        run=RUN, round=round, nonce=bytes(16), cohort=tuple(range(2, n + 2))[::groups], drops=drops,
        colluders=colluders, groups=groups, dim=DIM, bits=bits, application=record,  # type: ignore[arg-type]
        epoch=1, closed=False, losses=losses, total=n, keys=bytes(32), key=key,
    )  # fmt: skip


class Fleet:
    """Enrolled devices, each in its folder, with the protocol's state beside."""

    def __init__(self, root: Path, n: int, policy: Policy) -> None:
        self.folders = {node: root / f"device{node}" for node in range(2, n + 2)}
        self.roster = root / "roster.json"
        (root / "policy.toml").write_text(policy.to_toml())
        for node, folder in self.folders.items():
            enrol(folder, node, self.roster, root / "policy.toml", CARD)
        for folder in self.folders.values():
            enrol(folder, roster=self.roster)
        self.states = dict.fromkeys(self.folders, b"")

    def guard(self, node: int) -> DeviceGuard:
        """As in a new process: nothing but the folder is remembered."""
        return DeviceGuard(self.folders[node])

    def spent(self, node: int) -> float:
        return self.guard(node).ledger.verified()[0].spent(1e-5)

    def set_policy(self, node: int, **changes: Any) -> None:
        policy = replace(self.guard(node).policy, **changes)
        (self.folders[node] / "policy.toml").write_text(policy.to_toml())

    def answer(self, step: RoundStage, node: int, request: bytes, model: bytes = MODEL) -> bytes:
        me, vector = Node(node, RUN, self.guard(node)), np.full(DIM, node, dtype=np.uint32)
        return take_step(step, me, self.states, request, vector, model)

    def run(
        self,
        settings: PairwiseSettings,
        until: RoundStage = RoundStage.DONE,
        silent: Iterable[int] = (),
    ) -> PairwiseSession:
        """A round up to a stage; those who are silent do not send their vector."""
        server = PairwiseSession(settings, Roster.load(self.roster))
        server.bind(MODEL)
        while server.stage < until:
            step = server.stage
            for node, request in server.requests().items():
                if node in silent and step is RoundStage.MASK:
                    continue
                try:
                    server.receive(node, self.answer(step, node, request))
                except SecAggError as error:
                    server.lose(node, str(error))
            server.close()
        return server
