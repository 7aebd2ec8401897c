"""Norms, clipped sums and projections of per-example gradients, and examples that are not finite."""

import pytest
import torch
from torch import Tensor

from fedsketch.errors import ModelError
from fedsketch.tasks.gradients.per_example import PerExample
from fedsketch.tasks.gradients.slot_gradients import OuterProducts, SumsOfOuterProducts
from tests.tasks.one_by_one import assert_close, built_in, clip_to, loop


# ---------------------------------------------------------------------- norms
def test_norms_of_terms_that_cancel_are_right() -> None:
    """The Gram route would lose the norm in rounding: positions bring opposite gradients to nearly the same inputs."""
    generator = torch.Generator().manual_seed(1)
    once = torch.randn(1, 1, 60, 1, generator=generator)
    inputs = torch.cat([once, once * (1 + 1e-3)], dim=3)
    outputs = torch.randn(1, 1, 60, 1, generator=generator)
    slot = SumsOfOuterProducts(inputs, torch.cat([outputs, -outputs], dim=3))
    true = float(slot.rows().double().square().sum())
    fresh = SumsOfOuterProducts(inputs, torch.cat([outputs, -outputs], dim=3))
    assert float(fresh.norms_squared()) == pytest.approx(true, rel=1e-4)


def test_norms_and_clipped_sums_make_no_gradients_of_linear_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: OuterProducts) -> Tensor:
        raise AssertionError("a gradient per example")

    monkeypatch.setattr(OuterProducts, "rows", refuse)
    model, inputs, targets = built_in("mlp")
    PerExample(model).norms(inputs, targets)
    PerExample(model).clipped_sum(inputs, targets, clip_to(0.1))


# ---------------------------------------------------------------------- sums and projections
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet", "transformer"])
def test_clipped_sum_is_the_sum_of_clipped_gradients(name: str) -> None:
    model, inputs, targets = built_in(name)
    rows = loop(model, inputs, targets)
    norms = torch.linalg.vector_norm(rows, dim=1)
    bound = float(norms.median())  # so that some are clipped and some are not
    expected = clip_to(bound)(norms) @ rows
    assert_close(PerExample(model).clipped_sum(inputs, targets, clip_to(bound)), expected)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet", "transformer"])
@pytest.mark.parametrize("by_direction", [True, False])
def test_projections_are_those_of_the_gradients(name: str, by_direction: bool) -> None:
    model, inputs, targets = built_in(name)
    rows = loop(model, inputs, targets)

    def basis(size: int, directions: int) -> Tensor:
        made = torch.randn(
            min(directions, size), size, generator=torch.Generator().manual_seed(2)
        ).T
        return made if by_direction else made.contiguous()

    bases = [basis(slot.stop - slot.start, 7) for slot in model.layout]
    parts = [
        rows[:, slot.start : slot.stop] @ basis
        for slot, basis in zip(model.layout, bases, strict=True)
    ]
    found = PerExample(model)
    assert_close(found.projected(inputs, targets, bases), torch.cat(parts, dim=1))
    whole = basis(model.size, 9)
    assert_close(found.projected(inputs, targets, whole), rows @ whole)


def test_as_many_directions_as_parameters_keep_the_norm() -> None:
    model, inputs, targets = built_in("mlp")
    found = PerExample(model)
    bases = [torch.eye(slot.stop - slot.start) for slot in model.layout]
    assert_close(found.projected(inputs, targets, bases), found.gradients(inputs, targets))


