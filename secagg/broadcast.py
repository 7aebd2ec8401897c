"""The hash of what a train message carries, equal on the server and on every device.

It covers names, types, shapes and bytes of all records. The order of arrays counts, because
applications read models by position; the order of records and settings does not, because
transports may change it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from .names import RECORD


def broadcast_hash(content: RecordDict) -> bytes:
    """Return SHA-256 over a canonical reading of the content. The protocol's own record is left out."""
    sha = hashlib.sha256(b"secagg/1 broadcast")

    def put(tag: bytes, data: bytes) -> None:
        sha.update(tag + struct.pack("<Q", len(data)))
        sha.update(data)

    for name in sorted(content):
        if name == RECORD:
            continue
        record = content[name]
        put(b"R", name.encode())
        if isinstance(record, ArrayRecord):
            put(b"K", b"array")
            for key, array in record.items():
                put(b"N", key.encode())
                put(b"T", f"{array.dtype} {tuple(array.shape)} {array.stype}".encode())
                put(b"D", array.data)
        else:
            put(b"K", b"metric" if isinstance(record, MetricRecord) else b"config")
            values: dict[str, Any] = dict(record)
            for key in sorted(values):
                put(b"N", key.encode())
                several = isinstance(values[key], list)
                for part in values[key] if several else [values[key]]:
                    put(*_scalar(part))
                put(b"L", b"list" if several else b"scalar")
    return sha.digest()


def _scalar(value: Any) -> tuple[bytes, bytes]:
    """Return a letter for the type of a value, and its bytes."""
    if isinstance(value, bool):
        return b"B", bytes([value])
    if isinstance(value, int):
        return b"I", value.to_bytes(9, "little", signed=True)
    if isinstance(value, float):
        return b"F", struct.pack("<d", value)
    if isinstance(value, str):
        return b"S", value.encode()
    return b"Y", bytes(value)
