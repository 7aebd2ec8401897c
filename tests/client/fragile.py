"""A package with a strategy, a task, a model and a feature map, which raise for some records: each for others."""

PACKAGE = "plugin_fragile"
RUN = ("strategy=fragile", "task=fragile", "model=fragile", "model.features=fragile")
FOR_THE_MAP, FOR_THE_MODEL = 0.95, 0.8  # records with a pixel from here on make them raise
FOR_THE_TASK = 2  # the class that its table of weights does not have

_TASK = """
from typing import ClassVar
from fedsketch.conf.settings import TaskSettings
from fedsketch.conf.targets import Targets

class Fragile(TaskSettings):
    targets: ClassVar = Targets.CLASSES
    metrics: ClassVar = ()

SETTINGS = Fragile
"""
_CODE = f"""
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from fedsketch import Aggregate, DeviceHalf, Strategy, StrategySettings, Task

class Weighted(Task):
    weights = torch.tensor([1.0, 2.0])

    def losses(self, outputs, targets):
        return cross_entropy(outputs, targets, reduction="none") * self.weights[targets]

class Linear(nn.Module):
    def __init__(self, numbers, outputs):
        super().__init__()
        self.out, self.table = nn.Linear(numbers, outputs), nn.Embedding(1, outputs)

    def forward(self, inputs):
        bright = inputs.flatten(1).amax(1) >= {FOR_THE_MODEL}
        return self.out(inputs.flatten(1)) + self.table(bright.long())  # the table has no row 1

def build(settings, shape, outputs):
    return Linear(torch.Size(shape).numel(), outputs)

class Map(nn.Module):
    def forward(self, inputs):
        if bool((inputs >= {FOR_THE_MAP}).any()):
            raise ValueError(f"The map does not like {{inputs}}.")
        return inputs

def make(shape):
    return Map(), shape

class Step(Strategy[StrategySettings]):
    def update(self, server_round: int, aggregate: Aggregate) -> None:
        self.model.vector.sub_(aggregate.sum / self.units(aggregate))

class Half(DeviceHalf[None]):
    def shorten(self, prepared, rows):
        return rows.flip(1)

SERVER, DEVICE = Step, Half
"""
_STRATEGY = """
name: fragile
local: { steps: 1, epochs: null, batch: 0, lr: 0.1, momentum: 0.0 }
server: { optimizer: sgd, lr: 1.0, momentum: 0.0 }
"""
_MODEL = "name: fragile\n" + "".join(
    f"{key}: null\n" for key in ("features", "weights", "trainable", "lora_rank", "lora_alpha")
)
FILES = {
    "__init__.py": "",
    "task/fragile.yaml": "name: fragile",
    "task/fragile.py": _TASK,
    "model/fragile.yaml": _MODEL,
    "strategy/fragile.yaml": _STRATEGY,
    "code.py": _CODE,
}
ENTRIES = {
    "fedsketch.conf": f"x = {PACKAGE}",
    "fedsketch.strategies": f"fragile = {PACKAGE}.code",
    "fedsketch.tasks": f"fragile = {PACKAGE}.code:Weighted",
    "fedsketch.models": f"fragile = {PACKAGE}.code:build",
    "fedsketch.features": f"fragile = {PACKAGE}.code:make",
}
