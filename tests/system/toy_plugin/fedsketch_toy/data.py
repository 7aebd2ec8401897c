"""Two classes: dark and bright."""

import torch

from fedsketch.tasks.data.examples import Dataset, Examples
from fedsketch_toy.conf.data.toy import ToyData


def load(settings: ToyData, seed: int) -> Dataset:
    targets = torch.arange(settings.examples) % 2
    noise = torch.rand(settings.examples, 1, 2, 3, generator=torch.Generator().manual_seed(seed))
    examples = Examples(noise + targets.view(-1, 1, 1, 1), targets)
    return Dataset("toy", train=examples, test=examples, classes=2)
