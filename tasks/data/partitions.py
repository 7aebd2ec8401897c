"""Distributes the examples of a data set over clients.

Every scheme is a function of the targets (or the natural groups), the number of clients and a seed. It uses its own
random generator. Clients get disjoint, sorted indices and at least one example each. Together they have every example,
with two exceptions: `one_example` leaves out the examples beyond one per client, and `pathological` leaves out classes
that no client drew.

Most schemes have a counterpart in flwr-datasets, with the same distribution of examples over clients:

| here | there |
|---|---|
| `iid` | `IidPartitioner` |
| `dirichlet`, `alpha` | `DirichletPartitioner(alpha=..., min_partition_size=0)`; here, an empty client gets one
example |
| `shards`, `shards_per_client` | `ShardPartitioner(num_shards_per_partition=...)` |
| `pathological`, `classes_per_client` | `PathologicalPartitioner(num_classes_per_partition=...)` |
| `linear`, `square`, `exponential` | `LinearPartitioner`, `SquarePartitioner`, `ExponentialPartitioner` |
| `continuous`, `strictness` | `ContinuousPartitioner(strictness=...)`, by the target |
| `natural` | `NaturalIdPartitioner`, by the data set's own groups |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedsketch.errors import PartitionError

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

_BY_CLASS = ("dirichlet", "shards", "pathological")
# The logarithm of a client's size, up to a constant, by its number, counted from 1. The exponential itself would
# overflow.
_SIZE: dict[str, Callable[[_Floats], _Floats]] = {
    "linear": np.log,
    "square": lambda number: 2 * np.log(number),
    "exponential": lambda number: number,
}
SCHEMES = ("iid", *_BY_CLASS, "by_size", *_SIZE, "continuous", "natural", "one_example")


def partition(
    targets: torch.Tensor,
    clients: int,
    scheme: str,
    seed: int,
    *,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    classes_per_client: int = 2,
    exponent: float = 1.0,
    strictness: float = 1.0,
    groups: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Return the indices of each client's examples.

    - `iid`: a random split; sizes differ by at most one.
    - `dirichlet`: each class is split by shares drawn from Dirichlet(alpha). A small alpha gives more skew.
    - `shards`: examples are sorted by class and cut into equal shards. Each client gets `shards_per_client` random
      shards (McMahan et al. 2017, the pathological split).
    - `pathological`: each client draws `classes_per_client` classes. Each class is split evenly over the clients that
      drew it (Li et al. 2022).
    - `by_size`: a random split; sizes fall like rank ** -exponent, and client 0 has the most.
    - `linear`, `square`, `exponential`: a random split; the size of client i, counted from 1, is proportional to i, i
      ** 2 or exp(i).
    - `continuous`: examples are sorted by strictness * standardised target + (1 - strictness) * a standard normal
      draw, and cut into equal parts.
    - `natural`: client i has the examples of the i-th of the `groups`, in the order of their numbers.
    - `one_example`: one random example per client.
    """
    examples = len(targets)
    if scheme not in SCHEMES:
        raise PartitionError(
            f"There is no partition {scheme!r}: choose one of {', '.join(SCHEMES)}."
        )
    if not 1 <= clients <= examples:
        raise PartitionError(
            f"{examples:,} examples cannot be distributed over {clients:,} clients with at least one "
            f"each: choose between 1 and {examples:,} clients."
        )
    if scheme in _BY_CLASS and (targets.ndim != 1 or targets.is_floating_point()):
        raise PartitionError(
            f"data/partition={scheme} distributes classes, and the examples here have none: choose data/partition=iid "
            "or by_size."
        )
    labels = targets.cpu().numpy()
    rng = np.random.default_rng(seed)
    if scheme == "iid":
        owner = _scattered(rng, _equal_parts(examples, clients))
    elif scheme == "dirichlet":
        owner = _without_empty_clients(_dirichlet(rng, labels, clients, alpha), clients)
    elif scheme == "shards":
        owner = _shards(rng, labels, clients, shards_per_client)
    elif scheme == "pathological":
        owner = _pathological(rng, labels, clients, classes_per_client)
    elif scheme == "by_size":
        sizes = _power_law(examples, clients, exponent)
        owner = _scattered(rng, np.repeat(np.arange(clients), sizes))
    elif scheme in _SIZE:
        owner = _scattered(rng, np.repeat(np.arange(clients), _rising(examples, clients, scheme)))
    elif scheme == "continuous":
        owner = _continuous(rng, labels, clients, strictness)
    elif scheme == "natural":
        owner = _natural(groups, clients)
    else:
        chosen = torch.from_numpy(rng.permutation(examples)[:clients])
        return [index.clone() for index in torch.split(chosen, 1)]
    return _by_owner(owner, clients)


