"""Releases: frozen data that describe what an adversary sees of a round. Nothing is computed here.

A strategy states one `Release` per round and adversary. `privacy.accounting.accountant` computes epsilon from the
releases, or refuses them.

Conventions that hold everywhere in this project:

- The bound C of a release is the largest norm that one unit can contribute to the sum (its clip).
- The noise multiplier is the standard deviation of the noise of the SUM divided by C.
- Under add/remove and zero-out adjacency the sensitivity is C. Under replace-one adjacency it is 2C; the accountant
  doubles it, not the caller.
- Noise 0 is allowed and gives an infinite epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar


class Unit(StrEnum):
    """What is protected: all data of a client, or a single example."""

    CLIENT = "client"
    EXAMPLE = "example"


class DrawnBy(StrEnum):
    """Who draws a secret sample: the coordinator of the rounds, or each device among its own examples. A device tells
    nobody what it drew."""

    COORDINATOR = "coordinator"
    DEVICE = "device"


class Adjacency(StrEnum):
    """Which two data sets are neighbours, so that an adversary must not be able to tell them apart.

    - ADD_OR_REMOVE: one unit is present or absent.
    - ZERO_OUT: the contribution of one unit is replaced by zero. Everything public stays the same (the number of
      units, the noise that its device adds). It is the natural choice if devices add the noise themselves.
    - REPLACE_ONE: one unit is replaced by any other.
    """

    ADD_OR_REMOVE = "add_or_remove"
    ZERO_OUT = "zero_out"
    REPLACE_ONE = "replace_one"


@dataclass(frozen=True)
class Adversary:
    """Who sees the release: `Adversary.MODEL`, `.client(colluders=A)`, `.SERVER`, `.server(colluders=A)` or
    `.EAVESDROPPER`.

    - `model`: everyone who sees the models of all rounds and nothing else.
    - `client`: any `colluders=A` participants together, with an honest server. They see what devices see: the models
      and, under secure aggregation, the list of the cohort. They know their own noise. So the caller states the noise
      of the other clients only, and a sampling that is secret from these participants.
    - `server`: sees every sum and picks the cohort, so that sampling by the coordinator does not count. With
      `colluders=A` it also knows the noise of A clients. The caller then states the noise of the other n - D - A
      clients (of n, with D dropouts).
    - `eavesdropper`: sees the sums in transit, but neither the sketching matrix nor any model. It is the only
      adversary against which a sketched Gaussian with secret R has a guarantee of its own.
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
        """Return this many participants together."""
        return cls("client", colluders)

    @classmethod
    def server(cls, colluders: int = 0) -> Adversary:
        """Return the server together with this many clients."""
        return cls("server", colluders)

    @classmethod
    def parse(cls, text: str) -> Adversary:
        """Return the inverse of `str`: 'model', 'client+1', 'server', 'server+20'."""
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
    """Each unit of the kind `of` (client or example) is in the release independently with probability `rate`. The draw
    is secret.

    Nothing but the sum may depend on the draw. So divide by the expected number of units, not by the realised one,
    which the adversary must not see. The noise of the sum must be the same for every draw: if devices add the noise,
    the realised cohort shares it. If the size of the cohort is public, state WithoutReplacement(realised size,
    population) instead. If the device draws (`drawn_by`), the draw is secret from the coordinator too.

    `missed` is the probability, per release, that a unit is drawn and the adversary can see that. This happens if a
    cohort that is too small is not asked and is replaced by noise alone. `privacy.accounting.poisson.missed` computes
    it.
    """

    rate: float
    of: Unit = Unit.CLIENT
    drawn_by: DrawnBy = DrawnBy.COORDINATOR
    missed: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"a sampling rate must be between 0 and 1, not {self.rate}.")
        if self.drawn_by is DrawnBy.DEVICE and self.of is not Unit.EXAMPLE:
            raise ValueError("a device draws among its own examples: state of=Unit.EXAMPLE.")
        if not 0.0 <= self.missed <= 1.0:
            raise ValueError(f"missed must be a probability, not {self.missed}.")


@dataclass(frozen=True)
class WithoutReplacement:
    """`size` of `population` units of the kind `of` are drawn secretly, every subset with the same probability. Both
    numbers are public.

    `with_memory`: what a unit contributes depends on when it was drawn before, such as the residual of error feedback.
    Such draws cost as much as draws that the adversary sees (`privacy.accounting.dominating_pairs`, "Memory").
    """

    size: int
    population: int
    of: Unit = Unit.CLIENT
    with_memory: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.population:
            raise ValueError(
                f"cannot draw {self.size} of {self.population} units without replacement."
            )


@dataclass(frozen=True)
class FullPasses:
    """Each unit is in at most one of every `rounds_per_pass` consecutive releases, whatever was released before.

    Record one release per round; a pass then costs as much as its most expensive round. The order of the units may be
    shuffled, but must not depend on earlier outputs. Removing a unit from a list moves all units after it into other
    rounds, so the adjacency must be zero-out or replace-one, not add/remove.
    """

    rounds_per_pass: int

    def __post_init__(self) -> None:
        if self.rounds_per_pass < 1:
            raise ValueError("a pass has at least one round.")


SecretDraw = NoSampling | Poisson | WithoutReplacement | FullPasses
"""How it is decided, in secret, which units are in a release."""


