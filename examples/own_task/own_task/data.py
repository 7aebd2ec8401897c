"""The table: a row per patient. Names and ranges are public knowledge; nothing here is taken from the rows."""

import csv
from pathlib import Path

import torch

from fedsketch import Dataset, Examples, PartitionedSettings

TABLE = Path(__file__).parent / "visits.csv"
WARDS = ("cardiology", "maternity", "neurology", "oncology", "surgery")
HOSPITALS = ("north", "river", "south")


def load(settings: PartitionedSettings, seed: int) -> Dataset:
    """Return the table, divided into training and test patients."""
    with open(settings.root or TABLE) as file:
        rows = list(csv.DictReader(file))
    inputs = [(WARDS.index(r["ward"]), int(r["age"]) / 100, int(r["drugs"]) / 10) for r in rows]
    patients = Examples(torch.tensor(inputs), torch.tensor([float(r["visits"]) for r in rows]))
    groups = torch.tensor([HOSPITALS.index(r["hospital"]) for r in rows])
    shuffled = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    test, train = shuffled.tensor_split([len(rows) // 5])
    return Dataset("visits", patients.take(train), patients.take(test), 1, groups=groups[train])