def class_histogram(
    targets: torch.Tensor, parts: Sequence[torch.Tensor], classes: int
) -> torch.Tensor:
    """Return how many examples of each class each client has: (clients, classes)."""
    sizes = torch.tensor([len(part) for part in parts])
    owner = torch.arange(len(parts)).repeat_interleave(sizes)
    cells = owner * classes + targets.cpu()[torch.cat(list(parts))]
    return torch.bincount(cells, minlength=len(parts) * classes).view(len(parts), classes)


def _scattered(rng: np.random.Generator, owner_by_position: _Ints) -> _Ints:
    """Return the owners in random order."""
    return rng.permutation(owner_by_position)


def _equal_parts(examples: int, clients: int) -> _Ints:
    """Return the owner of each position. Sizes differ by at most one."""
    return np.arange(examples) * clients // examples


def _sorted_by_class(rng: np.random.Generator, labels: _Ints) -> _Ints:
    """Return the indices of the examples class by class, in random order within a class."""
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def _dirichlet(rng: np.random.Generator, labels: _Ints, clients: int, alpha: float) -> _Ints:
    if not (math.isfinite(alpha) and alpha > 0):
        raise PartitionError(f"The Dirichlet partition needs alpha above 0, got {alpha}.")
    order = _sorted_by_class(rng, labels)
    owners = []
    for size in np.unique(labels, return_counts=True)[1]:
        proportions = rng.dirichlet(np.full(clients, alpha))
        ends = np.round(np.cumsum(proportions) * size).astype(np.int64)
        ends[-1] = size  # the sum of the proportions is 1 only up to rounding
        owners.append(np.repeat(np.arange(clients), np.diff(ends, prepend=0)))
    owner = np.empty_like(order)
    owner[order] = np.concatenate(owners)
    return owner


def _without_empty_clients(owner: _Ints, clients: int) -> _Ints:
    """Give each client without examples one example of the clients that have the most.

    The examples of each client are ranked from 0. Taking those with the highest ranks is the same as always taking one
    from the client that is the largest at the moment. There are at least as many examples of rank 1 or more as empty
    clients, so no client loses its last example.
    """
    sizes = np.bincount(owner, minlength=clients)
    empty = np.flatnonzero(sizes == 0)
    order = np.argsort(owner, kind="stable")
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    given = order[np.argsort(-rank, kind="stable")[: len(empty)]]
    repaired = owner.copy()
    repaired[given] = empty
    return repaired


def _shards(rng: np.random.Generator, labels: _Ints, clients: int, shards_per_client: int) -> _Ints:
    shards = clients * shards_per_client
    if shards_per_client < 1 or shards > len(labels):
        raise PartitionError(
            f"{len(labels):,} examples cannot be cut into {clients:,} x {shards_per_client:,} "
            f"shards: choose between 1 and {len(labels) // clients:,} shards per client."
        )
    client_of_shard = rng.permutation(shards) // shards_per_client
    owner = np.empty(len(labels), dtype=np.int64)
    shard_by_position = np.arange(len(labels)) * shards // len(labels)
    owner[_sorted_by_class(rng, labels)] = client_of_shard[shard_by_position]
    return owner


def _pathological(
    rng: np.random.Generator, labels: _Ints, clients: int, classes_per_client: int
) -> _Ints:
    """Return the owner of each example, or -1 if no client drew its class."""
    classes, sizes = np.unique(labels, return_counts=True)
    if not 1 <= classes_per_client <= len(classes):
        raise PartitionError(
            f"A client cannot have {classes_per_client} of {len(classes)} classes: "
            f"set data.partition.classes_per_client between 1 and {len(classes)}."
        )
    drawn = np.zeros((clients, len(classes)), dtype=bool)
    for client in range(clients):
        drawn[client, rng.choice(len(classes), classes_per_client, replace=False)] = True
    short = np.flatnonzero(drawn.sum(0) > sizes)
    if len(short):
        worst = short[0]
        raise PartitionError(
            f"{drawn[:, worst].sum():,} clients drew class {classes[worst]}, which has {sizes[worst]:,} examples: "
            "lower clients.total or data.partition.classes_per_client, or take another seed."
        )
    owner = np.full(len(labels), -1)
    order = _sorted_by_class(rng, labels)
    for ours, positions in zip(drawn.T, np.split(order, np.cumsum(sizes)[:-1]), strict=True):
        takers = np.flatnonzero(ours)
        if len(takers):
            owner[positions] = takers[_equal_parts(len(positions), len(takers))]
    return owner


