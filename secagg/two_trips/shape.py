"""The numbers of a sharing, which follow from the numbers of the round. Each device computes them by itself.

Every device of a cohort of n shares a polynomial f of degree below n over F_q. It takes values that pairs of devices
know at n points (the holders), is published at D + E points, and hides P numbers at P more. With D tolerated drops, E
tolerated losses afterwards and A colluders, t = n - D - E holders and the published points determine f. With
N = n - A, the rule is

    N >= 2 (D + E + P) - 1,   N >= 4 D,   n + D + E + P <= q,   q an odd prime.

The proof is in docs/explanation/two_trips_proof.md. The first border is sharp if D > 0: with one secret point more
there are lists of survivors that give a lying server more than one sum, and with P = 1 a single vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..errors import SettingsError
from .field import FEWEST_BITS, MOST_BITS, prime_below


@dataclass(frozen=True)
class Shape:
    """The sharing of vectors of `dim` numbers among `n` devices, modulo the largest prime of `bits` bits."""

    n: int
    drops: int
    losses: int
    colluders: int
    dim: int
    bits: int

    def __post_init__(self) -> None:
        if not FEWEST_BITS <= self.bits <= MOST_BITS:
            raise SettingsError(
                f"A sum in two trips has {FEWEST_BITS} to {MOST_BITS} bits, not {self.bits}: take fewer, or sum with "
                "pairwise masks."
            )
        if self._most_secrets < 1 or self.n - self.colluders < 4 * self.drops:
            raise SettingsError(
                f"{self.n} clients with {self.drops} drops, {self.losses} losses and {self.colluders} colluders are "
                "too few for a sum in two trips: tolerate fewer, take a larger cohort, or sum with pairwise masks."
            )
        if self.n + self.publics + self.secrets > self.modulus:
            raise SettingsError(f"A ring of {self.bits} bits is too small for {self.n} clients.")

    @property
    def modulus(self) -> int:
        """The prime q."""
        return prime_below(self.bits)

    @property
    def publics(self) -> int:
        """The points at which a polynomial is published: D + E."""
        return self.drops + self.losses

    @property
    def _most_secrets(self) -> int:
        """The largest P with a margin of A against devices that answer twice: N >= 2 (D + E + P) - 1 + A."""
        return (self.n - 2 * self.colluders + 1) // 2 - self.publics

    @cached_property
    def polynomials(self) -> int:
        """The polynomials of a vector: m = dim / P, rounded up."""
        return -(-self.dim // self._most_secrets)

    @cached_property
    def secrets(self) -> int:
        """The numbers that a polynomial hides: the smallest P with the same number of polynomials."""
        return -(-self.dim // self.polynomials)

    @property
    def least(self) -> int:
        """The clients that are at least in a sum: n - D."""
        return self.n - self.drops

    @property
    def holders(self) -> int:
        """The answers that are needed: t = n - D - E."""
        return self.n - self.publics
