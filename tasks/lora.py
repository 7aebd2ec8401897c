"""Low-rank adapters (LoRA: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models").

A linear layer with a frozen weight W0 (o x i) computes, by equation (3) there,

    h = W0 x + (alpha / r) B A x,

where only A (r x i) and B (o x r) are trained: r (i + o) numbers instead of i o. A starts at random and B at zero, so
that the first model is the one without adapters. After training W0 + (alpha / r) B A is a plain weight again
(`plain_state`).
"""

import torch
from torch import Tensor, nn

from fedsketch.tasks.errors import ModelError
from fedsketch.tasks.initial import initialise
from fedsketch.tasks.named import named_tensors


class LoraLinear(nn.Module):
    """A frozen linear layer and its adapter. A and B are linear layers, so that gradients of single examples are as
    fast as theirs."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        place = base.weight.device
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, device=place)  # A
        self.up = nn.Linear(rank, base.out_features, bias=False, device=place)  # B
        self.scale = alpha / rank

    def forward(self, inputs: Tensor) -> Tensor:
        adapted: Tensor = self.base(inputs) + self.scale * self.up(self.down(inputs))
        return adapted

    def start(self, seed: int) -> None:
        """A from the seed, by the law of linear layers; B zero."""
        initialise(self.down, seed)
        nn.init.zeros_(self.up.weight)

    def merged(self) -> Tensor:
        """The weight of the one linear layer that computes the same."""
        with torch.no_grad():
            return self.base.weight + self.scale * (self.up.weight @ self.down.weight)


def adapted(name: str, layer: nn.Module, rank: int, alpha: float) -> nn.Module:
    """A linear layer whose weight is not trained, with an adapter; every other layer as it is."""
    if type(layer) is not nn.Linear or layer.weight.requires_grad:
        return layer
    smaller = min(layer.in_features, layer.out_features)
    if rank >= smaller:
        raise ModelError(
            f"model.lora_rank={rank} saves nothing at layer '{name}' of {layer.in_features} x {layer.out_features}: "
            f"set a rank below {smaller}, or train the layer as a whole by model.trainable=['{name}.*', ...]."
        )
    return LoraLinear(layer, rank, alpha)


def start_adapters(module: nn.Module, seed: int) -> None:
    """The first values of all adapters. Each has a seed of its own, and none is that of the model's layers."""
    generator = torch.Generator().manual_seed(seed)
    generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
    for layer in module.modules():
        if isinstance(layer, LoraLinear):
            layer.start(int(torch.randint(2**62, (), generator=generator)))


def plain_state(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers under the names that they have without adapters, with adapters merged: what
    `load_state_dict` of the plain module takes. What has two names is there under both."""
    state = named_tensors(module)
    for name, layer in module.named_modules(remove_duplicate=False):
        if isinstance(layer, LoraLinear):
            prefix = f"{name}." if name else ""
            state[f"{prefix}weight"] = layer.merged()
            if layer.base.bias is not None:
                state[f"{prefix}bias"] = layer.base.bias
            for own in ("base.weight", "base.bias", "down.weight", "up.weight"):
                state.pop(f"{prefix}{own}", None)
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
