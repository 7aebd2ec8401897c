"""The server's side of one round, without any transport. Groups are sums of their own, of which none knows the others.

Masked vectors and published numbers are added up as they arrive and are not kept.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..codec import Sum
from ..errors import Aborted, Malformed
from ..identity import Directory
from ..packing import ring_dtype
from ..server_session import RoundStage
from ..settings import NONCE_BYTES, RoundSettings
from . import messages
from .epoch import Introductions, ServerEpoch, parts_for
from .field import Field
from .keys import ABSENT
from .messages import SharingRequest
from .settings import Cohort, Terms, TwoTripsSettings, static_digest
from .sharing import join


@dataclass
class _Group:
    number: int
    cohort: Cohort
    terms: Terms
    settings: TwoTripsSettings
    total: Field
    published: Field
    present: frozenset[int]  # those who have given their keys
    arrived: set[int] = field(default_factory=set)
    survivors: tuple[int, ...] = ()
    asked: bytes = b""  # for an answer
    answers: dict[int, Field] = field(default_factory=dict)

    def has(self, stage: RoundStage, node: int) -> bool:
        """Return whether the node has answered."""
        return self.settings.index(node) in (
            self.arrived if stage is RoundStage.MASK else self.answers
        )


class TwoTripsSession:
    """One round. `lost` maps the nodes that dropped out to the stage and the reason; `unsure` are those that answered,
    but not with a vector: perhaps they have no keys any more."""

    def __init__(
        self,
        epoch: ServerEpoch,
        round: int,
        groups: Sequence[tuple[int, ...]],
        terms: Terms,
        directory: Directory | None = None,
    ) -> None:
        self.epoch = epoch
        self.stage = RoundStage.HELLO
        self.lost: dict[int, str] = {}
        self.sums: list[Sum] = []
        self.unsure: set[int] = set()
        self._round = round
        self._nonce = os.urandom(NONCE_BYTES)
        self._terms = terms
        self._members = groups
        self._directory = directory
        self._asked: set[int] = set()
        self._group_of: dict[int, _Group] = {}
        self._groups: list[_Group] = []
        self._introductions = self._introduce()
        self._form_groups()
        if not self._introductions.requests():
            self._close_hello()
            self.stage = RoundStage.MASK

    @property
    def settings(self) -> RoundSettings:
        """The settings of the first group."""
        return self._groups[0].settings

    @property
    def nodes(self) -> list[int]:
        """All nodes of the round."""
        return [node for group in self._members for node in group]

    def requests(self) -> dict[int, bytes]:
        """Return the request for every node that takes part in the current stage."""
        if self.stage is RoundStage.HELLO:
            return self._introductions.requests()
        return {node: self._request(node) for node in sorted(self._asked)}

    def lose(self, node: int, reason: str) -> None:
        """Note that a node failed, refused, or did not answer in time."""
        if self.stage is RoundStage.HELLO:
            self._introductions.lose(node, reason)
        elif node in self._asked:
            self._asked.discard(node)
            self.lost[node] = f"{self.stage.name.lower()}: {reason}"
            if self.stage is RoundStage.MASK:
                self.epoch.forget(node)
                self.unsure.add(node)

    def receive(self, node: int, body: bytes) -> None:
        """Process a node's answer. An invalid answer makes the node a dropout."""
        if self.stage is RoundStage.HELLO:
            self._introductions.receive(node, body)
        elif node in self._asked:
            try:
                self._take(node, body)
            except Malformed as error:
                self.lose(node, str(error))

    def close(self) -> None:
        """End the stage: nodes without an answer are lost, and the next stage begins."""
        if self.stage is RoundStage.HELLO:
            self._introductions.close()
            if self.epoch.over:  # a device has lost its keys: all begin again
                self.epoch = ServerEpoch(
                    self.epoch.run, self._round, self.epoch.closed, members=frozenset(self.nodes)
                )
                self._introductions = self._introduce()
                return
            self._close_hello()
        else:
            unsure = set(self.unsure)
            for node in self._unanswered():
                self.lose(node, "no answer in time")
            self.unsure = unsure
            self._close_mask() if self.stage is RoundStage.MASK else self._close_answer()
        self.stage = _AFTER[self.stage]

    def _introduce(self) -> Introductions:
        """Return the stage in which those give their keys who have never been asked, and the others who gave none if
        too many are missing."""
        if any(len(self.epoch.lacking(ids)) > self._terms.drops for ids in self._members):
            return Introductions(self.epoch, self.epoch.lacking(self.nodes), self._directory)
        new = [node for node in self.epoch.lacking(self.nodes) if node not in self.epoch.asked]
        return Introductions(self.epoch, new, self._directory)

    def _form_groups(self) -> None:
        """Make the settings of each group, with the keys that are known."""
        epoch = self.epoch
        self._groups, self._group_of = [], {}
        for number, ids in enumerate(self._members):
            cohort = Cohort(epoch.run, epoch.number, epoch.closed and len(self._members) == 1, ids)
            publics = [epoch.adverts.get(node, ABSENT)[: len(ABSENT)] for node in ids]
            keys = hashlib.sha256(messages.keys_hash_input(publics)).digest()
            settings = TwoTripsSettings.of(cohort, self._terms, self._round, self._nonce, keys)
            shape = settings.shape
            total = np.zeros(shape.dim, dtype=np.uint64)
            published = np.zeros((shape.publics, shape.polynomials), dtype=np.uint64)
            present = epoch.present(cohort)
            group = _Group(number, cohort, self._terms, settings, total, published, present)
            self._groups.append(group)
            self._group_of.update(dict.fromkeys(ids, group))

    def _close_hello(self) -> None:
        self.lost.update(self._introductions.lost)
        self._form_groups()
        for group in self._groups:
            for node in self.epoch.lacking(group.cohort.ids):
                self.lost.setdefault(node, "hello: gave no key of this epoch")
            self._need(len(group.cohort.ids) - len(self.epoch.lacking(group.cohort.ids)), group)
        self._asked = {node for node in self._group_of if node in self.epoch.adverts}

    def _request(self, node: int) -> bytes:
        group = self._group_of[node]
        if self.stage is RoundStage.ANSWER:
            return group.asked
        parts = parts_for(self.epoch, node, group.cohort, group.terms, group.present)
        static = static_digest(group.cohort, group.terms)
        return SharingRequest(static, self._round, self._nonce, *parts).encode()

    def _take(self, node: int, body: bytes) -> None:
        group = self._group_of[node]
        place = group.settings.index(node)
        assert place is not None
        if self.stage is RoundStage.ANSWER:
            group.answers[place] = messages.read_answer_reply(group.settings, body)
        elif place not in group.arrived:
            masked, published = messages.read_sharing_reply(group.settings, body)
            np.add(group.total, masked, out=group.total)
            np.add(group.published, published, out=group.published)
            group.arrived.add(place)
            self.epoch.acknowledge(node, group.cohort, group.terms, group.present)

    def _unanswered(self) -> list[int]:
        return [node for node in self._asked if not self._group_of[node].has(self.stage, node)]

    def _close_mask(self) -> None:
        for group in self._groups:
            group.survivors = tuple(sorted(group.arrived))
            group.asked = messages.answer_request(group.settings, group.survivors)
            self._need(len(group.survivors), group)

    def _close_answer(self) -> None:
        for group in self._groups:
            settings, shape = group.settings, group.settings.shape
            if len(group.answers) < shape.holders:
                self._abort(len(group.answers), shape.holders)
            modulus = np.uint64(shape.modulus)
            try:
                secrets = join(shape, group.answers, group.published % modulus)
            except Malformed as error:
                raise Aborted(
                    "answer", str(error), self.lost, "Find the client that sends wrong sums."
                ) from error
            total = (group.total % modulus + (modulus - secrets)) % modulus
            survivors = tuple(settings.cohort[place] for place in group.survivors)
            self.sums.append(Sum(total.astype(ring_dtype(shape.bits)), survivors, group.number))

    def _need(self, count: int, group: _Group) -> None:
        if count < group.settings.shape.least:
            self._abort(count, group.settings.shape.least)

    def _abort(self, count: int, needed: int) -> None:
        raise Aborted(
            self.stage.name.lower(),
            f"{count} clients are left where {needed} are needed",
            self.lost,
            "Look at the reasons, raise the timeouts, tolerate more drops or losses, or take more clients.",
        )


_AFTER = {
    RoundStage.HELLO: RoundStage.MASK,
    RoundStage.MASK: RoundStage.ANSWER,
    RoundStage.ANSWER: RoundStage.DONE,
}
