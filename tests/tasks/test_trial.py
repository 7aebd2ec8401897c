"""What does not fit is one sentence, before a run starts."""

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedsketch.conf import compose
from fedsketch.conf.settings import Metric, TaskSettings
from fedsketch.conf.targets import Targets
from fedsketch.conf.types import frozen
from fedsketch.errors import ModelError
from fedsketch.tasks.built_in import CLASSIFICATION
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.gradients.per_example import PerExample
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.task import Task
from fedsketch.tasks.trial import try_out

IMAGES = Examples(torch.rand(2, 1, 2, 3), torch.tensor([0, 2]))
TOKENS = Examples(torch.ones(2, 6, dtype=torch.int64), torch.tensor([0, 2]))


def refusal(module: nn.Module, examples: Examples, task: Task = CLASSIFICATION) -> str:
    with pytest.raises(ModelError) as caught:
        try_out(compose(), FlatModel(module, task=task), 3, examples)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


class Pair(nn.Module):
    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, inputs


def test_what_fits_passes() -> None:
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)))
    try_out(compose(), model, 3, IMAGES)
    try_out(compose(), model, 3, IMAGES.take(torch.arange(0)))
    embedded = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(12, 3))
    try_out(compose(), FlatModel(embedded), 3, TOKENS)


@pytest.mark.parametrize(
    ("layers", "examples", "sentence"),
    [
        (lambda: nn.Linear(6, 3), TOKENS, "an example is int64 of the shape (6,)"),
        (lambda: nn.Linear(7, 3), IMAGES, "an example is float32 of the shape (1, 2, 3)"),
        (lambda: nn.Linear(3, 3), IMAGES, "outputs of the shape (2, 1, 2, 3) of 2 examples"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4)), IMAGES, "needs (2, 3)"),
        (lambda: nn.Sequential(nn.Flatten(0), nn.Linear(12, 3)), IMAGES, "the shape (3,)"),
        (Pair, IMAGES, "does not return a tensor"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    layers: Callable[[], nn.Module], examples: Examples, sentence: str
) -> None:
    refused = refusal(layers(), examples)
    assert "model=mlp and data=digits" in refused
    assert sentence in refused


@frozen
class _Own(TaskSettings):
    targets: ClassVar[Targets] = Targets.CLASSES
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("good"),)


class Own(Task):
    """Right, unless one of its parts is replaced."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.square().sum(dim=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"good": torch.ones(len(targets))}


FLAWS: dict[str, tuple[str, Callable[..., object], str]] = {
    "a mean": ("losses", lambda o, t: o.mean(), "losses of the shape () of 2 examples"),
    "a matrix": ("losses", lambda o, t: o, "losses of the shape (2, 3) of 2 examples"),
    "no number": ("losses", lambda o, t: o.sum(dim=1) / 0, "that is not finite"),
    "no gradient": ("losses", lambda o, t: t.float(), "losses without a gradient"),
    "no metric": ("metrics", lambda o, t: {}, "gives the metrics loss, and its settings name good"),
    "a score above 1": ("scores", lambda o, t: {"good": 2.0 + t}, "from 0 to 1"),
    "a mean score": ("scores", lambda o, t: {"good": torch.tensor(0.5)}, "for each example"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_task_that_does_not_do_as_it_says_is_refused(flaw: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    right, wrong = Own(_Own("own")), Own(_Own("own"))
    try_out(compose(), FlatModel(module, task=right), 3, IMAGES)
    method, replaced, sentence = FLAWS[flaw]
    setattr(wrong, method, replaced)
    refused = refusal(module, IMAGES, wrong)
    assert "task=own" in refused
    assert sentence in refused


@pytest.mark.parametrize("flaw", ["a mean", "a matrix"])
def test_no_gradient_is_made_of_losses_of_another_shape(flaw: str) -> None:
    wrong = Own(_Own("own"))
    setattr(wrong, *FLAWS[flaw][:2])
    model = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), task=wrong)
    with pytest.raises(ModelError, match="return one number for each"):
        model.loss_and_gradient(IMAGES.inputs, IMAGES.targets)
    with pytest.raises(ModelError, match="return one number for each"):
        PerExample(model).gradients(IMAGES.inputs, IMAGES.targets)
