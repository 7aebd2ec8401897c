"""Releases: what leaves a device or a server, as frozen data. Nothing is computed here.

A strategy states one `Release` per round and adversary; `privacy.accounting.accountant` turns it into an epsilon or
refuses.

Conventions, the same everywhere in this project:
- The bound C of a release is the largest norm that one unit can contribute to the sum (its clip). Noise multiplier =
  standard deviation of the noise of the SUM over C. A bound C is the sensitivity under add/remove and zero-out
  adjacency; under replace-one the sensitivity is 2C, and the accountant doubles it, not the caller.
- An infinite epsilon (noise 0) is a legal statement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar


class Unit(StrEnum):
    """Whose data is protected: all of a client's, or one example's."""

    CLIENT = "client"
    EXAMPLE = "example"


class DrawnBy(StrEnum):
    """Who makes a secret draw: the coordinator of the rounds, or each device among its own examples, which then tells
    nobody."""

    COORDINATOR = "coordinator"
    DEVICE = "device"


class Adjacency(StrEnum):
    """Which two data sets must look alike.

    ADD_OR_REMOVE: one unit is there or not. ZERO_OUT: one unit's contribution is replaced by zero while everything
    public (the number of units, the noise its device adds) stays; the natural relation when devices bring the noise
    themselves. REPLACE_ONE: one unit is replaced by any other.
    """

    ADD_OR_REMOVE = "add_or_remove"
    ZERO_OUT = "zero_out"
    REPLACE_ONE = "replace_one"


@dataclass(frozen=True)
class Adversary:
    """Who sees the release: `Adversary.MODEL`, `.client(colluders=A)`, `.SERVER`, `.server(colluders=A)` or
    `.EAVESDROPPER`.

    `model` is everyone who sees the models of every round and nothing else. `client` is any `colluders=A` fellow
    participants together: they see what devices see (the models, and under secure aggregation the list of the cohort)
    and know the noise that they brought, so that the caller states the noise of the others and a sampling that is still
    secret from them; the server is honest towards them. `server` sees every sum and picks the cohort, so that no
    sampling by the coordinator counts against it. With `colluders=A` it also knows the noise of A clients: the caller
    states the noise of the other n - D - A. `eavesdropper` sees the sums in transit and neither the sketching matrix
    nor any model: the only one against whom the R-secret reading of a sketched Gaussian holds.
    """

    name: str
    colluders: int = 0

    MODEL: ClassVar[Adversary]
    CLIENT: ClassVar[Adversary]
    SERVER: ClassVar[Adversary]
    EAVESDROPPER: ClassVar[Adversary]

    def __post_init__(self) -> None:
        if self.name not in ("model", "client", "server", "eavesdropper"):
            raise ValueError(
                f"an adversary is 'model', 'client', 'server' or 'eavesdropper', not {self.name!r}."
            )
        if self.colluders < 0 or (self.colluders and self.name not in ("client", "server")):
            raise ValueError(
                "only clients and the server can have colluding clients, zero or more of them."
            )

    @classmethod
    def client(cls, colluders: int = 1) -> Adversary:
        return cls("client", colluders)

    @classmethod
    def server(cls, colluders: int = 0) -> Adversary:
        return cls("server", colluders)

    @classmethod
    def parse(cls, text: str) -> Adversary:
        """The inverse of `str`: 'model', 'client+1', 'server', 'server+20'."""
        name, _, colluders = text.partition("+")
        return cls(name, int(colluders) if colluders else 0)

    def __str__(self) -> str:
        return f"{self.name}+{self.colluders}" if self.colluders else self.name


Adversary.MODEL = Adversary("model")
Adversary.CLIENT = Adversary("client")
Adversary.SERVER = Adversary("server")
Adversary.EAVESDROPPER = Adversary("eavesdropper")


@dataclass(frozen=True)
class NoSampling:
    """Every unit may be in every release."""


@dataclass(frozen=True)
class Poisson:
    """Each `of` (client or example) is in the release independently with probability `rate`, by a secret draw.

    What the draw gave must show in nothing but the sum. So divide by the expected number of units, not by the realised
    one (which the adversary must not see), and let the noise of the sum be the same for every draw: devices that bring
    the noise share it among the realised cohort. Where the size of the cohort is public, state
    WithoutReplacement(realised size, population). A draw by the device itself is a secret from the coordinator too.

    `missed` is the probability, per release, that a unit is drawn together with others among whom its draw shows: where
    a cohort that is too small is not asked, and noise alone passes for it. `privacy.accounting.poisson.missed` computes
    it.
    """

    rate: float
    of: Unit = Unit.CLIENT
    drawn_by: DrawnBy = DrawnBy.COORDINATOR
    missed: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"a sampling rate lies between 0 and 1; {self.rate} does not.")
        if self.drawn_by is DrawnBy.DEVICE and self.of is not Unit.EXAMPLE:
            raise ValueError("a device draws among its own examples: state of=Unit.EXAMPLE.")
        if not 0.0 <= self.missed <= 1.0:
            raise ValueError(f"missed is a probability; {self.missed} is none.")


@dataclass(frozen=True)
class WithoutReplacement:
    """`size` of `population` clients (or examples: `of`), every subset equally likely, by a secret draw; both numbers
    are public."""

    size: int
    population: int
    of: Unit = Unit.CLIENT

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.population:
            raise ValueError(
                f"cannot draw {self.size} of {self.population} units without replacement."
            )


@dataclass(frozen=True)
class FullPasses:
    """Each unit is in at most one of every `rounds_per_pass` consecutive releases, whatever was released before.

    One release is recorded per round; a pass then costs what its most expensive round costs. The order of the units
    must not depend on earlier outputs (shuffle as you like). Removing a unit from a shuffled list shifts all that
    follow it into other rounds, so the adjacency is zero-out or replace-one, not add/remove.
    """

    rounds_per_pass: int

    def __post_init__(self) -> None:
        if self.rounds_per_pass < 1:
            raise ValueError("a pass takes at least one round.")


Sampling = NoSampling | Poisson | WithoutReplacement | FullPasses


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, not {value}.")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must not be negative, but is {value}.")


@dataclass(frozen=True)
class Gaussian:
    """Sum plus N(0, (noise_multiplier * C)^2) per coordinate."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _not_negative(noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True)
