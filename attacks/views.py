"""What each adversary sees of a round, without what it knows already.

- `model`: the sum that the strategy's `update` receives, on which models depend, and the numbers that come with it.
- `client`: the same, and its own noise: A participants know what they sent, and what devices are told.
- `server`: the sum as it arrives (without masks: every upload), before its own noise is added, and the noise of A
  colluders.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsketch.attacks.canaries import Canary
from fedsketch.attacks.devices import Devices
from fedsketch.attacks.lattice import Lattices
from fedsketch.delivery.parcels import open_steps, open_whole
from fedsketch.strategies.algorithm import Aggregate
from fedsketch.strategies.rounds.coordinator import Coordinator

Vector = NDArray[np.float64]
_DIGITS = 12  # digits of numbers that adversaries are told; further ones are rounding errors


@dataclass(frozen=True)
class Seen:
    """One round, for every canary: how much of the unit vector of its contribution is left in the sum, and the
    contribution's length.

    The length is nan for a canary that is known not to be in the cohort. What is left in the sum is then noise, or nan
    if the canary belongs to no sum. `drawn` says which canaries are in the cohort. `energy` is the squared norm of what
    is left outside of all canaries' directions, in `freedom` dimensions, which is only noise. `size` is that of the
    draw, which adversaries may not know, `asked` is whether the cohort was asked, and `announcement` is what they are
    told about it.
    """

    x: Vector
    length: Vector
    drawn: NDArray[np.bool_]
    energy: float
    freedom: int
    size: int
    asked: bool
    announcement: Hashable


class Contributions:
    """What every canary adds to a sum if it is present, one row for each; their lengths and directions, and a basis."""

    def __init__(self, rows: Vector) -> None:
        self.rows = rows
        self.lengths = np.linalg.norm(rows, axis=1)
        self.units = rows / np.where(self.lengths > 0, self.lengths, 1.0)[:, None]
        _, values, basis = np.linalg.svd(self.units, full_matrices=False)
        self.span = basis[values > 1e-6 * max(float(values[0]), 1e-300)]


PartialSum = tuple[Sequence[int], Vector]


@dataclass(frozen=True)
class Views:
    """The views with this number of colluders of the server, and of fellow clients who share what they see: the first
    clients.

    If the draw of the cohort is a `secret`, canaries that were not drawn are treated like the others.
    """

    colluders: int
    colluding_clients: int
    secret: bool
    lattices: Lattices = field(default_factory=Lattices)

    def of(
        self,
        name: str,
        coordinator: Coordinator,
        devices: Devices,
        round: int,
        aggregate: Aggregate | None,
        contributions: Contributions | None,
        canaries: Sequence[Canary],
        coins: NDArray[np.bool_],
    ) -> Seen:
        """Return what this adversary sees of a round. Without an aggregate, the round was skipped."""
        draw = coordinator.sampler.draw(round)
        drawn = np.array([canary.client in draw for canary in canaries])
        if aggregate is None or contributions is None:
            nothing = np.full(len(canaries), np.nan)
            return Seen(
                nothing,
                nothing,
                ~np.isnan(nothing),
                0.0,
                0,
                len(draw),
                False,
                "passed",
            )
        units, lengths, span = contributions.units, contributions.lengths, contributions.span
        x, energy, freedom = np.full(len(canaries), np.nan), 0.0, 0
        present = np.full(len(canaries), self.secret)
        parts = self._parts(name, coordinator, devices, round, aggregate)
        for members, total in parts:
            inside = np.array([canary.client in members for canary in canaries])
            here = coins & inside
            rest = total - here @ contributions.rows
            present |= inside
            # If noise is correlated, a sum without the canary reveals part of the noise in the sum with it.
            looked = inside | self.secret | (len(parts) == 1)
            x[looked] = (units @ rest + here * lengths)[looked]
            energy += float(rest @ rest - np.square(span @ rest).sum())
            freedom += len(rest) - len(span)
        return Seen(
            x,
            np.where(present, lengths, np.nan),
            drawn,
            energy,
            freedom,
            len(draw),
            coordinator.cohort_size > 0,
            self._announcement(name, coordinator, devices, round, aggregate),
        )

    def _parts(
        self,
        name: str,
        coordinator: Coordinator,
        devices: Devices,
        round: int,
        aggregate: Aggregate,
    ) -> list[PartialSum]:
        """Return the sums that this adversary sees, without the uploads of clients that share theirs with it."""
        if not coordinator.cohort_size:
            return [((), aggregate.sum.double().numpy())]
        assert devices.last is not None
        last = devices.last
        if name == "server":
            parts: list[PartialSum] = [
                (who, last.mechanism.total([vector], round)) for who, vector in last.parts
            ]
        else:
            shown = aggregate.parts or (aggregate,)
            parts = [(part.members, part.sum.double().numpy()) for part in shown]
        friends = {"server": self.colluders, "client": self.colluding_clients}.get(name, 0)
        result: list[PartialSum] = []
        for members, total in parts:
            known = [last.uploads[c] for c in members if c < friends and len(members) > 1]
            result.append((members, total - last.mechanism.total(known, round) if known else total))
        return result

    def _announcement(
        self,
        name: str,
        coordinator: Coordinator,
        devices: Devices,
        round: int,
        aggregate: Aggregate,
    ) -> Hashable:
        """Return every number that may depend on the cohort's size."""
        announcement: list[Hashable] = [
            f"{aggregate.noise_std:.{_DIGITS}g}",
            f"{coordinator.strategy.units(aggregate):.{_DIGITS}g}",
            self.lattices.fitting(coordinator.strategy, round, aggregate.sum.double().numpy()),
        ]
        if name == "client" and coordinator.cohort_size:
            assert devices.last is not None
            announcement += sorted(map(str, devices.last.mechanism.to_record().items()))
            parcels = coordinator.strategy.parcels
            if parcels is not None:
                last = parcels.parcel(parcels.version - 1)
                steps = [] if open_whole(last) is not None else open_steps(last)[1]
                announcement += [f"{step.round} {step.deviation}" for step in steps]
        return tuple(announcement)
