"""Many clients at once through a chain of layers, with the same parameters or each with its own."""

import pytest
import torch
from torch import nn

from fedsketch.conf import compose
from fedsketch.tasks.built_in import Classification, make_task
from fedsketch.tasks.data.shards import Batches
from fedsketch.tasks.gradients.chain import Chain, is_chain
from fedsketch.tasks.gradients.output_gradients import output_gradients
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.task import Task


def _task(name: str) -> Task:
    return make_task(compose([f"task={name}", "data=synthetic"]).task)


def _layers(outputs: int, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(6, 5, bias=bias), nn.Tanh()),
        *(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, outputs, bias=bias)),
    )


def _two_clients() -> Batches:
    """The second has two examples, and its batch is filled up by others that weigh nothing."""
    torch.manual_seed(4)
    weights = torch.tensor([[0.25] * 4, [0.5, 0.5, 0.0, 0.0]])
    return Batches(torch.randn(2, 4, 2, 3), torch.randint(0, 3, (2, 4)), weights)


def _alone(model: FlatModel, vector: torch.Tensor, batches: Batches, client: int) -> torch.Tensor:
    count = (4, 2)[client]
    model.load(vector)
    _, gradient = model.loss_and_gradient(
        batches.inputs[client, :count], batches.targets[client, :count]
    )
    return gradient.clone()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_are_those_of_each_client_alone(bias: bool, shared: bool) -> None:
    model, batches = FlatModel(_layers(3, bias)), _two_clients()
    assert is_chain(model)
    vectors = model.vector.repeat(2, 1)
    if not shared:
        vectors += 0.3 * torch.randn(2, model.size)
    made = Chain(model).gradients(vectors[0] if shared else vectors, batches)
    for client in range(2):
        alone = _alone(model, vectors[client], batches, client)
        torch.testing.assert_close(made[client], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_a_step_goes_against_the_gradient_of_each_client(bias: bool) -> None:
    model, batches = FlatModel(_layers(3, bias)), _two_clients()
    vectors = model.vector.repeat(2, 1) + 0.3 * torch.randn(2, model.size)
    moved = vectors.clone()
    Chain(model).descend(moved, batches, 0.5)
    for client in range(2):
        expected = vectors[client] - 0.5 * _alone(model, vectors[client], batches, client)
        torch.testing.assert_close(moved[client], expected, rtol=1e-4, atol=1e-6)


def test_other_models_are_no_chains() -> None:
    layers = _layers(3)
    layers[1].weight.requires_grad_(False)
    others = (
        layers,
        nn.Sequential(nn.Linear(6, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.Softmax(dim=1)),
        nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 3))),
        nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(6, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.ELU(inplace=True)),
    )
    assert not any(is_chain(FlatModel(layers)) for layers in others)


@pytest.mark.parametrize("name", ["classification", "binary", "regression", "multilabel"])
def test_gradients_of_outputs_are_those_of_the_weighted_loss(name: str) -> None:
    task = _task(name)
    outputs = 4 * torch.randn(8, 1 if name in ("binary", "regression") else 5)
    targets = {
        "classification": torch.arange(8) % 5,
        "binary": torch.arange(8) % 2,
        "regression": torch.randn(8),
        "multilabel": (torch.rand(8, 5) > 0.5).float(),
    }[name]
    weights = torch.rand(8)
    leaf = outputs.clone().requires_grad_()
    (expected,) = torch.autograd.grad((weights * task.losses(leaf, targets)).sum(), leaf)
    made = output_gradients(task, outputs, targets, weights)
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)


def test_a_subclass_of_classification_keeps_its_own_loss() -> None:
    class Doubled(Classification):
        def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return 2 * super().losses(outputs, targets)

    settings = compose([]).task
    outputs, targets, weights = torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.ones(4)
    once, twice = (
        output_gradients(kind(settings), outputs, targets, weights)
        for kind in (Classification, Doubled)
    )
    torch.testing.assert_close(twice, 2 * once)


def test_outputs_that_are_very_large_have_finite_gradients() -> None:
    outputs = torch.tensor([[1e4, -1e4, 0.0]])
    made = output_gradients(_task("classification"), outputs, torch.tensor([1]), torch.ones(1))
    assert made.tolist() == [[1.0, -1.0, 0.0]]
