"""Disjoint groups of a cohort, one sum each, drawn from what all participants contributed.

The draw is a permutation seeded by the hash of the settings and of every participant's fresh
public keys, cut into groups whose sizes differ by at most one. Each device recomputes it from the
signed keys, and the hash goes into all its keys, so devices that were shown different
participants cannot finish a group together.

What this achieves: the server cannot choose an assignment, nor know it before the devices drew
their keys. What it does not: a server may call up to the tolerated number of clients "dropped"
and keep the most convenient of the resulting draws, and a colluding client that sees the other
keys first may redraw its own. Hence every group's threshold and quorum count *all* assumed
colluders as its own members (see settings.py): steering can gather them in one group but gains
nothing there.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping

import numpy as np

from .settings import RoundSettings


def draw_groups(
    settings: RoundSettings, public_keys: Mapping[int, bytes]
) -> tuple[bytes, list[tuple[int, ...]]]:
    """Return the context of the round's keys and the groups, as ascending positions in the cohort.

    `public_keys` has the concatenated fresh keys of every participant by its position. Without
    groups the context is the hash of the settings, since a ring's members do not see all keys.
    """
    members = sorted(public_keys)
    if settings.groups == 1:
        return settings.digest, [tuple(members)]
    sha = hashlib.sha256(b"secagg/1 groups" + settings.digest)
    for index in members:
        sha.update(struct.pack("<I", index) + public_keys[index])
    context = sha.digest()
    words = hashlib.shake_256(b"secagg/1 draw" + context).digest(8 * len(members))
    order = np.argsort(np.frombuffer(words, dtype="<u8"), kind="stable").tolist()
    shuffled = [members[place] for place in order]
    return context, [tuple(sorted(shuffled[g :: settings.groups])) for g in range(settings.groups)]
