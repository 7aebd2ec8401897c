"""What the server knows of an epoch: who has which key, and what each device has been told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import Malformed
from ..identity import Directory, verify
from ..server_session import RoundStage
from ..x25519 import PUBLIC_BYTES
from . import messages
from .keys import key_statement
from .settings import Cohort, Terms, with_last


@dataclass
class Told:
    """What a device has acknowledged: cohorts and terms, and peers whose keys it has."""

    cohorts: dict[bytes, Cohort] = field(default_factory=dict)
    terms: dict[bytes, Terms] = field(default_factory=dict)
    peers: frozenset[int] = frozenset()


@dataclass
class ServerEpoch:
    """The keys of an epoch. In a `closed` one, no others than its members take part. `over` is set when a device has
    another key than its peers know."""

    run: int
    number: int
    closed: bool
    adverts: dict[int, bytes] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    told: dict[int, Told] = field(default_factory=dict)
    members: frozenset[int] = frozenset()
    over: bool = False
    _present: dict[bytes, frozenset[int]] = field(default_factory=dict)

    def greet(self, node: int, advert: bytes) -> None:
        """Note the key of a device. Another key than before ends the epoch if a peer knows that one."""
        known = self.adverts.get(node)
        if known is not None and known != advert:
            self.over |= any(node in told.peers for told in self.told.values())
        self.adverts[node] = advert

    def lacking(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes that have given no key."""
        return [node for node in nodes if node not in self.adverts]

    def present(self, cohort: Cohort) -> frozenset[int]:
        """Return the nodes of a cohort that have given their keys: the same object as long as they are the same."""
        found = frozenset(node for node in cohort.ids if node in self.adverts)
        if self._present.get(cohort.digest) != found:
            self._present[cohort.digest] = found
        return self._present[cohort.digest]

    def told_of(self, node: int) -> Told:
        """Return what a device has acknowledged."""
        return self.told.setdefault(node, Told())

    def forget(self, node: int) -> None:
        """Tell a device everything again, because it is not known what it has kept."""
        self.told.pop(node, None)

    def acknowledge(self, node: int, cohort: Cohort, terms: Terms, present: frozenset[int]) -> None:
        """Note that a device has the cohort, the terms, and the keys of its peers."""
        told = self.told_of(node)
        told.cohorts = with_last(told.cohorts, cohort)
        told.terms = with_last(told.terms, terms)
        if told.peers is not present:
            told.peers = present if told.peers <= present else told.peers | present


class Introductions:
    """The stage in which devices give their keys of an epoch."""

    def __init__(
        self, epoch: ServerEpoch, nodes: Iterable[int], directory: Directory | None = None
    ) -> None:
        self.stage = RoundStage.HELLO
        self.lost: dict[int, str] = {}
        self._epoch = epoch
        self._asked = set(nodes)
        self._directory = directory
        epoch.asked |= self._asked

    def requests(self) -> dict[int, bytes]:
        """Return the same request for every node."""
        request = messages.hello_request(self._epoch.run, self._epoch.number)
        return dict.fromkeys(sorted(self._asked), request)

    def lose(self, node: int, reason: str) -> None:
        """Note that a node failed, refused, or did not answer in time."""
        if node in self._asked:
            self._asked.discard(node)
            self.lost[node] = f"{self.stage.name.lower()}: {reason}"

    def receive(self, node: int, body: bytes) -> None:
        """Process a node's key. One with a wrong signature makes the node a dropout."""
        if node not in self._asked:
            return
        try:
            advert = messages.read_hello_reply(body)
            self._check(node, advert)
        except Malformed as error:
            self.lose(node, str(error))
        else:
            self._asked.discard(node)
            self._epoch.greet(node, advert)

    def close(self) -> None:
        """End the stage."""
        for node in list(self._asked):
            self.lose(node, "no answer in time")
        self.stage = RoundStage.DONE

    def _check(self, node: int, advert: bytes) -> None:
        """Check a signature if the server has a roster. Without one, the devices find a wrong signature, and refuse."""
        if self._directory is None:
            return
        public, signature = advert[:PUBLIC_BYTES], advert[PUBLIC_BYTES:]
        statement = key_statement(self._epoch.run, self._epoch.number, node, public)
        known = self._directory.key_of(node)
        if known is None or not verify(known, signature, statement):
            raise Malformed("its signature does not verify")


def parts_for(
    epoch: ServerEpoch, node: int, cohort: Cohort, terms: Terms, present: frozenset[int]
) -> tuple[bytes, bytes, Mapping[int, bytes]]:
    """Return what a device lacks: the cohort, the terms, and the keys of peers by their positions."""
    told = epoch.told_of(node)
    adverts: dict[int, bytes] = {}
    if told.peers is not present:
        new = present - told.peers - {node}
        adverts = {p: epoch.adverts[peer] for p, peer in enumerate(cohort.ids) if peer in new}
    return (
        b"" if cohort.digest in told.cohorts else cohort.encoded,
        b"" if terms.digest in told.terms else terms.encoded,
        adverts,
    )
