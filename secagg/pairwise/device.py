"""A device's side of the protocol: five steps, each a function of (state, request).

| step | the device checks | and answers |
|---|---|---|
| advertise | the rules, its guard, that the round is new, that all peers are in the roster | keys, signed |
| share | signatures of the peers' keys over its own view of the settings | encrypted shares |
| mask | the broadcast's hash, that enough peers remain, that all shares decrypt | the masked vector |
| sign | itself in the survivor list, the list within those who shared, its size; once per round | a signature |
| unmask | a quorum of signatures on the list it signed | one share per peer, chosen by the list |

Guarantee, with `consistency`, against a server that deviates at will with up to `colluders` clients, the
unit being one device's whole vector: the server learns sums over at least n - D devices only, or
nothing. Which of the two shares of a peer leaves is a function of the signed survivor list, so
both never do. Not covered: a malicious train handler, and devices that send garbage.
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
from ..packing import Ring, pack, reduce, ring_dtype
from ..wire import bitmap, digest_of
from . import keys, messages, shamir
from .graph import draw_groups, neighbours
from .masking import apply_masks
from .settings import PairwiseSettings
from .state import DeviceStage, DeviceState, Session


def advertise(node: Node, state: bytes, request: bytes) -> tuple[bytes, bytes]:
    """Accept or refuse a round, and draw its keys."""
    settings = PairwiseSettings.decode(request)
    memory = DeviceState.decode(state)
    if settings.run != node.run:
        raise Refusal(f"The round belongs to run {settings.run}, but this is run {node.run}.")
    if settings.round <= memory.last_round:
        raise Refusal(f"Round {settings.round} of run {node.run} was seen before.")
    if settings.index(node.id) is None:
        raise Refusal(f"Node {node.id} is not in the cohort of the round.")
    roster = node.guard.roster
    unknown = [peer for peer in settings.cohort if roster.key_of(peer) is None]
    if unknown:
        raise Refusal(f"Node {unknown[0]} and {len(unknown) - 1} others are not in the roster.")
    if roster.key_of(node.id) != node.guard.identity.public:
        raise Refusal(f"The roster has another key for node {node.id}: enrol this device again.")
    node.guard.admit(settings)
    session = Session(
        settings,
        DeviceStage.ADVERTISED,
        private_c=x25519.new_private(),
        private_s=x25519.new_private(),
    )
    public = x25519.public_of(session.private_c) + x25519.public_of(session.private_s)
    signature = node.guard.identity.sign(messages.key_statement(settings.digest, node.id, public))
    memory.open(session)
    return memory.encode(), messages.advertise_reply(settings, public + signature)


def share(node: Node, state: bytes, request: bytes) -> tuple[bytes, bytes]:
    """Check the peers' keys, and share this device's two secrets among them."""
    memory = DeviceState.decode(state)
    session = memory.at(digest_of(request), DeviceStage.ADVERTISED)
    settings, me = session.settings, _place(node, session.settings)
    present, adverts = messages.read_share_request(settings, request)
    public = _verified_keys(node, session, present, adverts)
    context, groups = draw_groups(
        settings, public if settings.groups > 1 else dict.fromkeys(present, b"")
    )
    members = next(group for group in groups if me in group)
    _need(len(members) >= settings.sizes.least, "Too few clients advertised keys.")
    threshold = settings.threshold_of(len(members))
    holders = sorted({*peers_of(settings, members, me), me})
    _need(len(holders) >= threshold, "Too few neighbours advertised keys.")

    seed = os.urandom(shamir.SECRET_BYTES)
    points = [index + 1 for index in holders]
    seed_shares = shamir.split(seed, threshold, points)
    key_shares = shamir.split(session.private_s, threshold, points)
    private_c = x25519.load_private(session.private_c)
    sealed: dict[int, bytes] = {}
    peers: dict[int, bytes] = {}
    own_shares = b""
    for index, seed_share, key_share in zip(holders, seed_shares, key_shares, strict=True):
        if index == me:
            own_shares = seed_share + key_share
            continue
        peer = settings.cohort[index]
        secret = x25519.agree(private_c, public[index][:32])
        outgoing, incoming = keys.share_keys(secret, context, node.id, peer)
        sealed[index] = keys.seal(outgoing, seed_share + key_share, context, node.id, peer)
        peers[index] = public[index][32:] + incoming
    memory.sessions[settings.digest] = replace(
        session,
        stage=DeviceStage.SHARED,
        private_c=b"",
        seed=seed,
        context=context,
        members=members,
        peers=peers,
        shares={me: own_shares},
    )
    commitment = keys.seed_commitment(seed, context, node.id)
    return memory.encode(), messages.share_reply(settings, commitment, sealed)


def _verified_keys(
    node: Node, session: Session, present: Sequence[int], adverts: Mapping[int, bytes]
) -> dict[int, bytes]:
    """Return the pairs of public keys of this device and of all its peers, each of which has signed its own."""
    settings, me = session.settings, _place(node, session.settings)
    _need(me in present, "This device is missing among those who advertised keys.")
    needed = peers_of(settings, present, me)
    _need(set(adverts) == set(needed), "The keys that came are not those of this device's peers.")
    own = x25519.public_of(session.private_c) + x25519.public_of(session.private_s)
    public = {me: own}
    for index, advert in adverts.items():
        public[index], signature = advert[: messages.PAIR_BYTES], advert[messages.PAIR_BYTES :]
        peer = settings.cohort[index]
        statement = messages.key_statement(settings.digest, peer, public[index])
        known = node.guard.roster.key_of(peer)
        if known is None or not verify(known, signature, statement):
            raise Refusal(f"The keys of node {peer} are not signed by it for these settings.")
    halves = [pair[:32] for pair in public.values()] + [pair[32:] for pair in public.values()]
    _need(len(set(halves)) == len(halves), "Two nodes advertise the same key.")
    return public


@dataclass(frozen=True)
class MaskTicket:
    """A checked request for the masked vector: what is needed when the vector is there."""

    settings: PairwiseSettings
    memory: DeviceState
    session: Session
    add: tuple[bytes, ...]  # keys of the masks that are added to the vector
    subtract: tuple[bytes, ...]


def open_mask(node: Node, state: bytes, request: bytes, broadcast: bytes) -> MaskTicket:
    """Check everything that can be checked before training starts."""
    memory = DeviceState.decode(state)
    session = memory.at(digest_of(request), DeviceStage.SHARED)
    settings, me = session.settings, _place(node, session.settings)
    alive, sealed = messages.read_mask_request(settings, request)
    if settings.broadcast and settings.broadcast != broadcast:
        raise Refusal("The broadcast is not the one that was announced: its hash differs.")
    _need(me in alive, "This device is missing among those who shared.")
    _need(set(alive) <= set(session.members), "Someone shared who did not advertise keys here.")
    _need(len(alive) >= settings.sizes.least, "Too few clients shared.")
    expected = set(session.peers) & set(alive)
    _need(set(sealed) == expected, "The shares that came are not those of this device's peers.")
    threshold = settings.threshold_of(len(session.members))
    _need(len(expected) + 1 >= threshold, "Too few neighbours shared.")
    shares = dict(session.shares)
    for index, ciphertext in sealed.items():
        peer = settings.cohort[index]
        incoming = session.peers[index][32:]
        shares[index] = keys.unseal(incoming, ciphertext, session.context, peer, node.id)
    # An invalid key of a peer is found here, before anything is charged.
    add = [keys.self_mask_key(session.seed, session.context, broadcast, node.id)]
    subtract: list[bytes] = []
    private_s = x25519.load_private(session.private_s)
    for index in expected:
        peer = settings.cohort[index]
        secret = x25519.agree(private_s, session.peers[index][:32])
        key = keys.pair_mask_key(secret, session.context, broadcast, node.id, peer)
        (add if node.id < peer else subtract).append(key)
    opened = replace(session, broadcast=broadcast, alive=alive, shares=shares)
    return MaskTicket(settings, memory, opened, tuple(add), tuple(subtract))


def spend(node: Node, ticket: MaskTicket) -> bytes:
    """Charge the guard, end the only attempt of the round, and return the state to keep before the train handler runs.

    Whatever happens afterwards, the server gets no second answer for the same round, with the same model or another.
    """
    node.guard.charge(ticket.settings)
    memory = replace(ticket.memory, sessions=dict(ticket.memory.sessions))
    memory.sessions[ticket.settings.digest] = replace(ticket.session, stage=DeviceStage.SPENT)
    return memory.encode()


def mask(ticket: MaskTicket, vector: Ring) -> tuple[bytes, bytes]:
    """Mask the vector, and forget the keys of the masks."""
    session, settings = ticket.session, ticket.settings
    _need(vector.shape == (settings.dim,), f"The vector does not have {settings.dim} numbers.")
    dtype = ring_dtype(settings.bits)
    _need(vector.dtype == dtype, f"The vector is not of type {dtype}.")
    if settings.bits < 8 * dtype.itemsize and int(vector.max()) >> settings.bits:
        raise Refusal(f"A number of the vector does not fit into {settings.bits} bits.")
    masked = np.array(vector)
    apply_masks(masked, ticket.add, ticket.subtract)
    memory = replace(ticket.memory, sessions=dict(ticket.memory.sessions))
    memory.sessions[settings.digest] = replace(
        session, stage=DeviceStage.MASKED, private_s=b"", seed=b"", peers={}
    )
    packed = pack(reduce(masked, settings.modulus), settings.bits)
    return memory.encode(), messages.mask_reply(settings, packed)


def sign(node: Node, state: bytes, request: bytes) -> tuple[bytes, bytes]:
    """Sign the survivor list, once per round."""
    memory = DeviceState.decode(state)
    session = memory.at(digest_of(request), DeviceStage.MASKED)
    settings = session.settings
    _need(settings.consistency, "The round was announced without signatures on survivors.")
    survivors = messages.read_sign_request(settings, request)
    _check_survivors(node, session, survivors)
    node.guard.endorse(settings, _ids(settings, survivors))
    statement = survivor_statement(session, survivors)
    memory.sessions[settings.digest] = replace(
        session, stage=DeviceStage.SIGNED, signed=hashlib.sha256(statement).digest()
    )
    return memory.encode(), messages.sign_reply(settings, node.guard.identity.sign(statement))


def unmask(node: Node, state: bytes, request: bytes) -> tuple[bytes, bytes]:
    """Reveal one share per peer and forget the round."""
    memory = DeviceState.decode(state)
    digest = digest_of(request)
    session = memory.at(digest, DeviceStage.MASKED, DeviceStage.SIGNED)
    settings = session.settings
    survivors, signatures = messages.read_unmask_request(settings, request)
    _check_survivors(node, session, survivors)
    if settings.consistency:
        memory.at(digest, DeviceStage.SIGNED)
        statement = survivor_statement(session, survivors)
        if hashlib.sha256(statement).digest() != session.signed:
            raise Refusal("The survivor list is not the one that this device signed.")
        _need(set(signatures) <= set(survivors), "Someone signed who is not a survivor.")
        quorum = settings.quorum_of(len(session.members))
        _need(len(signatures) >= quorum, f"Fewer than {quorum} survivors signed the list.")
        for index, signature in signatures.items():
            peer = settings.cohort[index]
            known = node.guard.roster.key_of(peer)
            if known is None or not verify(known, signature, statement):
                raise Refusal(f"Node {peer} did not sign this survivor list.")
    elif signatures:
        raise Refusal("Signatures came in a round that was announced without them.")
    node.guard.settle(settings, _ids(settings, survivors))
    survived = set(survivors)
    revealed = {
        index: both[: shamir.SHARE_BYTES] if index in survived else both[shamir.SHARE_BYTES :]
        for index, both in session.shares.items()
    }
    del memory.sessions[digest]
    return memory.encode(), messages.unmask_reply(settings, revealed)


def peers_of(settings: PairwiseSettings, present: Sequence[int], me: int) -> list[int]:
    """Return the positions of the present clients with whom `me` exchanges keys."""
    if settings.complete:
        return [index for index in present if index != me]
    ring = neighbours(settings.n, settings.degree, settings.nonce, me)
    return sorted(set(ring) & set(present))


def survivor_statement(session: Session, survivors: Sequence[int]) -> bytes:
    """Return what a device signs about the survivors: the round, the model, and both lists."""
    n = session.settings.n
    return messages.survivor_statement(
        session.context, session.broadcast, bitmap(n, session.alive), bitmap(n, survivors)
    )


def _check_survivors(node: Node, session: Session, survivors: Sequence[int]) -> None:
    settings = session.settings
    _need(_place(node, settings) in survivors, "This device is missing among the survivors.")
    _need(set(survivors) <= set(session.alive), "Someone survived who did not share.")
    least = settings.sizes.least
    _need(len(survivors) >= least, f"Fewer than {least} clients survived: nothing is revealed.")


def _place(node: Node, settings: PairwiseSettings) -> int:
    place = settings.index(node.id)
    if place is None:
        raise Refusal(f"Node {node.id} is not in the cohort of the round.")
    return place


def _ids(settings: PairwiseSettings, indices: Sequence[int]) -> tuple[int, ...]:
    return tuple(settings.cohort[index] for index in indices)


def _need(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Refusal(otherwise)