def _rising(examples: int, clients: int, scheme: str) -> _Ints:
    """Return sizes that add up to `examples`. Shares are rounded down, and the last client, which has the most, gets
    the rest."""
    logarithms = _SIZE[scheme](np.arange(1.0, clients + 1))
    weights = np.exp(logarithms - logarithms[-1])
    # As in _power_law, a share that is a whole number is not rounded down.
    sizes = np.floor(examples * weights / weights.sum() + 1e-9).astype(np.int64)
    sizes[-1] += examples - sizes.sum()
    if sizes[0] < 1:
        raise PartitionError(
            f"With data/partition={scheme}, the smallest of {clients:,} clients would have none of {examples:,} "
            "examples: lower clients.total, or choose data/partition=by_size."
        )
    return sizes


def _continuous(
    rng: np.random.Generator, values: npt.NDArray[Any], clients: int, strictness: float
) -> _Ints:
    if not 0 <= strictness <= 1:
        raise PartitionError(
            f"data.partition.strictness must lie between 0 and 1, got {strictness}."
        )
    if values.ndim != 1:
        raise PartitionError(
            "data/partition=continuous needs one target per example, and here are several: choose data/partition=iid."
        )
    targets = values.astype(np.float64)
    deviation = targets.std()
    if deviation < 1e-6 and strictness:
        raise PartitionError(
            "All targets are equal, so data/partition=continuous has nothing to sort by: choose data/partition=iid."
        )
    standardised = (targets - targets.mean()) / max(deviation, 1e-6)
    blended = strictness * standardised + (1 - strictness) * rng.standard_normal(len(targets))
    # Equal targets are ordered at random. Otherwise the order in the file would decide.
    order = np.lexsort((rng.permutation(len(targets)), blended))
    owner = np.empty(len(targets), dtype=np.int64)
    owner[order] = _equal_parts(len(targets), clients)
    return owner


def _natural(groups: torch.Tensor | None, clients: int) -> _Ints:
    if groups is None:
        raise PartitionError(
            "data/partition=natural needs a data set that knows its groups, and this one does not: choose "
            "data/partition=iid."
        )
    names, owner = np.unique(groups.cpu().numpy(), return_inverse=True)
    if len(names) != clients:
        raise PartitionError(
            f"The data have {len(names):,} natural groups, and each is a client: "
            f"set clients.total={len(names)}, and clients.per_round to that or less."
        )
    return owner.astype(np.int64)


def _power_law(examples: int, clients: int, exponent: float) -> _Ints:
    """Return sizes that add up to `examples`: one for each client, and the rest by the power law."""
    if not (math.isfinite(exponent) and exponent >= 0):
        raise PartitionError(f"The exponent of the sizes must be at least 0, got {exponent}.")
    weights = np.arange(1, clients + 1) ** -float(exponent)
    rest = examples - clients
    # With 1e-9 added, a share that is a whole number is not rounded down, on any processor.
    sizes = 1 + np.floor(rest * weights / weights.sum() + 1e-9).astype(np.int64)
    sizes[: examples - sizes.sum()] += 1  # rounding down leaves fewer than `clients` examples
    return sizes


def _by_owner(owner: _Ints, clients: int) -> list[torch.Tensor]:
    """Return the examples of each client. Those of owner -1 belong to no client."""
    unassigned = int((owner < 0).sum())
    order = torch.from_numpy(np.argsort(owner, kind="stable")[unassigned:])
    sizes = np.bincount(owner[owner >= 0], minlength=clients).tolist()
    # Copied, because serialising a slice would include the indices of all clients.
    return [part.clone() for part in torch.split(order, sizes)]
