"""A device's side of the protocol: three steps, each a function of (state, request).

| step | the device checks | and answers |
|---|---|---|
| hello | the run, itself in the roster, that the epoch is not an earlier one | its key of the epoch, signed |
| mask | the rules, its guard, that the round is new, its peers in the roster, keys of new peers | the masked vector |
| answer | the round charged last, a list of those who gave keys, its size; once per round | a sum of shares |

Guarantee, against a server that deviates at will with up to `colluders` clients, the unit being one device's whole
vector: the server learns of the vectors of a round one sum only, over all honest devices but `drops` at most. The
colluders include devices that answer twice in a round. Not covered: a malicious train handler, and devices that send
garbage.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import x25519
from ..errors import Refusal
from ..identity import verify
from ..node import Node
from ..packing import Ring
from . import messages
from .field import Field
from .keys import ABSENT, KEY_BYTES, key_statement, moved_on, pair_key
from .messages import SharingRequest
from .settings import Cohort, Terms, TwoTripsSettings
from .sharing import deal
from .state import Epoch, Memory, OpenRound, TwoTripsStage
from .stream import moment_of, numbers, share_input


def cleaned(node: Node, state: bytes) -> bytes:
    """Return the state without keys if it is not that of the guard's last charge: it is older, or a copy."""
    charged = node.guard.last_charge(node.run)
    if charged is None or Memory.decode(state).charged == charged:
        return state
    return Memory(charged=charged).encode()


def hello(node: Node, state: bytes, request: bytes) -> tuple[bytes, bytes]:
    """Draw the keys of an epoch, or show them again."""
    run, number = messages.read_hello_request(request)
    memory = Memory.decode(state)
    if run != node.run:
        raise Refusal(f"The epoch belongs to run {run}, but this is run {node.run}.")
    epoch = memory.epochs.get(number)
    if epoch is None:
        _need(number > max(memory.epochs, default=-1), "A later epoch has begun.")
        epoch = _new_epoch(node, number)
        memory.begin(epoch)
    return memory.encode(), messages.hello_reply(epoch.advert)


def _new_epoch(node: Node, number: int) -> Epoch:
    if node.guard.roster.key_of(node.id) != node.guard.identity.public:
        raise Refusal(f"The roster has another key for node {node.id}: enrol this device again.")
    private = x25519.new_private()
    public = x25519.public_of(private)
    signature = node.guard.identity.sign(key_statement(node.run, number, node.id, public))
    own = {node.id: (public, os.urandom(KEY_BYTES))}
    return Epoch(number, private, public + signature, peers=own)


@dataclass(frozen=True)
class MaskTicket:
    """A checked request for the masked vector: what is needed when the vector is there."""

    settings: TwoTripsSettings
    memory: Memory
    epoch: Epoch
    absent: tuple[int, ...]
    broadcast: bytes
    me: int  # this device's id


def open_mask(node: Node, state: bytes, request: bytes, broadcast: bytes) -> MaskTicket:
    """Check everything that can be checked before training starts."""
    asked, memory = SharingRequest.decode(request), Memory.decode(state)
    cohort, terms = _parts(memory, asked)
    if cohort.run != node.run:
        raise Refusal(f"The round belongs to run {cohort.run}, but this is run {node.run}.")
    _need(node.id in cohort.ids, f"Node {node.id} is not in the cohort of the round.")
    known = memory.epochs.get(cohort.epoch)
    if known is None:
        raise Refusal("This device has no keys of the epoch.")
    last = memory.open
    if last is not None and asked.round <= last.settings.round:
        raise Refusal(f"Round {asked.round} of run {node.run} was seen before.")
    epoch = _met(node, known, cohort, asked.adverts)
    publics = [epoch.peers.get(peer, (ABSENT, b""))[0] for peer in cohort.ids]
    absent = tuple(place for place, public in enumerate(publics) if public == ABSENT)
    keys = hashlib.sha256(messages.keys_hash_input(publics)).digest()
    own = hashlib.sha256(epoch.public).digest()
    settings = TwoTripsSettings.of(cohort, terms, asked.round, asked.nonce, keys, own)
    _need(len(absent) <= settings.drops, "Too few clients have keys.")
    _need(asked.round - epoch.number >= epoch.index, "The secrets of this round were erased.")
    node.guard.admit(settings)
    return MaskTicket(settings, memory, epoch, absent, broadcast, node.id)


def _parts(memory: Memory, asked: SharingRequest) -> tuple[Cohort, Terms]:
    """Return the cohort and the terms that the request names: with what came along, and what is known."""
    cohorts, terms = memory.cohorts, memory.terms
    if asked.cohort:
        came = Cohort.decode(asked.cohort)
        cohorts = {came.digest: came}
    if asked.terms:
        these = Terms.decode(asked.terms)
        terms = {these.digest: these}
    return replace(memory, cohorts=cohorts, terms=terms).named(asked.static)


