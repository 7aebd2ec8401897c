"""The settings of a round with pairwise masks. Rules (derived in part; the same as in Google's secure aggregation),
with n clients, D tolerated drops and A colluders with the server:

- share threshold t >= floor((h + A) / 2) + 1 for the h holders of a secret (a client's neighbours
  and itself): the shares that h - A honest holders give once and A colluders give twice never
  make both secrets of a client;
- quorum q >= floor((n + A) / 2) + 1: two different survivor lists never both get a quorum of
  signatures;
- n - D >= max(t, q): the tolerated drops do not stop the round.

With signed survivor lists (`consistency`) the graph is complete: n <= 1,024, and a sparse graph is
refused, because a server that lies about dropouts cuts it. Without them more than 128 clients may form
a ring, whose threshold follows Bell et al. for a semi-honest server. Groups are complete graphs of at
most 1,024 clients each. Every group obeys the rules alone and with all A colluders inside it, because
who is in which group may be steered.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from ..errors import Malformed, SettingsError
from ..settings import (
    NONCE_BYTES,
    RoundSettings,
    Sizes,
    get_application,
    majority,
    put_application,
)
from ..wire import HASH_BYTES, MessageKind, Reader, Writer
from . import graph

if TYPE_CHECKING:
    from ..codec import VectorFormat
    from ..options import SecAggOptions


@dataclass(frozen=True, kw_only=True)
class PairwiseSettings(RoundSettings):
    """One round, as hashed and signed.

    `broadcast` is the hash of the content of the train message, or empty when the keys were exchanged
    before it was known; either way the hash of what a device really received goes into its masks and
    its signature.
    """

    degree: int
    threshold: int
    quorum: int
    consistency: bool
    broadcast: bytes

    @classmethod
    def proposed(
        cls,
        options: SecAggOptions,
        run: int,
        round: int,
        cohort: Iterable[int],
        vector: VectorFormat,
        broadcast: bytes,
        nonce: bytes | None = None,
    ) -> PairwiseSettings:
        """Return the settings of a round, with the smallest threshold and quorum that the rules allow, and with a new
        nonce if none is given."""
        nodes = tuple(sorted(cohort))
        sizes = options.for_vector(vector).sizes(len(nodes))
        degree, threshold = _graph(sizes, options.consistency)
        return cls(
            run=run,
            round=round,
            nonce=os.urandom(NONCE_BYTES) if nonce is None else nonce,
            cohort=nodes,
            degree=degree,
            threshold=threshold,
            quorum=sizes.needed,
            drops=sizes.drops,
            colluders=sizes.colluders,
            groups=sizes.groups,
            consistency=options.consistency,
            dim=vector.dim,
            bits=vector.bits,
            broadcast=broadcast,
            application=vector.application,
        )

    @property
    def sizes(self) -> Sizes:
        """The numbers of clients in a sum."""
        return Sizes(self.n, self.drops, self.colluders, self.groups)

    @property
    def modulus(self) -> int:
        """The number modulo which vectors are summed."""
        return 1 << self.bits

    @property
    def withstands_lies(self) -> bool:
        """Whether survivor lists are signed."""
        return self.consistency

    @property
    def complete(self) -> bool:
        """Whether every client of a sum exchanges masks with every other."""
        return self.groups > 1 or self.degree == self.n - 1

    def threshold_of(self, members: int) -> int:
        """Return the share threshold in a group of this many clients."""
        return self.threshold if self.groups == 1 else majority(members, self.colluders)

    def quorum_of(self, members: int) -> int:
        """Return the quorum of signatures in a group of this many clients."""
        return self.quorum if self.groups == 1 else majority(members, self.colluders)

    @cached_property
    def digest(self) -> bytes:
        """The hash of the settings, by which all messages and keys are bound to the round."""
        return hashlib.sha256(b"secagg/1 settings" + self.encoded).digest()

    @cached_property
    def encoded(self) -> bytes:
        """The canonical encoding, which is also the request of the first stage."""
        out = Writer(MessageKind.ADVERTISE_REQUEST).u64(self.run).u64(self.round).raw(self.nonce)
        out.u32(self.n).raw(struct.pack(f"<{self.n}Q", *self.cohort))
        for number in (self.degree, self.threshold, self.quorum, self.drops, self.colluders):
            out.u32(number)
        out.u32(self.groups).u8(self.consistency).u32(self.dim).u8(self.bits).blob(self.broadcast)
        put_application(out, self.application)
        return out.done()

    @classmethod
    @lru_cache(maxsize=4)  # a process that simulates many devices decodes the same bytes for each
    def decode(cls, data: bytes) -> PairwiseSettings:
        """Return the settings in these bytes. Raise `Malformed` or, if a rule is broken, `SettingsError`."""
        reader = Reader(data, MessageKind.ADVERTISE_REQUEST)
        run, round_, nonce = reader.u64(), reader.u64(), reader.raw(NONCE_BYTES)
        n = reader.u32()
        cohort = struct.unpack(f"<{n}Q", reader.view(8 * n))
        degree, threshold, quorum, drops, colluders, groups = (reader.u32() for _ in range(6))
        consistency = reader.u8()
        if consistency > 1:
            raise Malformed("A flag is neither 0 nor 1.")
        dim, bits, broadcast = reader.u32(), reader.u8(), reader.blob()
        application = get_application(reader)
        reader.end()
        return cls(
            run=run, round=round_, nonce=nonce, cohort=cohort, degree=degree, threshold=threshold,
            quorum=quorum, drops=drops, colluders=colluders, groups=groups, consistency=bool(consistency),
            dim=dim, bits=bits, broadcast=broadcast, application=application,
        )  # fmt: skip

    def check_rules(self) -> None:
        if len(self.broadcast) not in (0, HASH_BYTES):
            raise SettingsError("The hash of the broadcast has a wrong length.")
        if not 1 <= self.groups <= self.n // 2:
            raise SettingsError("A group has 2 clients at least.")
        sizes = self.sizes
        if sizes.least < sizes.needed:
            raise SettingsError(
                f"{sizes.most} clients with {self.drops} drops and {self.colluders} colluders cannot "
                f"finish: at least {sizes.needed} must stay, so tolerate "
                "fewer drops or colluders, or take a larger cohort."
            )
        need_threshold = self._complete_threshold() if self.complete else self._ring_threshold()
        if self.threshold < need_threshold or self.quorum < sizes.needed:
            raise SettingsError(
                f"The threshold {self.threshold} and the quorum {self.quorum} are below the rule's "
                f"{need_threshold} and {sizes.needed}."
            )
        if sizes.least < max(self.threshold, self.quorum):
            raise SettingsError(
                f"The threshold {self.threshold} or the quorum {self.quorum} is above the "
                f"{sizes.least} clients that stay in the worst case."
            )

    def _complete_threshold(self) -> int:
        most = self.sizes.most
        if self.degree != most - 1:
            raise SettingsError("A group is a complete graph: its degree is its size less one.")
        if most > graph.LARGEST_COMPLETE:
            if self.groups > 1:
                otherwise = "or make more groups"
            elif self.consistency:
                otherwise = (
                    "or set consistency to False, which promises less: it protects from a server that "
                    "follows the protocol, not from one that lies"
                )
            else:
                otherwise = "or tolerate fewer drops or colluders, so that a ring will do"
            raise SettingsError(
                f"At most {graph.LARGEST_COMPLETE} clients can all exchange masks with each other, not "
                f"{most}: ask fewer clients per round, {otherwise}."
            )
        return self.sizes.needed

    def _ring_threshold(self) -> int:
        if self.consistency:
            raise SettingsError(
                "With signed survivor lists every client exchanges masks with all others, because a "
                "server that lies about dropouts cuts a sparse graph: set the degree to n - 1."
            )
        if self.n <= graph.RINGS_ABOVE:
            raise SettingsError(
                f"Up to {graph.RINGS_ABOVE} clients the graph is complete: set the degree to n - 1."
            )
        if self.degree % 2 or not 0 < self.degree < self.n:
            raise SettingsError("A ring's degree is even and smaller than the cohort.")
        least, _ = graph.ring_parameters(self.n, self.colluders, self.drops)
        if self.degree < least:
            raise SettingsError(f"The ring's degree {self.degree} is below the rule's {least}.")
        return graph.threshold_range(self.n, self.degree, self.colluders, self.drops)[0]


def _graph(sizes: Sizes, consistency: bool) -> tuple[int, int]:
    """Return the degree and the threshold: those of a ring where one is allowed and possible."""
    if not consistency and sizes.groups == 1 and sizes.n > graph.RINGS_ABOVE:
        # With too many drops or colluders for a ring, the complete graph may still work.
        with suppress(SettingsError):
            return graph.ring_parameters(sizes.n, sizes.colluders, sizes.drops)
    return sizes.most - 1, sizes.needed
