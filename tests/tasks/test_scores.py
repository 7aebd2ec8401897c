"""Held-out examples of a device: who they are, and what they say of a model, for every task."""

import pytest
import torch
from torch import nn

from fedsketch.conf import compose
from fedsketch.tasks.built_in import make_task
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.data.holdout import held_out_by_content, held_out_count, split
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.scores import score_names, scores_of

TARGETS = {
    "classification": torch.tensor([0, 2, 1]),
    "binary": torch.tensor([0, 1, 1]),
    "regression": torch.tensor([0.1, -2.0, 30.0]),
    "multilabel": torch.tensor([[0.0, 1], [1, 1], [0, 0]]),
}
CLASSES = {"classification": 3, "binary": 2, "regression": 1, "multilabel": 2}


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_both_parts_of_a_split_have_an_example_if_there_are_two(share: float) -> None:
    for examples in range(2, 60):
        trained, held_out = split(examples, share, seed=4)
        assert sorted([*trained.tolist(), *held_out.tolist()]) == list(range(examples))
        assert len(held_out) == held_out_count(examples, share)
        assert min(len(trained), len(held_out)) >= 1
        assert abs(len(held_out) - share * examples) <= 1
    assert held_out_count(59, share) >= held_out_count(58, share)


def test_one_example_more_does_not_change_which_others_are_held_out_by_content() -> None:
    inputs = torch.randn(400, 3, generator=torch.Generator().manual_seed(1))
    examples = Examples(inputs, torch.arange(400) % 3)
    held = held_out_by_content(examples, 0.3, seed=4)
    assert 0.2 < held.double().mean() < 0.4
    without = torch.arange(400) != 17
    fewer = examples.take(torch.nonzero(without).squeeze(1))
    assert torch.equal(held_out_by_content(fewer, 0.3, seed=4), held[without])
    assert not torch.equal(held_out_by_content(examples, 0.3, seed=5), held)
    assert not held_out_by_content(examples, 0.0, seed=4).any()


def test_nothing_is_held_out_of_a_single_example_or_for_no_share() -> None:
    for examples, share in ((0, 0.5), (1, 0.5), (7, 0.0)):
        trained, held_out = split(examples, share, seed=4)
        assert trained.tolist() == list(range(examples))
        assert not len(held_out)


@pytest.mark.parametrize("name", TARGETS)
def test_every_task_has_scores_from_0_to_1_and_a_bounded_loss(name: str) -> None:
    task = make_task(compose([f"task={name}"]).task)
    outputs = task.outputs(CLASSES[name])
    model = FlatModel(nn.Linear(4, outputs), task=task)
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)) * 100
    examples = Examples(inputs, TARGETS[name])
    scores = scores_of(model, examples, 2.0, apart=False)
    names = score_names(task, CLASSES[name])
    assert scores.shape == (3, len(names))
    assert ((scores >= 0) & (scores <= 1)).all()
    torch.testing.assert_close(scores_of(model, examples, 2.0, apart=True), scores)
    with torch.no_grad():
        made = model.module(inputs)
        metrics = task.metrics(made, TARGETS[name])
        losses = task.losses(made, TARGETS[name]).clamp(max=2.0)
    assert float(scores[:, -1].mean()) == pytest.approx(float(losses.mean()) / 2)
    for column, name_of_score in enumerate(names[:-1]):
        assert float(scores[:, column].mean()) == pytest.approx(metrics[name_of_score])
