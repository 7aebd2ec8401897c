"""Removes masks from a sum: the self masks of those in it, and the pairwise masks of those who dropped out.

Secrets are joined from the revealed shares one at a time, and masks are expanded in blocks, so
that memory stays that of one vector. A joined secret is compared with what its owner published (a
commitment, a public key): a wrong share stops the round instead of giving a wrong sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import x25519
from ..errors import Malformed
from ..packing import Ring
from . import keys, shamir
from .device import peers_of
from .masking import apply_masks
from .settings import PairwiseSettings


class Secrets:
    """The secrets of clients, joined from what the holders revealed.

    `revealed` maps a holder's position to its shares by the owner's position.
    """

    def __init__(self, revealed: Mapping[int, Mapping[int, bytes]], threshold: int) -> None:
        self._threshold = threshold
        self._by_owner: dict[int, dict[int, bytes]] = {}
        self._weights: dict[tuple[int, ...], list[int]] = {}
        for holder in sorted(revealed):
            for owner, share in revealed[holder].items():
                self._by_owner.setdefault(owner, {})[holder] = share

    def holders(self, owner: int) -> int:
        """Return how many holders revealed a share of the owner's secret."""
        return len(self._by_owner.get(owner, {}))

    def join(self, owner: int) -> bytes:
        """Return the owner's secret."""
        shares = self._by_owner[owner]
        points = tuple(holder + 1 for holder in list(shares)[: self._threshold])
        if points not in self._weights:
            self._weights[points] = shamir.weights(points)
        return shamir.join([shares[point - 1] for point in points], self._weights[points])


def remove_masks(
    settings: PairwiseSettings,
    context: bytes,
    broadcast: bytes,
    total: Ring,
    secrets: Secrets,
    *,
    survivors: Sequence[int],
    dead: Sequence[int],
    public: Mapping[int, bytes],
    commitments: Mapping[int, bytes],
) -> None:
    """Turn the sum of the survivors' masked vectors into the sum of their vectors, in place."""
    add: list[bytes] = []
    subtract: list[bytes] = []
    for index in survivors:
        node = settings.cohort[index]
        seed = secrets.join(index)
        if keys.seed_commitment(seed, context, node) != commitments[index]:
            raise Malformed(f"the shares of node {node} do not give the seed it committed to")
        subtract.append(keys.self_mask_key(seed, context, broadcast, node))
    for index in dead:
        node = settings.cohort[index]
        private = secrets.join(index)
        if x25519.public_of(private) != public[index]:
            raise Malformed(f"the shares of node {node} do not give its private key")
        loaded = x25519.load_private(private)
        for peer_index in peers_of(settings, survivors, index):
            peer = settings.cohort[peer_index]
            secret = x25519.agree(loaded, public[peer_index])
            key = keys.pair_mask_key(secret, context, broadcast, node, peer)
            # The survivor added this mask if its id is the lower one.
            (subtract if peer < node else add).append(key)
    apply_masks(total, add, subtract)
