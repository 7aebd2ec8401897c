"""How the examples of a data set are spread over clients.

Every scheme is a function of the targets, the number of clients and a seed, on its own generator.
Clients get disjoint, sorted indices and at least one example each. Together they hold every
example, except under `one_example`, which leaves out what exceeds the number of clients.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from fedsketch.tasks.errors import PartitionError

SCHEMES = ("iid", "dirichlet", "shards", "by_size", "one_example")
BY_CLASS = ("dirichlet", "shards")  # those that look at targets

_Ints = npt.NDArray[np.int64]


def partition(
    targets: torch.Tensor,
    clients: int,
    scheme: str,
    seed: int,
    *,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    exponent: float = 1.0,
) -> list[torch.Tensor]:
    """Indices of the examples of each client.

    - `iid`: a random split, sizes equal up to one.
    - `dirichlet`: each class is split by shares drawn from Dirichlet(alpha); small alpha, more skew.
    - `shards`: examples sorted by class, cut into equal shards, `shards_per_client` dealt to each
      client (McMahan et al. 2017, the pathological split).
    - `by_size`: a random split; sizes fall like rank ** -exponent, client 0 has the most.
    - `one_example`: one random example per client.
    """
    labels = targets.cpu().numpy()
    examples = len(labels)
    if scheme not in SCHEMES:
        raise PartitionError(
            f"There is no partition {scheme!r}: choose one of {', '.join(SCHEMES)}."
        )
    if not 1 <= clients <= examples:
        raise PartitionError(
            f"{examples:,} examples cannot be spread over {clients:,} clients with at least one "
            f"each: choose between 1 and {examples:,} clients."
        )
    rng = np.random.default_rng(seed)
    if scheme == "iid":
        owner = _scattered(rng, np.arange(examples) * clients // examples)
    elif scheme == "dirichlet":
        owner = _without_empty_clients(_dirichlet(rng, labels, clients, alpha), clients)
    elif scheme == "shards":
        owner = _shards(rng, labels, clients, shards_per_client)
    elif scheme == "by_size":
        sizes = _power_law(examples, clients, exponent)
        owner = _scattered(rng, np.repeat(np.arange(clients), sizes))
    else:
        chosen = torch.from_numpy(rng.permutation(examples)[:clients])
        return [index.clone() for index in torch.split(chosen, 1)]
    return _by_owner(owner, clients)


def class_histogram(
    targets: torch.Tensor, parts: Sequence[torch.Tensor], classes: int
) -> torch.Tensor:
    """How many examples of each class each client has: (clients, classes)."""
    sizes = torch.tensor([len(part) for part in parts])
    owner = torch.arange(len(parts)).repeat_interleave(sizes)
    cells = owner * classes + targets.cpu()[torch.cat(list(parts))]
    return torch.bincount(cells, minlength=len(parts) * classes).view(len(parts), classes)


def _scattered(rng: np.random.Generator, owner_by_position: _Ints) -> _Ints:
    """The same owners, over examples in random order."""
    return rng.permutation(owner_by_position)


def _sorted_by_class(rng: np.random.Generator, labels: _Ints) -> _Ints:
    """Indices of the examples class by class, in random order within a class."""
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def _dirichlet(rng: np.random.Generator, labels: _Ints, clients: int, alpha: float) -> _Ints:
    if not (math.isfinite(alpha) and alpha > 0):
        raise PartitionError(f"The Dirichlet partition needs alpha above 0, got {alpha}.")
    order = _sorted_by_class(rng, labels)
    owners = []
    for size in np.unique(labels, return_counts=True)[1]:
        shares = rng.dirichlet(np.full(clients, alpha))
        ends = np.round(np.cumsum(shares) * size).astype(np.int64)
        ends[-1] = size  # the sum of the shares is 1 only up to rounding
        owners.append(np.repeat(np.arange(clients), np.diff(ends, prepend=0)))
    owner = np.empty_like(order)
    owner[order] = np.concatenate(owners)
    return owner


def _without_empty_clients(owner: _Ints, clients: int) -> _Ints:
    """Gives each client without examples one example of those that have the most.

    The examples are ranked within their client; those with the highest ranks are the ones that
    would be taken by always asking the client that is largest at the moment. There are at least as
    many with rank 1 or more as there are empty clients, so nobody gives away the last.
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


def _power_law(examples: int, clients: int, exponent: float) -> _Ints:
    """Sizes that add up to `examples`: one for each client, the rest by the power law."""
    if not (math.isfinite(exponent) and exponent >= 0):
        raise PartitionError(f"The exponent of the sizes must be at least 0, got {exponent}.")
    weights = np.arange(1, clients + 1) ** -float(exponent)
    rest = examples - clients
    # A share that is a whole number stays whole, whichever way its last bit was rounded on this processor.
    sizes = 1 + np.floor(rest * weights / weights.sum() + 1e-9).astype(np.int64)
    sizes[: examples - sizes.sum()] += 1  # fewer than `clients` are lost by rounding down
    return sizes


def _by_owner(owner: _Ints, clients: int) -> list[torch.Tensor]:
    order = torch.from_numpy(np.argsort(owner, kind="stable"))
    sizes = np.bincount(owner, minlength=clients).tolist()
    # Copies: a slice would take the indices of all clients along wherever it is serialised.
    return [part.clone() for part in torch.split(order, sizes)]
