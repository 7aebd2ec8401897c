"""One hash for one state, and another for every other."""

import pytest
import torch

from fedsketch.sketching.sketch import DigestPart, digest

FROZEN = "99a3cb31b0026b3fb31d86d4b5b203bf6fd661cf3e151e7d8964c204670e1eb0"
STATES: list[list[DigestPart]] = [
    [],
    [1],
    ["1"],
    [1.0],
    [1, 2],
    ["ab", "c"],
    ["a", "bc"],
    [torch.zeros(4)],
    [torch.zeros(2, 2)],
    [torch.zeros(2), torch.zeros(2)],
    [torch.zeros(2, dtype=torch.float64)],
    [torch.tensor([0.0, 0.0, 0.0, 1e-45])],
    [torch.zeros(0)],
    [torch.zeros(0, 3)],
]


def test_different_states_have_different_hashes() -> None:
    assert len({digest(state) for state in STATES}) == len(STATES)


def test_the_hash_is_frozen() -> None:
    assert digest([1, "a", 0.5, torch.tensor([[1.0, 2.0]])]) == FROZEN


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 and float64"):
        digest([torch.zeros(2, dtype=torch.int64)])
