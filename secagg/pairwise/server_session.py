"""The server's side of the protocol, without any transport.

The caller takes the requests of a stage, sends them, feeds every answer to `receive` and every
failure to `lose`, and calls `close` when all answered or time is up. Masked vectors are added to
one accumulator per group as they arrive and are not kept. A stage that ends with too few clients
raises `Aborted` before anything of a later stage is asked for, so that no share leaves a device
in a round that cannot be finished.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from ..codec import Sum
from ..errors import Aborted, Malformed
from ..identity import Directory, verify
from ..packing import Ring, reduce, ring_dtype, unpack
from ..server_session import RoundStage
from ..wire import bitmap
from . import messages
from .device import peers_of
from .graph import draw_groups
from .settings import PairwiseSettings
from .unmasking import Secrets, remove_masks


@dataclass
class _Group:
    number: int
    members: tuple[int, ...]
    total: Ring
    alive: tuple[int, ...] = ()
    survivors: tuple[int, ...] = ()


class PairwiseSession:
    """One round. `lost` maps the nodes that dropped out to the stage and the reason."""

    def __init__(self, settings: PairwiseSettings, directory: Directory | None = None) -> None:
        self.settings = settings
        self.stage = RoundStage.ADVERTISE
        self.lost: dict[int, str] = {}
        self.sums: list[Sum] = []
        self._directory = directory
        self._broadcast = settings.broadcast
        self._asked: set[int] = set(range(settings.n))
        self._adverts: dict[int, bytes] = {}
        self._context = settings.digest
        self._groups: list[_Group] = []
        self._group_of: dict[int, _Group] = {}
        self._commitments: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}
        self._arrived: set[int] = set()
        self._signatures: dict[int, bytes] = {}
        self._revealed: dict[int, dict[int, bytes]] = {}

    def bind(self, broadcast: bytes) -> None:
        """Set the broadcast of a round whose keys were exchanged before it was known."""
        if self.settings.broadcast and self.settings.broadcast != broadcast:
            raise Malformed("The round was announced with another broadcast.")
        self._broadcast = broadcast

    def requests(self) -> dict[int, bytes]:
        """Return the request for every node that takes part in the current stage."""
        return {self.settings.cohort[index]: self._request(index) for index in sorted(self._asked)}

    def lose(self, node: int, reason: str) -> None:
        """Note that a node failed, refused, or did not answer in time."""
        index = self.settings.index(node)
        if index in self._asked:
            self._asked.discard(index)
            self.lost[node] = f"{self.stage.name.lower()}: {reason}"

    def receive(self, node: int, body: bytes) -> None:
        """Process a node's answer. An invalid answer makes the node a dropout."""
        index = self.settings.index(node)
        if index is None or index not in self._asked:
            return
        try:
            self._take(index, body)
        except Malformed as error:
            self.lose(node, str(error))

    def close(self) -> None:
        """End the stage: nodes without an answer are lost, and the next stage begins."""
        answered = self._answered()
        for index in [index for index in self._asked if index not in answered]:
            self.lose(self.settings.cohort[index], "no answer in time")
        match self.stage:
            case RoundStage.ADVERTISE:
                self._close_advertise()
            case RoundStage.SHARE:
                self._close_share()
            case RoundStage.MASK:
                self._close_mask()
            case RoundStage.SIGN:
                self._close_sign()
            case RoundStage.UNMASK:
                self._close_unmask()
        self.stage = self._next_step()

    def _next_step(self) -> RoundStage:
        if self.stage is RoundStage.MASK and not self.settings.consistency:
            return RoundStage.UNMASK
        return RoundStage.DONE if self.stage is RoundStage.UNMASK else RoundStage(self.stage + 1)

    def _request(self, index: int) -> bytes:
        settings = self.settings
        if self.stage is RoundStage.ADVERTISE:
            return settings.encoded
        group = self._group_of[index]
        if self.stage is RoundStage.SHARE:
            present = sorted(self._adverts)
            peers = peers_of(settings, present, index)
            return messages.share_request(settings, present, {i: self._adverts[i] for i in peers})
        if self.stage is RoundStage.MASK:
            sealed = {i: self._sealed[i][index] for i in peers_of(settings, group.alive, index)}
            return messages.mask_request(settings, group.alive, sealed)
        if self.stage is RoundStage.SIGN:
            return messages.sign_request(settings, group.survivors)
        # A quorum is enough: more signatures would only cost bytes and time.
        quorum = settings.quorum_of(len(group.members))
        signatures = dict(list(self._signed(group).items())[:quorum])
        return messages.unmask_request(settings, group.survivors, signatures)

    def _signed(self, group: _Group) -> dict[int, bytes]:
        return {i: self._signatures[i] for i in group.survivors if i in self._signatures}

    def _answered(self) -> Container[int]:
        answers: dict[RoundStage, Container[int]] = {
            RoundStage.ADVERTISE: self._adverts,
            RoundStage.SHARE: self._sealed,
            RoundStage.MASK: self._arrived,
            RoundStage.SIGN: self._signatures,
            RoundStage.UNMASK: self._revealed,
        }
        return answers[self.stage]

    def _take(self, index: int, body: bytes) -> None:
        settings, step = self.settings, self.stage
        if index in self._answered():
            return
        if step is RoundStage.ADVERTISE:
            advert = messages.read_advertise_reply(settings, body)
            statement = messages.key_statement(
                settings.digest, settings.cohort[index], advert[: messages.PAIR_BYTES]
            )
            self._check(index, advert[messages.PAIR_BYTES :], statement)
            self._adverts[index] = advert
            return
        group = self._group_of[index]
        if step is RoundStage.SHARE:
            commitment, sealed = messages.read_share_reply(settings, body)
            if set(sealed) != set(peers_of(settings, group.members, index)):
                raise Malformed("the shares are not for its peers")
            self._commitments[index], self._sealed[index] = commitment, sealed
        elif step is RoundStage.MASK:
            packed = messages.read_mask_reply(settings, body)
            vector = unpack(packed, settings.dim, settings.bits)
            np.add(group.total, vector, out=group.total)
            self._arrived.add(index)
        elif step is RoundStage.SIGN:
            signature = messages.read_sign_reply(settings, body)
            statement = messages.survivor_statement(
                self._context,
                self._broadcast,
                bitmap(settings.n, group.alive),
                bitmap(settings.n, group.survivors),
            )
            self._check(index, signature, statement)
            self._signatures[index] = signature
        else:
            shares = messages.read_unmask_reply(settings, body)
            if set(shares) != {index, *peers_of(settings, group.alive, index)}:
                raise Malformed("the revealed shares are not those of its peers")
            self._revealed[index] = shares

    def _check(self, index: int, signature: bytes, statement: bytes) -> None:
        """Check a signature if the server has a roster. Without one, the devices find a wrong signature, and refuse."""
        if self._directory is None:
            return
        known = self._directory.key_of(self.settings.cohort[index])
        if known is None or not verify(known, signature, statement):
            raise Malformed("its signature does not verify")

    def _close_advertise(self) -> None:
        settings = self.settings
        if len(self._adverts) // settings.groups < settings.sizes.least:
            self._abort(len(self._adverts), settings.sizes.least * settings.groups)
        public = {i: advert[: messages.PAIR_BYTES] for i, advert in self._adverts.items()}
        self._context, groups = draw_groups(settings, public)
        dtype = ring_dtype(settings.bits)
        for number, members in enumerate(groups):
            group = _Group(number, members, np.zeros(settings.dim, dtype=dtype))
            self._groups.append(group)
            self._group_of.update(dict.fromkeys(members, group))
        self._asked = set(self._adverts)

    def _close_share(self) -> None:
        for group in self._groups:
            group.alive = tuple(i for i in group.members if i in self._sealed)
            self._need(len(group.alive))
        self._asked = set(self._sealed)

    def _close_mask(self) -> None:
        self._sealed = {}
        for group in self._groups:
            group.survivors = tuple(i for i in group.alive if i in self._arrived)
            self._need(len(group.survivors))
        self._asked = {i for group in self._groups for i in group.survivors}

    def _close_sign(self) -> None:
        for group in self._groups:
            quorum = self.settings.quorum_of(len(group.members))
            if len(self._signed(group)) < quorum:
                self._abort(len(self._signed(group)), quorum)
        self._asked = set(self._signatures)

    def _close_unmask(self) -> None:
        settings = self.settings
        for group in self._groups:
            threshold = settings.threshold_of(len(group.members))
            revealed = {i: self._revealed[i] for i in group.survivors if i in self._revealed}
            secrets = Secrets(revealed, threshold)
            for index in group.alive:
                if secrets.holders(index) < threshold:
                    self._abort(secrets.holders(index), threshold)
            try:
                remove_masks(
                    settings, self._context, self._broadcast, group.total, secrets,
                    survivors=group.survivors,
                    dead=[i for i in group.alive if i not in self._arrived],
                    public={i: self._adverts[i][32:64] for i in group.alive},
                    commitments=self._commitments,
                )  # fmt: skip
            except Malformed as error:
                raise Aborted(
                    "unmask", str(error), self.lost, "Find the client that sends wrong shares."
                ) from error
            survivors = tuple(settings.cohort[i] for i in group.survivors)
            self.sums.append(Sum(reduce(group.total, settings.modulus), survivors, group.number))
        self._asked = set()

    def _need(self, count: int) -> None:
        if count < self.settings.sizes.least:
            self._abort(count, self.settings.sizes.least)

    def _abort(self, count: int, needed: int) -> None:
        raise Aborted(
            self.stage.name.lower(),
            f"{count} clients are left where {needed} are needed",
            self.lost,
            "Look at the reasons, raise the timeouts, tolerate more drops, or take more clients.",
        )
