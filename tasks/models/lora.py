"""Low-rank adapters (LoRA: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models").

With an adapter, a linear layer with a frozen weight W0 (o x i) computes (equation (3) of the paper)

    h = W0 x + (alpha / r) B A x,

where only A (r x i) and B (o x r) are trained: r (i + o) numbers instead of i o. A starts at random and B at zero, so
that the initial model is the one without adapters. After training, W0 + (alpha / r) B A is an ordinary weight again
(`plain_state`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsketch.errors import ModelError
from fedsketch.tasks.models.initialisation import initialise
from fedsketch.tasks.models.named_tensors import named_tensors


class LoraLinear(nn.Module):
    """A frozen linear layer and its adapter. A and B are linear layers, so that the fast method for per-example
    gradients applies (`tasks.gradients.layer_gradients`)."""

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
        """Initialise A like a linear layer, from the seed, and B with zeros."""
        initialise(self.down, seed)
        nn.init.zeros_(self.up.weight)

    def merged(self) -> Tensor:
        """Return the weight of a single linear layer that computes the same."""
        with torch.no_grad():
            return self.base.weight + self.scale * (self.up.weight @ self.down.weight)


def adapted(name: str, layer: nn.Module, rank: int, alpha: float) -> nn.Module:
    """Return a linear layer with a frozen weight together with an adapter, and every other layer as it is."""
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
    """Initialise all adapters. Each has its own seed, which differs from the seed of the model's layers."""
    generator = torch.Generator().manual_seed(seed)
    generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
    for layer in module.modules():
        if isinstance(layer, LoraLinear):
            layer.start(int(torch.randint(2**62, (), generator=generator)))


def plain_state(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers with adapters merged, under the names that they have without adapters. It fits
    `load_state_dict` of the module without adapters. A tensor with two names is there under both."""
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
