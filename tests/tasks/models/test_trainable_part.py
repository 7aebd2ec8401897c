"""Models of which a part is trained: which part, what it starts from, and what is saved."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedsketch.conf import Config, compose, from_json, to_json
from fedsketch.conf.settings import ModelSettings
from fedsketch.errors import ConfigError, ModelError
from fedsketch.tasks.models import networks
from fedsketch.tasks.models.fixed_norm import FixedNorm
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.models.initialisation import initialise
from fedsketch.tasks.models.lora import LoraLinear, plain_state
from fedsketch.tasks.models.trainable_part import with_trained_part
from fedsketch.tasks.models.weights import load_weights
from fedsketch.tasks.workload import Workload
from tests.small import small

KEYS = small("model=mlp model.width=4")


@cache
def _usual() -> Config:
    return compose(KEYS)


def _config(**model: Any) -> Config:
    return replace(_usual(), model=replace(_usual().model, **model))


def _model(**model: Any) -> FlatModel:
    return Workload(_config(**model)).model()


def _named(model: FlatModel) -> list[str]:
    return [slot.name for slot in model.layout]


def _prepared(module: nn.Module, **settings: Any) -> nn.Module:
    return with_trained_part(module, ModelSettings(name="own", **settings), seed=3)


# ---------------------------------------------------------------------- patterns
def test_the_vector_holds_what_a_pattern_matches_and_nothing_else() -> None:
    model, whole = _model(trainable=("output.*", "hidden.b?as")), _model()
    assert _named(model) == ["hidden.bias", "output.weight", "output.bias"]
    assert model.size == 4 + 12 + 3
    assert list(model.frozen) == ["hidden.weight"]
    assert model.frozen_size == 24
    started = whole.module.state_dict()
    for name, tensor in model.module.state_dict().items():
        assert torch.equal(tensor, started[name])
    assert Workload(_config(trainable=("output.bias",))).parameters == whole.size


def test_training_moves_the_vector_and_leaves_the_rest() -> None:
    model = _model(trainable=("output.*",))
    body = model.frozen["hidden.weight"].clone()
    _, gradient = model.loss_and_gradient(torch.randn(5, 1, 2, 3), torch.arange(5) % 3)
    assert gradient.shape == (15,)
    assert float(gradient.abs().sum()) > 0
    model.vector.sub_(gradient)
    assert torch.equal(model.frozen["hidden.weight"], body)
    assert torch.equal(model.module.get_parameter("output.bias"), model.vector[12:])


@pytest.mark.parametrize("patterns", [("head.*",), ("output.*", "OUTPUT.bias")])
def test_a_pattern_that_matches_nothing_is_refused_with_the_names(
    patterns: tuple[str, ...],
) -> None:
    config = _config(trainable=patterns)
    for ask in (Workload(config).model, lambda: Workload(config).parameters):
        with pytest.raises(ModelError, match=r"matches no parameter.*hidden\.weight, .*output"):
            ask()


@pytest.mark.parametrize("patterns", [[], ["x" * 201], ["*"] * 101])
def test_no_pattern_and_endless_ones_are_refused(patterns: list[str]) -> None:
    tree = json.loads(to_json(_usual()))
    tree["model"]["trainable"] = patterns
    with pytest.raises(ConfigError, match="trainable"):
        from_json(json.dumps(tree))


def test_a_module_may_freeze_itself_and_a_pattern_has_the_last_word() -> None:
    def module() -> nn.Module:
        made = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        made[0].requires_grad_(False)
        return made

    assert _named(FlatModel(_prepared(module()))) == ["1.weight", "1.bias"]
    assert _named(FlatModel(_prepared(module(), trainable=("0.*",)))) == ["0.weight", "0.bias"]
    with pytest.raises(ModelError, match=r"Nothing of the model is trained.*model\.trainable"):
        _prepared(module().requires_grad_(False))


def test_a_weight_with_two_names_is_trained_by_either() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = FlatModel(_prepared(nn.Sequential(first, second), trainable=("1.weight",)))
    assert _named(model) == ["0.weight"]


def test_given_weights_are_the_start_of_both_parts(tmp_path: Path) -> None:
    given = {"hidden.weight": torch.ones(4, 6), "output.bias": torch.full((3,), 2.0)}
    save_file(given, tmp_path / "given.safetensors")
    model = _model(trainable=("output.*",), weights=str(tmp_path / "given.safetensors"))
    assert torch.equal(model.frozen["hidden.weight"], given["hidden.weight"])
    assert torch.equal(model.vector[12:], given["output.bias"])


# ---------------------------------------------------------------------- adapters
def test_adapters_start_as_the_model_without_them_and_from_the_seed() -> None:
    plain, adapted = _model(), _model(lora_rank=2)
    inputs = torch.randn(5, 1, 2, 3)
    torch.testing.assert_close(adapted.module(inputs), plain.module(inputs))
    assert _named(adapted) == [
        *("hidden.down.weight", "hidden.up.weight"),
        *("output.down.weight", "output.up.weight"),
    ]
    assert adapted.size == 2 * (6 + 4) + 2 * (4 + 3)
    assert Workload(_config(lora_rank=2)).parameters == plain.size + adapted.size
    again, other = _model(lora_rank=2), Workload(replace(_config(lora_rank=2), seed=9)).model()
    assert torch.equal(adapted.vector, again.vector)
    assert not torch.equal(adapted.vector, other.vector)
    downs = [
        x.detach() for name, x in adapted.module.named_parameters() if name.endswith("down.weight")
    ]
    assert all(float(x.abs().min()) > 0 for x in downs)
    assert not torch.equal(downs[0][:, :4], downs[1])


def test_an_adapter_adds_the_scaled_product() -> None:
    layer = LoraLinear(nn.Linear(5, 4), rank=2, alpha=6.0)
    initialise(layer, 1)
    inputs = torch.randn(7, 5)
    product = 3 * (layer.up.weight @ layer.down.weight)
    expected = layer.base(inputs) + inputs @ product.T
    torch.testing.assert_close(layer(inputs), expected)
    torch.testing.assert_close(layer.merged(), layer.base.weight + product)


def test_layers_that_are_trained_as_a_whole_get_no_adapter() -> None:
    model = _model(lora_rank=2, trainable=("output.*", "hidden.bias"))
    assert _named(model) == [
        *("hidden.base.bias", "hidden.down.weight", "hidden.up.weight"),
        *("output.weight", "output.bias"),
    ]


def test_a_layer_in_two_places_has_one_adapter() -> None:
    layer = nn.Linear(4, 4)
    model = FlatModel(_prepared(nn.Sequential(layer, nn.Tanh(), layer), lora_rank=1))
    assert model.size == 8
    assert isinstance(model.module, nn.Sequential)
    assert model.module[0] is model.module[2]


def test_adapters_that_cannot_be_are_refused() -> None:
    with pytest.raises(ModelError, match=r"saves nothing at layer 'output'.*below 3.*'output\.\*'"):
        _model(lora_rank=3)
    with pytest.raises(ModelError, match=r"set model\.lora_rank too"):
        _model(lora_alpha=2)
    with pytest.raises(ModelError, match="no linear layer"):
        _prepared(nn.Conv2d(1, 2, 3), lora_rank=1)


@pytest.mark.parametrize("more", [{}, {"trainable": ("output.*",)}, {"lora_alpha": 3}])
def test_what_is_saved_loads_into_the_plain_module(more: dict[str, Any]) -> None:
    model, config = _model(lora_rank=2, **more), _config()
    model.vector.add_(torch.randn(model.size))
    plain = networks.build(config.model, (1, 2, 3), 3, seed=99)
    plain.load_state_dict(plain_state(model.module), strict=True)
    inputs = torch.randn(5, 1, 2, 3)
    torch.testing.assert_close(plain(inputs), model.module(inputs), rtol=1e-4, atol=1e-5)


def test_a_module_that_is_one_linear_layer_is_merged_too() -> None:
    plain = nn.Linear(4, 3)
    adapted = _prepared(nn.Linear(4, 3), lora_rank=2)
    FlatModel(adapted).vector.normal_()
    plain.load_state_dict(plain_state(adapted), strict=True)
    inputs = torch.randn(5, 4)
    torch.testing.assert_close(plain(inputs), adapted(inputs))


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 1}])
def test_a_weight_with_two_names_is_saved_and_loaded_under_both(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    def tied() -> nn.Sequential:
        first, second, third = (nn.Linear(3, 3) for _ in range(3))
        second.weight = first.weight
        return nn.Sequential(first, second, third, third)

    model = FlatModel(_prepared(tied(), trainable=("2.bias", "1.bias"), **settings))
    model.vector.normal_()  # a shared weight has no adapter, which would change one of its layers only
    saved = plain_state(model.module)
    assert {"0.weight", "1.weight", "2.bias", "3.bias"} <= saved.keys()
    save_file(saved, tmp_path / "given.safetensors")
    again, once_more = tied(), tied()
    again.load_state_dict(saved, strict=True)
    load_weights(once_more, str(tmp_path / "given.safetensors"))
    for module in (again, once_more):
        inputs = torch.randn(4, 3)
        torch.testing.assert_close(module(inputs), model.module(inputs))


# ---------------------------------------------------------------------- batch norm
def _with_batch_norm() -> nn.Sequential:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    module(5 + 3 * torch.randn(20, 1, 4, 4))
    return module


def test_a_frozen_batch_norm_is_a_fixed_map_in_every_mode() -> None:
    plain = _with_batch_norm()
    inputs = torch.randn(6, 1, 4, 4)
    expected = plain.eval()(inputs)
    model = FlatModel(_prepared(plain, trainable=("3.*",)))
    for training in (True, False):
        model.module.train(training)
        torch.testing.assert_close(model.module(inputs), expected)
        for i in range(6):
            torch.testing.assert_close(model.module(inputs[i : i + 1]), expected[i : i + 1])
    assert {"1.weight", "1.running_mean", "1.running_var"} < model.frozen.keys()


def test_what_is_saved_of_a_batch_norm_loads_into_it_again() -> None:
    module = _prepared(_with_batch_norm(), trainable=("3.*",))
    again = _with_batch_norm().eval()
    again.load_state_dict(plain_state(module), strict=True)
    inputs = torch.randn(6, 1, 4, 4)
    torch.testing.assert_close(again(inputs), module(inputs))


@pytest.mark.parametrize("trainable", [None, ("1.bias", "3.*"), ("*",)])
def test_a_batch_norm_that_is_trained_stays_refused(trainable: tuple[str, ...] | None) -> None:
    with pytest.raises(ModelError, match=r"BatchNorm2d.*GroupNorm, or freeze it"):
        FlatModel(_prepared(_with_batch_norm(), trainable=trainable))


def test_a_batch_norm_without_statistics_of_its_own_is_no_fixed_map() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))
    with pytest.raises(ModelError, match="BatchNorm1d"):
        FlatModel(_prepared(module, trainable=("1.*",)))


def test_statistics_start_from_the_layers_own_and_from_the_file(tmp_path: Path) -> None:
    module = _with_batch_norm()
    tensors = {**module.state_dict(), "1.running_mean": torch.arange(4.0)}
    save_file(tensors, tmp_path / "given.safetensors")
    fresh = nn.Sequential(nn.BatchNorm1d(3, affine=False))
    fresh[0].running_var.fill_(torch.nan)  # as memory that nobody has filled may be
    initialise(fresh, 0)
    assert fresh[0].running_var.tolist() == [1.0, 1.0, 1.0]
    load_weights(module, str(tmp_path / "given.safetensors"))
    fixed = _prepared(module, trainable=("3.*",)).get_submodule("1")
    assert isinstance(fixed, FixedNorm)
    assert fixed.running_mean.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_frozen_part_of_another_model_is_refused() -> None:
    model = _model(trainable=("output.*",))
    frozen = {name: 2 * tensor for name, tensor in model.frozen.items()}
    model.load_frozen(frozen)
    assert all(torch.equal(model.frozen[name], frozen[name]) for name in frozen)
    for other in ({}, {**frozen, "more": torch.ones(1)}, {**frozen, "hidden.bias": torch.ones(1)}):
        with pytest.raises(ModelError, match="another model"):
            model.load_frozen(other)
