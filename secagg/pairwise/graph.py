"""Who shares masks with whom.

Complete graph: everybody does, in groups and in cohorts of up to 1,024 clients. Whatever a server says
about dropouts, those who remain share masks with each other, so no smaller sum than theirs comes out.
Rounds with signed survivor lists use nothing else.

Harary ring in random order: each client is joined to the `degree` clients nearest to it, as in Bell et
al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead" (CCS 2020). Rounds without
signed survivor lists use it above 128 clients, to save time and bytes. It holds against an
honest-but-curious server only. One that lies cuts the ring: it says that the `degree` clients on both
sides of a segment dropped out and gets the segment's own sum (tests/secagg/test_isolation.py), or it
draws orders until its own clients surround a victim.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..errors import SettingsError

LARGEST_COMPLETE = 1024  # clients that all exchange masks: bounds what settings can ask of a device
RINGS_ABOVE = 128  # clients: in smaller cohorts a ring saves little
SECURITY_BITS = 40  # sigma: a set of corrupt clients breaks the round with probability <= 2^-40
LARGEST_DEGREE = 512  # bounds the search that a device makes for settings from a server
FAILURE_BITS = 20  # eta: the round fails through dropouts with probability <= 2^-20

if TYPE_CHECKING:
    from .settings import PairwiseSettings


def neighbours(n: int, degree: int, order_seed: bytes, index: int) -> list[int]:
    """Return the positions in the cohort that `index` exchanges masks and shares with, ascending."""
    if degree == n - 1:
        return [i for i in range(n) if i != index]
    order, place = _ring(n, order_seed)
    here = place[index]
    half = degree // 2
    steps = [step for step in range(-half, half + 1) if step]
    return sorted(order[(here + step) % n] for step in steps)


@lru_cache(maxsize=4)
def _ring(n: int, order_seed: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a public permutation of range(n) and its inverse, from the seed of the round."""
    words = hashlib.shake_256(b"secagg/1 ring" + order_seed).digest(8 * n)
    order = np.argsort(np.frombuffer(words, dtype="<u8"), kind="stable")
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    return tuple(order.tolist()), tuple(place.tolist())


@lru_cache(maxsize=64)
def ring_parameters(n: int, colluders: int, drops: int) -> tuple[int, int]:
    """Return the smallest even degree and its smallest threshold for `n` clients (Bell et al., section 3.3).

    Guarantee, against a semi-honest server with `colluders` of the clients, each client being a
    unit: except with probability 2^-40 over the ring's order the honest survivors stay connected
    and no honest client has `threshold` corrupt neighbours; and with at most `drops` random
    dropouts every client keeps `threshold` live neighbours except with probability 2^-20.
    """
    for degree in range(2, min(n, LARGEST_DEGREE + 1), 2):
        if not _connected(n, degree, colluders + drops):
            continue
        low, high = threshold_range(n, degree, colluders, drops)
        if low <= high:
            return degree, low
    raise SettingsError(
        f"No ring of {n} clients survives {drops} drops and {colluders} colluders: "
        "lower one of them or take the complete graph."
    )


@lru_cache(maxsize=64)
def threshold_range(n: int, degree: int, colluders: int, drops: int) -> tuple[int, int]:
    """Return the thresholds t1 < t <= t2 that are safe and live at this degree, as (t1 + 1, t2)."""
    # P[HG(n, colluders, degree) > t1] <= 2^-(sigma+1) / n
    bound = 2.0 ** -(SECURITY_BITS + 1) / n
    tail, low = 0.0, 1
    for count in range(degree, -1, -1):
        tail += _hypergeometric(n, colluders, degree, count)
        if tail > bound:
            low = count + 1
            break
    # P[HG(n, n - drops, degree) < t2] <= 2^-eta / n
    bound = 2.0**-FAILURE_BITS / n
    tail, high = 0.0, degree
    for count in range(degree + 1):
        tail += _hypergeometric(n, n - drops, degree, count)
        if tail > bound:
            high = count
            break
    # Also a majority of the holders, so that two disjoint sets of neighbours never both reach the threshold.
    return max(low, (degree + 1) // 2 + 1), high


def _connected(n: int, degree: int, absent: int) -> bool:
    """Return whether the survivors' graph is connected: n (n-k-1)/2 * B! (n-k)! / (n! (B-k)!) <= 2^-(sigma+1)."""
    if absent < degree or degree >= n - 1:
        return True
    log_probability = (
        math.log(n)
        + math.log((n - degree - 1) / 2)
        + math.lgamma(absent + 1)
        + math.lgamma(n - degree + 1)
        - math.lgamma(n + 1)
        - math.lgamma(absent - degree + 1)
    )
    return log_probability <= -(SECURITY_BITS + 1) * math.log(2)


def _hypergeometric(n: int, marked: int, draws: int, count: int) -> float:
    """Return the probability that `draws` of `n` items without replacement hold `count` of the marked ones."""
    if count > marked or draws - count > n - marked:
        return 0.0
    log_probability = (
        _log_choose(marked, count) + _log_choose(n - marked, draws - count) - _log_choose(n, draws)
    )
    return math.exp(log_probability)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def draw_groups(
    settings: PairwiseSettings, public_keys: Mapping[int, bytes]
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
