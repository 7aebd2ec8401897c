"""A device that protects examples works on micro-batches of one size, and an example at which an installed package
raises leaves its place blank."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedsketch.strategies.local.update import rows_of_examples
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.gradients import per_example
from fedsketch.tasks.gradients.per_example import PLACES, PerExample
from fedsketch.tasks.models.flat_model import FlatModel
from tests.tasks.one_by_one import assert_close, batch, built_in, loop

NAMES = ["logistic", "mlp", "cnn", "lenet5", "resnet", "transformer"]


class Words(nn.Module):
    """Embeds numbers from 0 to 4, and raises for others; or, if it is broken, for 0."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.broken = broken

    def forward(self, inputs: Tensor) -> Tensor:
        if self.broken:
            inputs = inputs - 1  # 0 becomes -1, which is in no table
        return self.out(self.table(inputs).mean(dim=1))


def _words(*sentences: list[int]) -> Examples:
    return Examples(torch.tensor(sentences), torch.arange(len(sentences)) % 5).in_places()


@pytest.mark.parametrize("name", NAMES)
def test_rows_in_places_are_the_gradients(name: str) -> None:
    model, inputs, targets = built_in(name)
    own = Examples(inputs, targets).only(torch.tensor([True, False, True, True, True, True, True]))
    assert own.present is not None
    rows = rows_of_examples(model, own, None)
    assert_close(rows, loop(model, inputs, targets)[own.present])


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_the_bits_of_a_row_do_not_depend_on_how_many_others_there_are(name: str) -> None:
    model, inputs, _ = built_in(name)
    inputs, targets = batch(80, tuple(inputs.shape[1:]))
    whole = rows_of_examples(model, Examples(inputs, targets).in_places(), None)
    assert len(whole) == 80
    for count in (1, 2, 3, 5, 7, 63, 64, 65, 79):
        fewer = Examples(inputs[:count], targets[:count]).in_places()
        assert torch.equal(rows_of_examples(model, fewer, None), whole[:count])


def test_micro_batches_have_one_size_whatever_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    made = per_example.slot_gradients

    def watched(model: FlatModel, how: object, inputs: Tensor, targets: Tensor) -> object:
        sizes.append(len(inputs))
        return made(model, how, inputs, targets)  # type: ignore[arg-type]

    monkeypatch.setattr(per_example, "slot_gradients", watched)
    model, inputs, targets = built_in("mlp")
    padded = Examples(inputs, targets).padded(PLACES)
    for memory, size in ((1, 1), (200_000, 8), (1 << 30, 64)):
        sizes.clear()
        rows = list(PerExample(model, memory, in_places=True).blocks(padded.inputs, padded.targets))
        assert sum(map(len, rows)) == PLACES
        assert set(sizes) == {size}


def test_an_example_at_which_a_model_raises_has_no_row(caplog: pytest.LogCaptureFixture) -> None:
    model = FlatModel(Words())
    good = rows_of_examples(model, _words([1, 2], [3, 4], [0, 1]), None)
    mixed = _words([1, 2], [3, 99], [0, 1])
    with pytest.raises(IndexError):
        rows_of_examples(model, replace(mixed, present=None), None)
    with caplog.at_level("ERROR"):
        assert torch.equal(rows_of_examples(model, mixed, None), good[[0, 2]])
    assert "(IndexError)" in caplog.text
    assert "index out of range" not in caplog.text  # a text could hold the record
    assert len(rows_of_examples(model, _words([7, 7]), None)) == 0


def test_a_model_that_raises_for_a_blank_place_raises_for_all_data() -> None:
    """Or it would raise exactly if a record is missing."""
    model = FlatModel(Words(broken=True))
    whole = _words(*[[1, 2]] * PLACES)
    assert len(rows_of_examples(model, replace(whole, present=None), None)) == PLACES
    for own in (whole, _words([1, 2])):
        with pytest.raises(IndexError):
            rows_of_examples(model, own, None)


@pytest.fixture(autouse=True)
def _without_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
