"""Embedded and synthetic data, and the registry."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedsketch.conf.plugins import built_in
from fedsketch.errors import DataError
from fedsketch.tasks.data import datasets, synthetic
from fedsketch.tasks.data import digits as digits_module
from fedsketch.tasks.data.examples import Dataset, Examples

Choose = Callable[..., Any]


def test_digits_are_real_images_scaled_to_the_unit_interval(choose: Choose) -> None:
    digits = datasets.load(choose("data", "digits"), 0)
    assert (len(digits.train), len(digits.test), digits.classes) == (1437, 360, 10)
    assert digits.train.shape == digits.test.shape == (1, 8, 8)
    assert digits.train.inputs.dtype == torch.float32
    assert digits.train.targets.dtype == torch.int64
    assert (digits.train.inputs.min(), digits.train.inputs.max()) == (0.0, 1.0)


def test_digits_split_keeps_the_share_of_every_class(choose: Choose) -> None:
    digits = datasets.load(choose("data", "digits"), 0)
    shares = digits.test.targets.bincount() / (
        digits.test.targets.bincount() + digits.train.targets.bincount()
    )
    assert torch.allclose(shares, torch.full((10,), 0.2), atol=0.01)


def test_digits_split_is_the_same_in_every_process(choose: Choose) -> None:
    # Written down: a run that is resumed elsewhere must not test on what it trained on.
    digits = datasets.load(choose("data", "digits"), 0)
    again = digits_module.load(choose("data", "digits"), 1)
    assert torch.equal(digits.train.inputs, again.train.inputs)
    assert digits.test.targets[:8].tolist() == [7, 6, 3, 7, 7, 3, 2, 8]


def test_examples_take_copies_the_chosen_ones_in_order() -> None:
    examples = Examples(torch.arange(4.0).view(4, 1, 1, 1), torch.tensor([3, 2, 1, 0]))
    taken = examples.take(torch.tensor([2, 0]))
    assert taken.targets.tolist() == [1, 3]
    assert taken.inputs.flatten().tolist() == [2.0, 0.0]
    taken.inputs.zero_()
    assert examples.inputs.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(("inputs", "targets"), [((3,), 3), ((3, 1, 8, 8), 2), ((3, 5), 2)])
def test_examples_refuse_shapes_that_do_not_go_together(
    inputs: tuple[int, ...], targets: int
) -> None:
    with pytest.raises(DataError, match="do not fit together"):
        Examples(torch.zeros(inputs), torch.zeros(targets, dtype=torch.int64))


def test_same_arguments_share_one_copy(choose: Choose) -> None:
    settings, same = (choose("data", "synthetic", shape=(1, 2, 2)) for _ in range(2))
    first = datasets.load(settings, 7)
    assert datasets.load(same, 7) is first
    assert datasets.load(settings, 8) is not first


def test_threads_that_ask_at_once_share_one_copy(choose: Choose) -> None:
    found: list[Dataset] = []
    settings = choose("data", "synthetic", examples=20_000)
    threads = [
        threading.Thread(target=lambda: found.append(datasets.load(settings, 11))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({id(data) for data in found}) == 1


def test_every_data_set_that_can_be_chosen_can_be_loaded() -> None:
    assert set(datasets.BUILT_IN) == set(built_in("data"))


def test_synthetic_has_the_size_asked_for(choose: Choose) -> None:
    sizes = {"examples": 103, "test_examples": 17, "shape": (3, 5, 4), "classes": 4}
    data = synthetic.load(choose("data", "synthetic", **sizes), 1)
    assert (len(data.train), len(data.test), data.classes) == (103, 17, 4)
    assert data.train.shape == (3, 5, 4)
    assert sorted(data.train.targets.bincount().tolist()) == [25, 26, 26, 26]


def test_synthetic_is_a_function_of_its_seed_and_leaves_the_global_generator_alone(
    choose: Choose,
) -> None:
    state = torch.get_rng_state()
    one, same, other = (synthetic.load(choose("data", "synthetic"), seed) for seed in (3, 3, 4))
    assert torch.equal(one.train.inputs, same.train.inputs)
    assert torch.equal(one.train.targets, same.train.targets)
    assert not torch.equal(one.train.inputs, other.train.inputs)
    assert torch.equal(torch.get_rng_state(), state)


def test_synthetic_test_set_does_not_depend_on_the_number_of_examples(choose: Choose) -> None:
    few, many = (synthetic.load(choose("data", "synthetic", examples=n), 5) for n in (10, 1000))
    assert torch.equal(few.test.inputs, many.test.inputs)


def test_separation_decides_how_hard_synthetic_data_is(choose: Choose) -> None:
    """Two classes: the nearest learned mean errs with Phi(-separation / sqrt 2), 0.079 at 2.

    The squared distance of the centres varies by 9 % at 256 features, which moves that by 0.009, and
    4,000 test examples add 0.004: 0.04 is four standard errors (false alarm 1e-4, had the seed not
    been fixed).
    """

    def error(separation: float) -> float:
        sizes = {"examples": 20_000, "test_examples": 4000, "shape": (1, 16, 16), "classes": 2}
        data = synthetic.load(choose("data", "synthetic", separation=separation, **sizes), 2)
        train, test = data.train.inputs.flatten(1), data.test.inputs.flatten(1)
        means = torch.stack([train[data.train.targets == c].mean(0) for c in range(2)])
        guess = torch.cdist(test, means).argmin(1)
        return float((guess != data.test.targets).float().mean())

    assert error(1e-6) == pytest.approx(0.5, abs=0.04)
    assert error(2.0) == pytest.approx(0.079, abs=0.04)
    assert error(8.0) == 0.0