def is_drawn_by_device(sampling: SecretDraw) -> bool:
    """Return whether a device draws among its own examples, so that the draw is secret from the server too."""
    return isinstance(sampling, Poisson) and sampling.drawn_by is DrawnBy.DEVICE


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, not {value}.")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must not be negative, but is {value}.")


class NoiseLaw:
    """The distribution of the noise in a release, with the bounds that it needs. Every law is one of the classes
    below."""

    @property
    def is_correlated(self) -> bool:
        """Whether the noise is correlated over the rounds of a pass."""
        return False

    @property
    def needs_secret_sketch(self) -> bool:
        """Whether the guarantee counts the randomness of a sketch that the adversary must not know."""
        return False


@dataclass(frozen=True)
class Gaussian(NoiseLaw):
    """The sum plus N(0, (noise_multiplier * C)^2) in every coordinate."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _not_negative(noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True)
class Skellam(NoiseLaw):
    """An integer sum plus Skellam noise. `variance` is that of the noise of the SUM. Everything is in integer units.

    The sensitivities bound how far one unit can change the integer sum (`privacy.mechanisms.skellam_ring` enforces
    them).
    """

    variance: float
    l2_sensitivity: float
    l1_sensitivity: float

    def __post_init__(self) -> None:
        _not_negative(variance=self.variance)
        _positive(l2_sensitivity=self.l2_sensitivity, l1_sensitivity=self.l1_sensitivity)


@dataclass(frozen=True)
class CoordinateSampledGaussian(NoiseLaw):
    """L2-CSGM, the coordinate-sampled Gaussian mechanism. Each client keeps each coordinate with probability `rate`,
    by a secret mask of its own. The release is the sum of the kept, unscaled values plus N(0, sigma^2) in every
    coordinate. The vector of one unit has L2 norm at most `l2` and entries of at most `linf`.

    With a `column_norm` the noise is correlated over the rounds of a pass as in `MatrixGaussian`, and sigma is the
    standard deviation of Z.
    """

    sigma: float
    rate: float
    l2: float
    linf: float
    column_norm: float | None = None

    def __post_init__(self) -> None:
        _not_negative(sigma=self.sigma)
        _positive(l2=self.l2, linf=self.linf, column_norm=self.column_norm or 1.0)
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"a sampling rate must be between 0 and 1, not {self.rate}.")

    @property
    def is_correlated(self) -> bool:
        return self.column_norm is not None


@dataclass(frozen=True)
class MatrixGaussian(NoiseLaw):
    """Correlated noise over one pass. The release of round t is row t of A X + B Z with A = B C, and each unit is in
    one row of X.

    `noise_multiplier` is the standard deviation of Z divided by the clip of a row. `column_norm` is the largest L2
    norm of a column of C. One of two conditions must hold. Either Z is drawn again for every pass; or one C with at
    most as many diagonals as a pass has rounds is used for all passes, and the rounds of every unit are at least a
    pass apart. `privacy.accounting.factorisation` has the proofs.
    """

    noise_multiplier: float
    column_norm: float

    def __post_init__(self) -> None:
        _not_negative(noise_multiplier=self.noise_multiplier)
        _positive(column_norm=self.column_norm)

    @property
    def is_correlated(self) -> bool:
        return True


class SketchKnowledge(StrEnum):
    """Whether the adversary knows the sketching matrix R."""

    PUBLIC = "r_public"
    SECRET = "r_secret"


@dataclass(frozen=True)
class SketchedGaussian(NoiseLaw):
    """A sum of b-dimensional Gaussian sketches R x plus N(0, (noise_multiplier * C)^2) in every coordinate.

    `r_public`: C is the clip of the SKETCH, applied after sketching. `r_secret`: C is the clip of the update before
    sketching. R has `rows` rows of N(0, 1/rows) entries, and the adversary sees neither R nor a model made with it. At
    most `clients` clipped updates are summed, and there is only one release. See
    `privacy.accounting.sketched_gaussian`.
    """

    noise_multiplier: float
    rows: int
    clients: int
    knowledge: SketchKnowledge

    def __post_init__(self) -> None:
        _not_negative(noise_multiplier=self.noise_multiplier)
        _positive(rows=self.rows, clients=self.clients)

    @property
    def needs_secret_sketch(self) -> bool:
        return self.knowledge is SketchKnowledge.SECRET


@dataclass(frozen=True)
class Release:
    """What one adversary sees once, or `times` times in a row, such as the noised steps of local training.

    Repeated releases have independent noise and independent secret samples. Each may depend on the outputs of those
    before it.
    """

    law: NoiseLaw
    sampling: SecretDraw
    adjacency: Adjacency
    unit: Unit
    adversary: Adversary
    times: int = 1

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"a release is made at least once, not {self.times} times.")
        if self.times > 1 and isinstance(self.sampling, FullPasses):
            raise ValueError("a unit is in one release of a pass: state times=1 for FullPasses.")

    def with_known_cohort(self) -> Release:
        """Return the same release for an adversary who knows whom the coordinator has drawn. A draw by the device
        itself stays secret, and the guarantee of a full pass needs no secret draw."""
        return self if isinstance(self.sampling, FullPasses) else self.once_more()

    def once_more(self) -> Release:
        """Return the same release for a round that is repeated with the same cohort. The draw hides nobody a second
        time, and the repetition belongs to no pass."""
        if is_drawn_by_device(self.sampling):
            return self
        return replace(self, sampling=NoSampling())
