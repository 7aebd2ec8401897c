"""The examples of several clients, side by side."""

import pytest
import torch

from fedsketch.conf import compose
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.data.shards import Shards, side_by_side
from fedsketch.tasks.gradients.per_client import PerClient
from fedsketch.tasks.workload import Workload
from tests.small import small

SIZES = [3, 1, 4, 4]


@pytest.fixture
def shards() -> Shards:
    numbers = torch.arange(12)
    examples = Examples(numbers[:, None].float(), numbers)
    return Shards(examples, tuple(side_by_side(SIZES)))


def test_spans_lie_one_after_the_other(shards: Shards) -> None:
    assert [list(span) for span in shards.spans[:3]] == [[0, 1, 2], [3], [4, 5, 6, 7]]
    assert shards.together().targets.tolist() == list(range(12))
    assert shards.of([2, 0]).together().targets.tolist() == [4, 5, 6, 7, 0, 1, 2]


def test_batches_are_filled_up_with_a_clients_own_examples(shards: Shards) -> None:
    batches = shards.of([0, 1, 2]).batches()
    assert batches.targets.tolist() == [[0, 1, 2, 0], [3, 3, 3, 3], [4, 5, 6, 7]]
    assert batches.inputs[..., 0].tolist() == batches.targets.tolist()
    assert (batches.weights > 0).tolist() == [
        [True] * 3 + [False],
        [True] + [False] * 3,
        [True] * 4,
    ]
    torch.testing.assert_close(batches.weights.sum(dim=1), torch.ones(3))


@pytest.mark.parametrize(("clients", "view"), [([2, 3], True), ([3, 2], False)])
def test_whole_shards_of_one_size_are_not_copied_if_they_lie_so(
    shards: Shards, clients: list[int], view: bool
) -> None:
    batches = shards.of(clients).batches()
    rows = {2: [4, 5, 6, 7], 3: [8, 9, 10, 11]}
    assert batches.targets.tolist() == [rows[client] for client in clients]
    storage = shards.examples.inputs.untyped_storage().data_ptr()
    assert (batches.inputs.untyped_storage().data_ptr() == storage) is view


def test_chosen_examples(shards: Shards) -> None:
    batches = shards.of([0, 3]).batches([torch.tensor([2]), torch.tensor([3, 0])])
    assert batches.targets.tolist() == [[2, 2], [11, 8]]
    assert batches.weights.tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_memory_of_batches_is_used_again_but_never_that_of_the_examples(shards: Shards) -> None:
    alike = shards.of([2, 3])
    first, second = torch.tensor([0, 1, 2, 3]), torch.tensor([3, 2, 1, 0])
    whole = alike.batches()
    drawn = alike.batches([first, first], whole)
    again = alike.batches([second, second], drawn)
    assert again.inputs.data_ptr() == drawn.inputs.data_ptr() != whole.inputs.data_ptr()
    assert again.inputs[..., 0].tolist() == [[7, 6, 5, 4], [11, 10, 9, 8]]
    shorter = alike.batches([second[:2], second[:2]], again)
    assert shorter.inputs[..., 0].tolist() == [[7, 6], [11, 10]]
    assert shards.examples.inputs[:, 0].tolist() == list(range(12))


def test_a_job_gives_clients_the_same_examples_together_and_alone() -> None:
    settings = small("data.examples=50 data/partition=by_size data.public=5", clients=7)
    workload = Workload(compose(settings))
    together = workload.shards([5, 0, 6])
    for place, client in enumerate([5, 0, 6]):
        own, alone = together.of([place]).together(), workload.shard(client)
        assert torch.equal(own.inputs, alone.inputs)
        assert torch.equal(own.targets, alone.targets)
        assert workload.size(client) == len(alone)


@pytest.mark.parametrize(
    "model",
    [*("mlp", "cnn", "transformer model.width=16"), pytest.param("resnet", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("own", [False, True])
def test_gradients_of_clients_are_those_of_one_at_a_time(model: str, own: bool) -> None:
    """At the model's parameters, and at parameters of each client's own; also where shards are not equally large."""
    data = "data.examples=12 data.shape=[1,28,28] data.classes=10 data/partition=by_size"
    workload = Workload(compose(small(data, f"model={model}", clients=3)))
    flat, shards = workload.model(), workload.shards([0, 1, 2])
    gradients = PerClient(flat)
    assert gradients.possible(workload.train.inputs[:1])
    starts = flat.vector.repeat(3, 1)
    if own:
        starts += 0.1 * torch.randn(starts.shape, generator=torch.Generator().manual_seed(1))
        made = gradients.gradients_at(starts, shards.batches())
        moved = starts.clone()
        gradients.descend(moved, shards.batches(), 1.0)
        torch.testing.assert_close(moved, starts - made, rtol=1e-4, atol=1e-5)
    else:
        made = gradients.gradients(shards.batches())
    for client, row in enumerate(made):
        flat.load(starts[client])
        shard = workload.shard(client)
        _, alone = flat.loss_and_gradient(shard.inputs, shard.targets)
        torch.testing.assert_close(row, alone, rtol=1e-3, atol=1e-5 * float(alone.abs().max()))