class Skellam:
    """Integer sum plus Skellam noise: `variance` is that of the noise of the SUM, everything in integer units.

    The sensitivities bound one unit's integer vector (`privacy.mechanisms.encoding` makes and enforces both).
    """

    variance: float
    l2_sensitivity: float
    l1_sensitivity: float

    def __post_init__(self) -> None:
        _not_negative(variance=self.variance)
        _positive(l2_sensitivity=self.l2_sensitivity, l1_sensitivity=self.l1_sensitivity)


@dataclass(frozen=True)
class CoordinateSampledGaussian:
    """L2-CSGM: each client keeps each coordinate with probability `rate` (a secret mask of its own); the sum of the
    kept, unscaled values plus N(0, sigma^2). One unit's vector has L2 norm at most `l2` and entries of at most `linf`.

    With a `column_norm` the noise is correlated over the rounds of a pass as in `MatrixGaussian`, and sigma is that of
    Z."""

    sigma: float
    rate: float
    l2: float
    linf: float
    column_norm: float | None = None

    def __post_init__(self) -> None:
        _not_negative(sigma=self.sigma)
        _positive(l2=self.l2, linf=self.linf, column_norm=self.column_norm or 1.0)
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"a sampling rate lies between 0 and 1; {self.rate} does not.")


@dataclass(frozen=True)
class MatrixGaussian:
    """Correlated noise over one pass: the release of round t is row t of A X + B Z with A = B C, each unit in one row
    of X.

    `noise_multiplier` = standard deviation of Z over the clip of a row; `column_norm` = largest L2 norm of a column of
    C. Either Z is drawn anew for every pass, or one C with at most as many diagonals as a pass has rounds serves all
    passes, and every unit's rounds are at least a pass apart: `privacy.accounting.factorisation` has the proofs.
    """

    noise_multiplier: float
    column_norm: float

    def __post_init__(self) -> None:
        _not_negative(noise_multiplier=self.noise_multiplier)
        _positive(column_norm=self.column_norm)


class SketchKnowledge(StrEnum):
    """Whether those who see the release know the sketching matrix R."""

    PUBLIC = "r_public"
    SECRET = "r_secret"


@dataclass(frozen=True)
class SketchedGaussian:
    """A sum of b-dimensional Gaussian sketches R x plus N(0, (noise_multiplier * C)^2) per coordinate.

    `r_public`: C is the clip of the SKETCH, applied after sketching. `r_secret`: C is the clip of the update before
    sketching, R has `rows` rows of N(0, 1/rows) entries, and neither it nor a model made with it is seen by the
    adversary; at most `clients` clipped updates are summed; it is released once. See `privacy.accounting.sketched`.
    """

    noise_multiplier: float
    rows: int
    clients: int
    knowledge: SketchKnowledge

    def __post_init__(self) -> None:
        _not_negative(noise_multiplier=self.noise_multiplier)
        _positive(rows=self.rows, clients=self.clients)


NoiseLaw = Gaussian | Skellam | CoordinateSampledGaussian | MatrixGaussian | SketchedGaussian


@dataclass(frozen=True)
class Release:
    """One thing seen by one adversary, once; or `times` of one kind in a row, such as the noised steps of a local
    training.

    Each of those has noise and a secret draw of its own, and may depend on what the ones before it showed.
    """

    mechanism: NoiseLaw
    sampling: Sampling
    adjacency: Adjacency
    unit: Unit
    adversary: Adversary
    times: int = 1

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"a release is made at least once, not {self.times} times.")
        if self.times > 1 and isinstance(self.sampling, FullPasses):
            raise ValueError("a unit is in one release of a pass: state times=1 for full passes.")

    def with_known_cohort(self) -> Release:
        """The same for an adversary who knows whom the coordinator has drawn. What a device draws itself stays its
        secret, and a full pass rests on none."""
        return self if isinstance(self.sampling, FullPasses) else self.once_more()

    def once_more(self) -> Release:
        """The same for a round that is played again with the same cohort: its draw hides nobody a second time, and no
        pass holds it."""
        if getattr(self.sampling, "drawn_by", None) is DrawnBy.DEVICE:
            return self
        return replace(self, sampling=NoSampling())
