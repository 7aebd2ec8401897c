"""The network: a vector for each ward, which is learned, and a layer for the numbers."""

import torch
from torch import Tensor, nn

from own_task.conf.model.visits import VisitsModel
from own_task.data import WARDS


class Visits(nn.Module):
    def __init__(self, settings: VisitsModel, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.ward = nn.Embedding(len(WARDS), settings.width)
        self.patient = nn.Linear(shape[0] - 1, settings.width)
        self.output = nn.Linear(settings.width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        ward, patient = inputs[:, 0].long(), inputs[:, 1:]
        outputs: Tensor = self.output(torch.relu(self.ward(ward) + self.patient(patient)))
        return outputs
