"""The binary codec accepts exactly what it makes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsketch.secagg.errors import Malformed
from fedsketch.secagg.wire import MessageKind, Reader, Writer, bitmap, digest_of


@settings(max_examples=80, deadline=None)
@given(n=st.integers(1, 300), data=st.data())
def test_sets_and_tables_round_trip(n: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, n - 1)))
    items = {index: index.to_bytes(5, "big") for index in chosen}
    encoded = Writer(MessageKind.STATE).members(n, chosen).table(n, items).blob(b"end").done()
    reader = Reader(encoded, MessageKind.STATE)
    assert reader.members(n) == tuple(sorted(chosen))
    assert reader.table(n, 5) == items
    assert reader.blob() == b"end"
    reader.end()


def test_a_set_has_one_encoding() -> None:
    """Bits beyond the cohort would be a second encoding of the same set."""
    assert bitmap(12, [0, 11]) == b"\x01\x08"
    with pytest.raises(Malformed, match="outside the cohort"):
        Reader(
            Writer(MessageKind.STATE).u32(12).raw(b"\x01\x18").done(), MessageKind.STATE
        ).members(12)


def test_a_set_over_another_cohort_is_malformed() -> None:
    encoded = Writer(MessageKind.STATE).members(12, [1]).done()
    with pytest.raises(Malformed, match="another size"):
        Reader(encoded, MessageKind.STATE).members(13)


def test_another_kind_and_missing_or_extra_bytes_are_malformed() -> None:
    encoded = Writer(MessageKind.STATE).u64(5).done()
    with pytest.raises(Malformed, match="kind"):
        Reader(encoded, MessageKind.SIGN_REPLY)
    with pytest.raises(Malformed, match="too short"):
        Reader(b"", MessageKind.STATE)
    with pytest.raises(Malformed, match="too short"):
        Reader(encoded[:-1], MessageKind.STATE).u64()
    with pytest.raises(Malformed, match="too long"):
        Reader(encoded, MessageKind.STATE).end()
    with pytest.raises(Malformed, match="too short"):
        digest_of(bytes(32))


def test_a_length_beyond_the_message_allocates_nothing() -> None:
    encoded = Writer(MessageKind.STATE).u32(2**32 - 1).done()
    with pytest.raises(Malformed, match="too short"):
        Reader(encoded, MessageKind.STATE).blob()
