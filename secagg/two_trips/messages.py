"""The bytes of each message of the protocol.

Requests go from the server to a device and replies back. Replies, and the request for an answer, name the round by the
first half of its context.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import Malformed
from ..packing import pack, packed_size, ring_dtype, unpack
from ..settings import NONCE_BYTES
from ..wire import HASH_BYTES, MessageKind, Reader, Writer, bitmap
from .field import Field
from .keys import ADVERT_BYTES
from .settings import TwoTripsSettings
from .shape import Shape

NAME_BYTES = 16


def hello_request(run: int, epoch: int) -> bytes:
    """Return the request for a device's key of an epoch."""
    return Writer(MessageKind.HELLO_REQUEST).u64(run).u32(epoch).done()


def read_hello_request(data: bytes) -> tuple[int, int]:
    """Return the run and the epoch in such a request."""
    reader = Reader(data, MessageKind.HELLO_REQUEST)
    run, epoch = reader.u64(), reader.u32()
    reader.end()
    return run, epoch


def hello_reply(advert: bytes) -> bytes:
    """Return the reply: the device's public key and its signature."""
    return Writer(MessageKind.HELLO_REPLY).raw(advert).done()


def read_hello_reply(data: bytes) -> bytes:
    """Return the public key and the signature in such a reply."""
    reader = Reader(data, MessageKind.HELLO_REPLY)
    advert = reader.raw(ADVERT_BYTES)
    reader.end()
    return advert


@dataclass(frozen=True)
class SharingRequest:
    """The request for a masked vector. `static` names the cohort and the terms, which come along if the device does not
    have them yet; `adverts` are the keys of the peers that it meets for the first time, by their positions."""

    static: bytes
    round: int
    nonce: bytes
    cohort: bytes = b""
    terms: bytes = b""
    adverts: Mapping[int, bytes] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the request as bytes."""
        out = Writer(MessageKind.SHARING_REQUEST, self.static).u64(self.round).raw(self.nonce)
        if self.cohort or self.terms or self.adverts:
            out.blob(self.cohort).blob(self.terms)
            for place, advert in sorted(self.adverts.items()):
                out.u32(place).raw(advert)
        return out.done()

    @classmethod
    def decode(cls, data: bytes) -> SharingRequest:
        """Return the request in these bytes."""
        reader = Reader(data, MessageKind.SHARING_REQUEST)
        static, round_, nonce = reader.raw(HASH_BYTES), reader.u64(), reader.raw(NONCE_BYTES)
        if not reader.left:
            return cls(static, round_, nonce)
        cohort, terms = reader.blob(), reader.blob()
        adverts: dict[int, bytes] = {}
        while reader.left:
            place = reader.u32()
            if adverts and place <= next(reversed(adverts)):
                raise Malformed("The keys are not in the order of the cohort.")
            adverts[place] = reader.raw(ADVERT_BYTES)
        if not (cohort or terms or adverts):
            raise Malformed("A request announces parts and has none.")
        return cls(static, round_, nonce, cohort, terms, adverts)


def sharing_reply(settings: TwoTripsSettings, masked: Field, published: Field) -> bytes:
    """Return the reply: the masked vector, and the numbers at the public points."""
    out = Writer(MessageKind.SHARING_REPLY, _name(settings))
    return out.raw(_packed(masked, settings.bits)).raw(_packed(published, settings.bits)).done()


def read_sharing_reply(settings: TwoTripsSettings, data: bytes) -> tuple[Field, Field]:
    """Return the masked vector, and the numbers at the public points (rows)."""
    reader, shape = _open(settings, data, MessageKind.SHARING_REPLY), settings.shape
    masked = _unpacked(reader, shape.dim, shape)
    published = _unpacked(reader, shape.publics * shape.polynomials, shape)
    reader.end()
    return masked, published.reshape(shape.publics, shape.polynomials)


def answer_request(settings: TwoTripsSettings, survivors: Iterable[int]) -> bytes:
    """Return the request for a device's share of a sum: whose sum."""
    out = Writer(MessageKind.ANSWER_REQUEST, _name(settings))
    return out.raw(bitmap(settings.n, survivors)).done()


def name_in(data: bytes) -> bytes:
    """Return the name of the round that a request for an answer is about."""
    return Reader(data, MessageKind.ANSWER_REQUEST).raw(NAME_BYTES)


def read_answer_request(settings: TwoTripsSettings, data: bytes) -> tuple[int, ...]:
    """Return the positions of those in the sum."""
    reader = _open(settings, data, MessageKind.ANSWER_REQUEST)
    survivors = reader.bitmap(settings.n)
    reader.end()
    return survivors


def answer_reply(settings: TwoTripsSettings, answer: Field) -> bytes:
    """Return the reply: the sum of what those in the sum have dealt to this device."""
    out = Writer(MessageKind.ANSWER_REPLY, _name(settings))
    return out.raw(_packed(answer, settings.bits)).done()


def read_answer_reply(settings: TwoTripsSettings, data: bytes) -> Field:
    """Return the numbers in such a reply."""
    reader, shape = _open(settings, data, MessageKind.ANSWER_REPLY), settings.shape
    answer = _unpacked(reader, shape.polynomials, shape)
    reader.end()
    return answer


def names(settings: TwoTripsSettings, name: bytes) -> bool:
    """Return whether a message with this name is about this round."""
    return name == _name(settings)


def keys_hash_input(publics: Sequence[bytes]) -> bytes:
    """Return the public keys of a cohort in its order, as they are hashed."""
    return struct.pack("<I", len(publics)) + b"".join(publics)


def _name(settings: TwoTripsSettings) -> bytes:
    return settings.digest[:NAME_BYTES]


def _open(settings: TwoTripsSettings, data: bytes, kind: MessageKind) -> Reader:
    reader = Reader(data, kind)
    if not names(settings, reader.raw(NAME_BYTES)):
        raise Malformed("The message belongs to another round.")
    return reader


def _packed(numbers: Field, bits: int) -> bytes:
    return pack(numbers.reshape(-1).astype(ring_dtype(bits)), bits)


def _unpacked(reader: Reader, count: int, shape: Shape) -> Field:
    numbers = unpack(reader.view(packed_size(count, shape.bits)), count, shape.bits)
    if (numbers >= shape.modulus).any():
        raise Malformed("A number is not below the modulus.")
    return numbers.astype(np.uint64)
