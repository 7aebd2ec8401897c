"""The devices' arithmetic against autograd and a hand-written SGD loop."""

import pytest
import torch
from torch.nn import functional

from fedsketch.conf import compose
from fedsketch.conf.settings import LocalConfig
from fedsketch.strategies.local import update as local_update
from fedsketch.strategies.local.update import client_update, rows_of_examples
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.workload import Workload


@pytest.fixture
def workload() -> Workload:
    return Workload(compose(["clients.total=40", "clients.per_round=40", "seed=3", "device=cpu"]))


@pytest.fixture
def shard(workload: Workload) -> Examples:
    return workload.shard(0)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def _autograd(model: FlatModel, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The gradient of the mean loss, by torch alone."""
    parameters = list(model.module.parameters())
    loss = functional.cross_entropy(model.module(inputs), targets)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])


def test_one_step_is_the_gradient_of_the_shard(workload: Workload, shard: Examples) -> None:
    model, settings = (
        workload.model(),
        LocalConfig(steps=1, epochs=None, batch=0, lr=0.1, momentum=0.0),
    )
    before = model.vector.clone()
    update = client_update(model, shard, settings, _generator())
    torch.testing.assert_close(update, _autograd(model, shard.inputs, shard.targets))
    assert torch.equal(model.vector, before)


def test_one_step_on_a_batch_is_the_gradient_of_distinct_examples(workload: Workload) -> None:
    """A shard of copies of two examples: the mean gradient tells how many of each were in the batch."""
    two = Examples(workload.dataset.train.inputs[:2], workload.dataset.train.targets[:2])
    index = torch.tensor([0] * 3 + [1] * 3)
    model, settings = (
        workload.model(),
        LocalConfig(steps=1, epochs=None, batch=5, lr=0.1, momentum=0.0),
    )
    update = client_update(model, two.take(index), settings, _generator())
    each = [_autograd(model, two.inputs[i : i + 1], two.targets[i : i + 1]) for i in range(2)]
    # Five of six without replacement: three of one and two of the other.
    mixtures = [(3 * each[i] + 2 * each[1 - i]) / 5 for i in range(2)]
    assert any(torch.allclose(update, mixture, atol=1e-6) for mixture in mixtures)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_several_steps_equal_a_hand_written_loop(
    workload: Workload, shard: Examples, momentum: float
) -> None:
    model, steps, rate = workload.model(), 7, 0.3
    settings = LocalConfig(steps=steps, epochs=None, batch=0, lr=rate, momentum=momentum)
    update = client_update(model, shard, settings, _generator())

    twin = workload.model()
    start, velocity = twin.vector.clone(), torch.zeros(twin.size)
    for _ in range(steps):
        velocity = momentum * velocity + _autograd(twin, shard.inputs, shard.targets)
        twin.load(twin.vector - rate * velocity)
    torch.testing.assert_close(update, start - twin.vector, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model.vector, twin.vector, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("epochs", "batch"), [(1, 0), (3, 5), (2, 10_000)])
def test_epochs_are_shuffled_passes_in_batches(
    workload: Workload, shard: Examples, epochs: int, batch: int
) -> None:
    settings = LocalConfig(steps=1, epochs=epochs, batch=batch, lr=0.3, momentum=0.5)
    update = client_update(workload.model(), shard, settings, _generator())

    twin, generator = workload.model(), _generator()
    start, velocity, sizes = twin.vector.clone(), torch.zeros(twin.size), []
    for _ in range(epochs):
        order = torch.randperm(len(shard), generator=generator)
        while len(order):
            chosen, order = order[: batch or len(shard)], order[batch or len(shard) :]
            sizes.append(len(chosen))
            gradient = _autograd(twin, shard.inputs[chosen], shard.targets[chosen])
            velocity = 0.5 * velocity + gradient
            twin.load(twin.vector - 0.3 * velocity)
    torch.testing.assert_close(update, start - twin.vector, rtol=1e-4, atol=1e-6)
    assert sum(sizes) == epochs * len(shard)  # everyone once in every pass


def test_batches_are_drawn_from_the_generator_alone(workload: Workload, shard: Examples) -> None:
    settings = LocalConfig(steps=4, epochs=None, batch=3, lr=0.5, momentum=0.0)
    torch.manual_seed(1)
    first = client_update(workload.model(), shard, settings, _generator())
    torch.manual_seed(2)
    again = client_update(workload.model(), shard, settings, _generator())
    other = client_update(workload.model(), shard, settings, torch.Generator().manual_seed(6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_batch_as_large_as_the_shard_is_the_shard(workload: Workload, shard: Examples) -> None:
    whole = LocalConfig(steps=1, epochs=None, batch=0, lr=0.1, momentum=0.0)
    large = LocalConfig(steps=1, epochs=None, batch=10_000, lr=0.1, momentum=0.0)
    a = client_update(workload.model(), shard, whole, _generator()).clone()
    b = client_update(workload.model(), shard, large, _generator())
    assert torch.equal(a, b)


def test_example_gradients_are_each_examples_own(workload: Workload, shard: Examples) -> None:
    model = workload.model()
    rows = rows_of_examples(model, shard, None)
    assert rows.shape == (len(shard), model.size)
    for i in (0, len(shard) - 1):
        own = _autograd(model, shard.inputs[i : i + 1], shard.targets[i : i + 1])
        torch.testing.assert_close(rows[i], own, rtol=1e-4, atol=1e-6)


def test_example_gradients_sum_to_n_times_the_gradient(workload: Workload, shard: Examples) -> None:
    model = workload.model()
    mean = _autograd(model, shard.inputs, shard.targets)
    total = rows_of_examples(model, shard, None).sum(dim=0)
    torch.testing.assert_close(total, mean * len(shard), rtol=1e-4, atol=1e-5)


def test_rows_of_examples_are_shortened_a_few_at_a_time(
    workload: Workload, shard: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sizes = workload.model(), []

    def shorten(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return rows[:, :3]

    whole = rows_of_examples(model, shard, None)
    monkeypatch.setattr(local_update, "MEMORY", 4 * 10 * model.size)  # of ten rows
    short = rows_of_examples(model, shard, shorten)
    torch.testing.assert_close(short, whole[:, :3], rtol=1e-4, atol=1e-6)
    assert max(sizes) < 10
    assert sum(sizes) == len(shard)
