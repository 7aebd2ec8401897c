"""Per-example gradients: equal to one backward pass per example, for every model and for layers that only look
simple."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from fedsketch.conf.plugins import settings_class
from fedsketch.conf.settings import ModelSettings
from fedsketch.errors import ModelError
from fedsketch.tasks.gradients.factors import plan_gradients
from fedsketch.tasks.gradients.per_example import PerExample
from fedsketch.tasks.models import networks
from fedsketch.tasks.models.flat_model import FlatModel
from fedsketch.tasks.models.lora import LoraLinear
from fedsketch.tasks.models.trainable_part import with_trained_part
from tests.tasks.one_by_one import (
    BUILT_IN,
    CLASSES,
    assert_close,
    assert_right,
    batch,
    built_in,
    loop,
)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_model_agrees_with_one_backward_pass_per_example(name: str) -> None:
    assert_right(*built_in(name))


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_model_takes_the_fast_route(name: str) -> None:
    model, inputs, _ = built_in(name)
    found = plan_gradients(model, inputs[:1])
    assert not found.others
    assert found.separate


@pytest.mark.parametrize("name", BUILT_IN)
def test_factors_stand_for_the_gradients(name: str) -> None:
    """Of linear layers they are short; what a layer took as it was given shares its memory."""
    model, inputs, targets = built_in(name)
    found = PerExample(
        model, memory=4 * 3 * (plan_gradients(model, inputs[:1]).scalars + 2 * model.size)
    )
    rows, seen, shared = [], 0, False
    for pieces, own in found.factors(inputs, targets):
        assert torch.equal(own, inputs[seen : seen + len(own)])
        seen += len(own)
        rows.append(
            torch.cat(
                [b if a is None else (b[:, :, None] * a[:, None, :]).flatten(1) for b, a in pieces],
                dim=1,
            )
        )
        shared |= any(a is not None and a.data_ptr() == own.data_ptr() for _, a in pieces)
    assert seen == len(inputs)
    assert_close(torch.cat(rows), loop(model, inputs, targets))
    assert shared is (name in ("logistic", "mlp"))
    assert list(found.factors(inputs[:0], targets[:0])) == []


# ---------------------------------------------------------------------- layers
class Lambda(nn.Module):
    """A function as a module, with the layers that it uses."""

    def __init__(self, function: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(self, inputs)


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def head(module: nn.Module, shape: tuple[int, ...]) -> nn.Sequential:
    """The module, and logits of whatever it makes."""
    with torch.no_grad():
        features = module(torch.zeros(1, *shape)).numel()
    return nn.Sequential(module, nn.Tanh(), nn.Flatten(), nn.Linear(features, CLASSES))


def check(module: nn.Module, shape: tuple[int, ...]) -> None:
    assert_right(FlatModel(module), *batch(6, shape))


KNOWN: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(9, 4), (9,)),
    "linear without bias": (nn.Linear(9, 4, bias=False), (9,)),
    "linear on few positions": (nn.Linear(40, 40), (3, 40)),
    "linear on many positions": (nn.Linear(3, 2), (4, 5, 3)),
    "convolution": (nn.Conv2d(2, 3, 3), (2, 7, 6)),
    "convolution with few positions": (nn.Conv2d(16, 40, 3), (16, 4, 4)),
    "convolution in groups": (nn.Conv2d(4, 6, 3, groups=2, bias=False), (4, 6, 6)),
    "depthwise convolution": (nn.Conv2d(3, 6, 3, groups=3), (3, 6, 6)),
    "convolution, same size": (nn.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)), (2, 7, 6)),
    "convolution, valid": (nn.Conv2d(2, 3, 2, padding="valid"), (2, 5, 6)),
    "reflected borders": (nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"), (2, 6, 6)),
    "circular borders": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 6, 6)),
    "group norm": (nn.GroupNorm(2, 4), (4, 5, 5)),
    "group norm of vectors": (nn.GroupNorm(2, 6), (6,)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("kind", KNOWN)
def test_known_layers_are_fast_and_right(kind: str) -> None:
    layer, shape = KNOWN[kind]
    module = head(layer, shape)
    assert not plan_gradients(FlatModel(module), torch.zeros(1, *shape)).others
    check(module, shape)


@settings(max_examples=40)
@given(
    channels=st.integers(1, 3),
    filters=st.integers(1, 3),
    groups=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
)
def test_every_convolution_agrees_with_the_loop(
    channels: int,
    filters: int,
    groups: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    bias: bool,
) -> None:
    torch.manual_seed(0)
    shape = (channels * groups, 8, 7)
    layer = nn.Conv2d(
        channels * groups, filters * groups, kernel, stride, padding, dilation, groups, bias
    )
    check(head(layer, shape), shape)


# ---------------------------------------------------------------------- what only looks like a known layer
def _twice(self: nn.Module, inputs: Tensor) -> Tensor:
    return self.linear(self.linear(inputs).tanh())


def _functional(self: nn.Module, inputs: Tensor) -> Tensor:
    return self.linear(inputs) + functional.linear(inputs, self.linear.weight).square()


def _penalty(self: nn.Module, inputs: Tensor) -> Tensor:
    return self.linear(inputs) * torch.stack([self.linear.weight, self.linear.weight]).sum()


def _keyword(self: nn.Module, inputs: Tensor) -> Tensor:
    return self.linear(input=inputs)


def _flipped(self: nn.Module, inputs: Tensor) -> Tensor:
    return self.linear(inputs.flip(0)).flip(0)


def _centred(self: nn.Module, inputs: Tensor) -> Tensor:
    return self.linear(inputs + inputs.mean(dim=0))


def _positions_first(self: nn.Module, inputs: Tensor) -> Tensor:
    """Six positions for six examples, so that the shapes do not tell them apart."""
    return self.linear(inputs.unsqueeze(1).expand(-1, 6, -1).transpose(0, 1)).sum(dim=0)


def _skipped(self: nn.Module, inputs: Tensor) -> Tensor:
    return inputs.square()


def hooked() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda layer, inputs, output: output.square())
    return layer


def tied() -> nn.Module:
    """A weight whose first owner, after whom it is named, is never called."""
    owner, user = nn.Linear(4, 4), nn.Linear(4, 4)
    user.weight = owner.weight
    return Lambda(lambda self, inputs: self.user(inputs), owner=owner, user=user)


def shared() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def replaced() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.forward = lambda input: functional.linear(input, layer.weight.square())  # type: ignore[method-assign]
    return layer


TRAPS: dict[str, Callable[[], nn.Module]] = {
    "a layer called twice": lambda: Lambda(_twice, linear=nn.Linear(4, 4)),
    "a layer twice in a row of layers": lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2),
    "a weight used beside its layer": lambda: Lambda(_functional, linear=nn.Linear(4, 4)),
    "a weight inside a list": lambda: Lambda(_penalty, linear=nn.Linear(4, 4)),
    "an output that is written to": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
    "an input by keyword": lambda: Lambda(_keyword, linear=nn.Linear(4, 4)),
    "a subclass": lambda: Doubled(4, 4),
    "a layer with a hook": hooked,
    "a layer with another forward": replaced,
    "a weight of two layers": shared,
    "a weight named after an idle layer": tied,
    "a layer never called": lambda: Lambda(_skipped, linear=nn.Linear(4, 4)),
    "layer norm": lambda: nn.LayerNorm(4),
    "examples in another order": lambda: Lambda(_flipped, linear=nn.Linear(4, 4)),
    "examples mixed": lambda: Lambda(_centred, linear=nn.Linear(4, 4)),
    "positions before examples": lambda: Lambda(_positions_first, linear=nn.Linear(4, 4)),
    "all of a batch in one vector": lambda: Lambda(
        lambda self, inputs: self.linear(self.flat(inputs)).unsqueeze(0),
        flat=nn.Flatten(0),
        linear=nn.Linear(4, 4),
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_layers_that_only_look_simple_are_right_too(trap: str) -> None:
    torch.manual_seed(0)
    check(head(TRAPS[trap](), (4,)), (4,))


def test_a_layer_whose_input_is_written_to_gives_no_gradient_rather_than_a_wrong_one() -> None:
    def forward(self: nn.Module, inputs: Tensor) -> Tensor:
        hidden = inputs * 1.0
        return self.linear(hidden) + hidden.mul_(0.5)

    model = FlatModel(head(Lambda(forward, linear=nn.Linear(4, 4)), (4,)))
    assert "0.linear.weight" in plan_gradients(model, torch.zeros(1, 4)).others
    with pytest.raises(RuntimeError, match="inplace operation"):
        PerExample(model).norms(*batch(6, (4,)))


def test_a_parameter_that_is_used_behind_its_modules_back_is_refused_by_name() -> None:
    layer = nn.Linear(4, 4)
    weight = layer.weight
    layer.forward = lambda input: functional.linear(input, weight)  # type: ignore[method-assign]
    model = FlatModel(head(layer, (4,)))
    with pytest.raises(ModelError, match=r"'0\.weight' is used from a place outside its module"):
        PerExample(model).norms(*batch(6, (4,)))


# ---------------------------------------------------------------------- models of which a part is trained
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a head": ("cnn", {"trainable": ("output.*",)}),
    "layers before frozen ones": ("cnn", {"trainable": ("features.conv1.*", "hidden.bias")}),
    "biases": ("mlp", {"trainable": ("*.bias",)}),
    "a layer within a block": ("resnet", {"trainable": ("3.conv2.*", "*.norm2.bias")}),
    "adapters": ("mlp", {"lora_rank": 3}),
    "adapters and a head": ("cnn", {"lora_rank": 2, "lora_alpha": 5.0, "trainable": ("output.*",)}),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_model_agrees_with_one_backward_pass_per_example(part: str) -> None:
    """Also where its layers are followed by frozen ones; and all of it by the fast route."""
    name, chosen = PARTS[part]
    shape, options = BUILT_IN[name]
    settings = settings_class("model", name)(name=name, **options, **chosen)
    module = with_trained_part(networks.build(settings, shape, CLASSES, 0), settings, seed=1)
    for layer in module.modules():
        if isinstance(layer, LoraLinear):
            nn.init.normal_(layer.up.weight, std=0.3)  # or all gradients of A would be zero
    model, (inputs, targets) = FlatModel(module), batch(7, shape)
    assert_right(model, inputs, targets)
    found = plan_gradients(model, inputs[:1])
    assert not found.others
    assert found.separate


def test_a_frozen_batch_norm_is_fast_too() -> None:
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    body[1](5 + 3 * torch.randn(20, 4, 6, 6))  # statistics that are not those of a new layer
    module = nn.Sequential(OrderedDict(body=body, head=nn.Linear(144, CLASSES)))
    chosen = ModelSettings(name="own", trainable=("head.*",))
    model, (inputs, targets) = FlatModel(with_trained_part(module, chosen)), batch(6, (1, 8, 8))
    assert plan_gradients(model, inputs[:1]).separate
    assert_right(model, inputs, targets)


def test_a_frozen_part_that_mixes_examples_does_not_do_so_here() -> None:
    mixing = Lambda(_centred, linear=nn.Linear(4, 4)).requires_grad_(False)
    model, (inputs, targets) = FlatModel(head(mixing, (4,))), batch(6, (4,))
    assert not plan_gradients(model, inputs[:1]).separate
    assert_right(model, inputs, targets)


def test_words_and_one_dimensional_convolutions_take_the_general_route() -> None:
    words = nn.Sequential(
        nn.Embedding(11, 6), nn.Conv1d(5, 3, 2), nn.Flatten(), nn.Linear(15, CLASSES)
    )
    inputs, targets = torch.randint(11, (6, 5)), torch.randint(CLASSES, (6,))
    model = FlatModel(words)
    assert list(plan_gradients(model, inputs[:1]).others) == ["0.weight", "1.weight", "1.bias"]
    assert_right(model, inputs, targets)


def test_a_model_that_changes_between_batches_is_refused() -> None:
    def forward(self: nn.Module, inputs: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return self.linear(inputs) if self.calls < 3 else inputs

    model = FlatModel(head(Lambda(forward, linear=nn.Linear(4, 4)), (4,)))
    with pytest.raises(ModelError, match="another way than for the first batch"):
        PerExample(model).norms(*batch(6, (4,)))