@pytest.mark.parametrize("name", ["cnn", "resnet"])
def test_micro_batches_change_nothing(name: str) -> None:
    model, inputs, targets = built_in(name)
    one_by_one, whole = PerExample(model, memory=1), PerExample(model, memory=1 << 30)
    batch = inputs, targets
    assert_close(one_by_one.norms(*batch), whole.norms(*batch))
    assert_close(one_by_one.gradients(*batch), whole.gradients(*batch))
    weights = torch.rand(len(targets))
    assert_close(one_by_one.weighted_sum(*batch, weights), whole.weighted_sum(*batch, weights))
    basis = torch.randn(model.size, 3)
    assert_close(one_by_one.projected(*batch, basis), whole.projected(*batch, basis))
    assert [len(block) for block in one_by_one.blocks(*batch)] == [1] * len(targets)
    assert_close(torch.cat(list(one_by_one.blocks(*batch))), whole.gradients(*batch))


def test_a_batch_larger_than_the_memory_comes_in_several_parts() -> None:
    model, inputs, targets = built_in("cnn")
    bound = 4 * 10 * model.size  # less than the gradients of ten examples
    sizes = [len(block) for block in PerExample(model, bound).blocks(inputs, targets)]
    assert len(sizes) > 1
    assert sum(sizes) == len(targets)


def test_an_empty_batch_gives_zeros() -> None:
    model, inputs, targets = built_in("cnn")
    empty, found = (inputs[:0], targets[:0]), PerExample(model)
    assert found.norms(*empty).shape == (0,)
    assert found.gradients(*empty).shape == (0, model.size)
    assert [block.shape for block in found.blocks(*empty)] == [(0, model.size)]
    assert found.projected(*empty, torch.eye(model.size, 3)).shape == (0, 3)
    assert torch.equal(found.weighted_sum(*empty, torch.empty(0)), torch.zeros(model.size))
    assert torch.equal(found.clipped_sum(*empty, clip_to(1.0)), torch.zeros(model.size))


# ---------------------------------------------------------------------- examples that are not finite
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("name", ["logistic", "cnn", "resnet", "transformer"])
def test_an_example_that_is_not_finite_leaves_the_others_alone(name: str, value: float) -> None:
    model, inputs, targets = built_in(name)
    spoilt = inputs.clone()
    spoilt[2] = value
    found, others = PerExample(model), torch.arange(len(targets)) != 2
    clean = found.gradients(inputs, targets)
    assert_close(found.gradients(spoilt, targets)[others], clean[others])
    norms = found.norms(spoilt, targets)
    assert_close(norms[others], found.norms(inputs, targets)[others])
    total = found.weighted_sum(spoilt, targets, others.float())
    assert_close(total, clean[others].sum(dim=0))
    if not bool(norms[2].isfinite()):
        expected = clip_to(0.1)(norms[others]) @ clean[others]
        assert_close(found.clipped_sum(spoilt, targets, clip_to(0.1)), expected)


def test_all_examples_may_be_left_out() -> None:
    model, inputs, targets = built_in("cnn")
    total = PerExample(model).weighted_sum(inputs, targets, torch.zeros(len(targets)))
    assert torch.equal(total, torch.zeros(model.size))


# ---------------------------------------------------------------------- the model and its user
def test_gradients_follow_the_live_vector_and_leave_the_model_alone() -> None:
    model, inputs, targets = built_in("mlp")
    kept = model.loss_and_gradient(inputs, targets)[1].clone()
    found = PerExample(model)
    before = found.gradients(inputs, targets)
    model.vector.mul_(0.5)
    assert not torch.allclose(found.gradients(inputs, targets), before)
    assert torch.equal(model.gradient, kept)
    assert not before.requires_grad
    assert all(not layer._forward_hooks for layer in model.module.modules())


def test_weights_and_bases_of_another_size_are_refused() -> None:
    model, inputs, targets = built_in("mlp")
    found = PerExample(model)
    with pytest.raises(ModelError, match="one weight per example"):
        found.weighted_sum(inputs, targets, torch.ones(3))
    with pytest.raises(ModelError, match="make them for this model"):
        found.projected(inputs, targets, torch.ones(model.size - 1, 2))
    with pytest.raises(ModelError, match="make them for this model"):
        found.projected(inputs, targets, [torch.ones(model.size, 2)])
