"""Tensors come out of a message as they went in, whether they are bytes in a record or arrays."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from safetensors import SafetensorError

from fedsketch.delivery import tensor_records
from fedsketch.delivery.tensor_records import tensors_in, with_tensors

TENSORS = {
    "a": torch.tensor([1.5, -0.0, float("inf")]),
    "b.c": torch.arange(6, dtype=torch.float64).view(2, 3).T,
    "none": torch.zeros(0, 4),
    "count": torch.tensor(7),
    "flags": torch.tensor([True, False]),
}
BYTES = sum(tensor.nbytes for tensor in TENSORS.values())


@pytest.mark.parametrize(("most", "records"), [(BYTES, {"p"}), (BYTES - 1, {"p", "long"})])
def test_they_are_the_same_short_and_long(
    most: int, records: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_records, "MOST_IN_RECORD", most)
    content = with_tensors("p", ConfigRecord({"held": 3}), TENSORS, "long")
    assert set(content) == records
    assert content.config_records["p"]["held"] == 3
    received = tensors_in(content, "p", "long")
    assert received.keys() == TENSORS.keys()
    for name, tensor in received.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])
        tensor.zero_()  # one's own memory
    assert torch.equal(tensors_in(content, "p", "long")["a"], TENSORS["a"])


def test_two_views_of_one_memory_are_two_tensors() -> None:
    whole = torch.arange(4.0)
    content = with_tensors("p", ConfigRecord(), {"a": whole, "b": whole[1:3]}, "long")
    assert torch.equal(tensors_in(content, "p", "long")["b"], whole[1:3])


def test_damaged_bytes_are_refused_or_are_tensors() -> None:
    content = with_tensors("p", ConfigRecord(), {"a": torch.arange(5.0)}, "long")
    good = bytes(content.config_records["p"]["tensors"])  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    for _ in range(300):
        bad = bytearray(good[: rng.integers(len(good)) if rng.random() < 0.3 else len(good)])
        for place in rng.integers(len(bad), size=rng.integers(1, 4)) if bad else ():
            bad[place] ^= 1 << int(rng.integers(8))
        damaged = RecordDict({"p": ConfigRecord({"tensors": bytes(bad)})})
        with suppress(SafetensorError, KeyError, ValueError):
            assert all(x.nbytes <= len(good) for x in tensors_in(damaged, "p", "long").values())
