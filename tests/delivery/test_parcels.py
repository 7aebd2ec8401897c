"""Parcels: the missed steps where they are known and shorter, else the whole; and what is put in comes out."""

from collections.abc import Mapping

import pytest
import torch

from fedsketch.delivery.parcels import Parcels, open_steps, open_whole, steps_parcel
from fedsketch.delivery.steps import MOST_STEPS, Step, packed, unpacked
from fedsketch.sketching.sketch import digest


class _Sum:
    """A state of 10 numbers that adds up what it is given, 3 numbers at a time."""

    def __init__(self) -> None:
        self.version = 0
        self.total = torch.zeros(10)

    def apply(self, step: Step) -> None:
        self.version += 1
        self.total[:3] += step.mean * step.round

    def broadcast_arrays(self, server_round: int) -> dict[str, torch.Tensor]:
        return {"model": self.total}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"total": self.total}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self.total = state["total"]

    def fingerprint(self) -> str:
        return digest([self.total])


def _after(rounds: list[int]) -> tuple[Parcels, list[Step]]:
    state = _Sum()
    parcels = Parcels(state)
    steps = [Step(round, torch.full((3,), 0.1 * round), 0.5 * round) for round in rounds]
    for step in steps:
        state.apply(step)
        parcels.remember(step)
    return parcels, steps


@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_a_device_gets_the_steps_that_it_missed(held: int) -> None:
    """Rounds in which nobody was drawn make no version."""
    parcels, steps = _after([2, 3, 7])
    content = parcels.parcel(held)
    assert open_whole(content) is None
    first, missed = open_steps(content)
    assert first == held
    assert [step.round for step in missed] == [2, 3, 7][held:]
    for got, sent in zip(missed, steps[held:], strict=True):
        assert torch.equal(got.mean, sent.mean)
        assert got.deviation == sent.deviation


def test_where_steps_are_longer_the_whole_is_sent() -> None:
    """The state has 10 numbers: three steps of 3 are shorter, four are not."""
    parcels, _ = _after([1, 2, 3, 4, 5])
    assert open_whole(parcels.parcel(2)) is None
    for held in (0, 1):
        whole = open_whole(parcels.parcel(held))
        assert whole is not None
        assert torch.equal(whole["total"][3:], torch.zeros(7))
        assert whole["total"][0] == pytest.approx(0.1 * (1 + 4 + 9 + 16 + 25))


def test_a_version_from_the_future_gets_the_whole() -> None:
    """A server that resumed from an older checkpoint than its devices saw."""
    parcels, _ = _after([1, 2])
    assert open_whole(parcels.parcel(3)) is not None


def test_a_parcel_is_made_anew_when_the_state_moves_on() -> None:
    state = _Sum()
    parcels = Parcels(state)
    before = parcels.head()
    assert open_steps(parcels.parcel(0))[1] == []
    step = Step(1, torch.ones(3), 1.0)
    state.apply(step)
    parcels.remember(step)
    assert len(open_steps(parcels.parcel(0))[1]) == 1
    assert parcels.head() != before
    assert parcels.version == 1


def test_what_the_server_gives_beside_a_mean_travels_with_its_step_and_counts() -> None:
    """A step of 3 numbers with 6 given ones is as long as three steps: the state of 10 numbers has room for one of
    them."""
    state = _Sum()
    parcels = Parcels(state)
    steps = [
        Step(0, torch.empty(0), 0.0, {"directions": torch.full((2, 3), 7.0)}),
        Step(1, torch.ones(3), 1.0),
        Step(2, torch.ones(3), 1.0, {"directions": torch.full((2, 3), 8.0)}),
    ]
    for step in steps[:2]:
        parcels.remember(step)
        state.version += 1
    first, opened = open_steps(parcels.parcel(0))
    assert first == 0
    assert [step.round for step in opened] == [0, 1]
    assert opened[0].mean.shape == (0,)
    assert torch.equal(opened[0].given["directions"], steps[0].given["directions"])
    assert opened[1].given == {}
    parcels.remember(steps[2])
    state.version += 1
    assert open_whole(parcels.parcel(1)) is not None
    assert [step.round for step in open_steps(parcels.parcel(2))[1]] == [2]


def test_a_step_needs_little_more_than_its_numbers() -> None:
    """Flower's arrays would need 600 bytes more for a single mean."""
    step = Step(3, torch.randn(254), 0.25)
    assert len(packed([step])) == 4 * 254 + 20
    (back,) = unpacked(packed([step]))
    assert torch.equal(back.mean, step.mean)


@pytest.mark.parametrize("length", [1, 19, 20, 31, 33])
def test_steps_that_are_cut_off_are_refused(length: int) -> None:
    content = packed([Step(1, torch.ones(3), 1.0), Step(2, torch.ones(3), 1.0)])
    with pytest.raises(ValueError, match="cut off"):
        unpacked(content[:length])


def test_more_steps_than_allowed_are_refused_before_they_are_read() -> None:
    with pytest.raises(ValueError, match="more than the 1000 steps"):
        unpacked(packed([Step(round, torch.empty(0), 0.0) for round in range(MOST_STEPS + 1)]))


@pytest.mark.parametrize("rounds", [[2, 1], [1, 1]])
def test_steps_out_of_order_are_refused(rounds: list[int]) -> None:
    with pytest.raises(ValueError, match="not in the order"):
        open_steps(steps_parcel(0, [Step(round, torch.ones(3), 0.0) for round in rounds]))