def _met(node: Node, epoch: Epoch, cohort: Cohort, adverts: Mapping[int, bytes]) -> Epoch:
    """Return the epoch with the keys of new peers, each of which has signed its own."""
    _need(all(place < len(cohort.ids) for place in adverts), "A key is not of a peer.")
    roster = node.guard.roster
    unknown = [peer for peer in cohort.ids if roster.key_of(peer) is None]
    if unknown:
        raise Refusal(f"Node {unknown[0]} and {len(unknown) - 1} others are not in the roster.")
    peers = dict(epoch.peers)
    private = x25519.load_private(epoch.private) if epoch.private else None
    for place, advert in adverts.items():
        peer, public = cohort.ids[place], advert[: x25519.PUBLIC_BYTES]
        if peer in peers:
            _need(peers[peer][0] == public, f"Node {peer} has another key in this epoch.")
            continue
        statement = key_statement(node.run, epoch.number, peer, public)
        known = roster.key_of(peer)
        signature = advert[x25519.PUBLIC_BYTES :]
        if known is None or not verify(known, signature, statement):
            raise Refusal(f"The key of node {peer} is not signed by it for this epoch.")
        if private is None:
            raise Refusal("This epoch was closed: no more peers can come.")
        secret = pair_key(private, node.run, epoch.number, (node.id, epoch.public), (peer, public))
        peers[peer] = public, moved_on(secret, epoch.index)
    publics = [public for public, _ in peers.values()]
    _need(len(set(publics)) == len(publics), "Two nodes have the same key.")
    _need(ABSENT not in publics, "A key is all zeros.")
    return replace(epoch, peers=peers)


def spend(node: Node, ticket: MaskTicket) -> bytes:
    """Charge the guard, end the only attempt of the round, and return the state to keep before the train handler runs.

    Whatever happens afterwards, the server gets no second vector for the same round. The secrets of all rounds before
    are erased.
    """
    settings, epoch = ticket.settings, ticket.epoch
    node.guard.charge(settings)
    epoch.move_on(settings.round - settings.epoch)
    if settings.closed and not ticket.absent:
        epoch.private = b""
    ticket.memory.learn(settings.announced, settings.terms)
    return _remembered(ticket, TwoTripsStage.CHARGED)


def mask(ticket: MaskTicket, vector: Ring) -> tuple[bytes, bytes]:
    """Add the secrets of fresh polynomials to the vector, and forget the polynomials."""
    settings = ticket.settings
    _need(vector.shape == (settings.dim,), f"The vector does not have {settings.dim} numbers.")
    _need(not (vector >= settings.modulus).any(), "A number of the vector is too large.")
    holders = settings.cohort
    # What nobody else can hold, it keeps: nobody knows its value there, and nobody will ask.
    own = ticket.epoch.peers[ticket.me][1]
    keys = [ticket.epoch.peers.get(holder, (b"", own))[1] for holder in holders]
    moment = moment_of(settings.digest, ticket.broadcast)
    inputs = [
        share_input(key, moment, ticket.me, holder)
        for key, holder in zip(keys, holders, strict=True)
    ]
    shares = numbers(inputs, settings.shape.polynomials, settings.bits)
    published, secrets = deal(settings.shape, shares)
    masked = (vector.astype(np.uint64) + secrets) % np.uint64(settings.modulus)
    reply = messages.sharing_reply(settings, masked, published)
    return _remembered(ticket, TwoTripsStage.SHARED), reply


def _remembered(ticket: MaskTicket, stage: TwoTripsStage) -> bytes:
    """Return the state with this round as the last. Epochs before its own are over."""
    settings, memory = ticket.settings, ticket.memory
    epochs = {number: one for number, one in memory.epochs.items() if number > settings.epoch}
    opened = OpenRound(settings, ticket.absent, stage, ticket.broadcast)
    epochs[settings.epoch] = ticket.epoch
    return replace(memory, charged=settings.digest, open=opened, epochs=epochs).encode()


def answer(node: Node, state: bytes, request: bytes) -> tuple[bytes, bytes]:
    """Reveal the sum of what those in the list have dealt to this device, and forget the secrets of the round."""
    memory = Memory.decode(state)
    opened = memory.open
    if opened is None or not messages.names(opened.settings, messages.name_in(request)):
        raise Refusal("The request is about a round that this device does not know or has ended.")
    settings = opened.settings
    survivors = messages.read_answer_request(settings, request)
    named = hashlib.sha256(request).digest()
    if opened.stage is TwoTripsStage.ANSWERED and named == opened.answered:
        return state, opened.answer
    if opened.stage is not TwoTripsStage.SHARED:
        raise Refusal(
            f"Round {settings.round} is {opened.stage.name.lower()} on this device: the request is out of order, or "
            "about another list."
        )
    _check_survivors(node, opened, survivors)
    ids = tuple(settings.cohort[place] for place in survivors)
    node.guard.answer(settings, ids)
    epoch = memory.epochs[settings.epoch]
    moment = moment_of(settings.digest, opened.broadcast)
    dealt = numbers(
        [share_input(epoch.peers[dealer][1], moment, dealer, node.id) for dealer in ids],
        settings.shape.polynomials,
        settings.bits,
    )
    reply = messages.answer_reply(settings, _sum(dealt, settings.modulus))
    epoch.move_on(epoch.index + 1)
    memory.open = replace(opened, stage=TwoTripsStage.ANSWERED, answer=reply, answered=named)
    return memory.encode(), reply


def _sum(dealt: Field, modulus: int) -> Field:
    total: Field = dealt.sum(axis=0) % np.uint64(modulus)
    return total


def _check_survivors(node: Node, opened: OpenRound, survivors: Sequence[int]) -> None:
    settings, listed = opened.settings, set(survivors)
    _need(settings.index(node.id) in listed, "This device is missing among the survivors.")
    _need(not listed & set(opened.absent), "Someone survived who gave no key.")
    least = settings.shape.least
    _need(len(listed) >= least, f"Fewer than {least} clients survived: nothing is revealed.")


def _need(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Refusal(otherwise)
