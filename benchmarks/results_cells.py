"""What `make results` has recorded, by data set, preset and epsilon: means and deviations over seeds, and who is
ahead."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, stdev

from presets import EPSILONS, Panel, Preset
from run_store import Record

LEAST = 0.5  # points: what is less is called level, however sure


@dataclass(frozen=True)
class Cell:
    """The runs of one preset at one epsilon, which differ in their seeds."""

    records: tuple[Record, ...]

    @property
    def accuracies(self) -> list[float]:
        return [float(record["accuracy"]) for record in self.records]

    @property
    def accuracy(self) -> float:
        return mean(self.accuracies)

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds; 0 for one."""
        return stdev(self.accuracies) if len(self.records) > 1 else 0.0

    @property
    def variance_of_mean(self) -> float:
        """Unknown, and so infinite, with one seed."""
        return self.deviation**2 / len(self.records) if len(self.records) > 1 else math.inf

    def mean(self, key: str) -> float:
        """Return the spread of a number that every record has."""
        return mean(float(record[key]) for record in self.records)

    def per_round(self, key: str) -> float:
        """Return the value of a number that counts all rounds of a run."""
        return mean(float(record[key]) / record["rounds"] for record in self.records)

    @property
    def wire(self) -> float:
        """Bytes up and down per client and round, keys and headers included."""
        return self.per_round("uplink_bytes") + self.per_round("downlink_bytes")


@dataclass(frozen=True)
class Difference:
    """Points that a preset is ahead of the full dimension, and the standard error of that."""

    points: float
    error: float

    @property
    def word(self) -> str:
        if math.isinf(self.error):
            return "undecided"
        if abs(self.points) < max(LEAST, 2 * self.error):
            return "level"
        return "ahead" if self.points > 0 else "behind"


class Results:
    """All cells, by data set, preset and epsilon."""

    def __init__(self, records: Iterable[Record]) -> None:
        found: defaultdict[tuple[str, str, float], dict[str, Record]] = defaultdict(dict)
        for record in records:
            told = dict(override.split("=", 1) for override in record["overrides"])
            place = (told["data"], told["experiment"], float(told["privacy.epsilon"]))
            # A later record of the same run replaces an earlier one.
            found[place][told["seed"]] = record
        self._cells = {
            place: Cell(tuple(by_seed[seed] for seed in sorted(by_seed, key=int)))
            for place, by_seed in found.items()
        }

    @property
    def data(self) -> list[str]:
        """The data sets, in the order of the records."""
        return list(dict.fromkeys(data for data, _, _ in self._cells))

    @property
    def records(self) -> list[Record]:
        return [record for cell in self._cells.values() for record in cell.records]

    def cell(self, data: str, preset: Preset, epsilon: float) -> Cell | None:
        return self._cells.get((data, preset.name, epsilon))

    def row(self, data: str, preset: Preset) -> dict[float, Cell]:
        """Return the cells of a preset that were played, by epsilon."""
        cells = {epsilon: self.cell(data, preset, epsilon) for epsilon in EPSILONS}
        return {epsilon: cell for epsilon, cell in cells.items() if cell is not None}

    def differences(self, data: str, panel: Panel, preset: Preset) -> dict[float, Difference]:
        """Return how it compares with the full dimension of the panel, at every epsilon that both were played at."""
        full = self.row(data, panel.baseline)
        return {
            epsilon: Difference(
                cell.accuracy - full[epsilon].accuracy,
                math.sqrt(cell.variance_of_mean + full[epsilon].variance_of_mean),
            )
            for epsilon, cell in self.row(data, preset).items()
            if epsilon in full
        }
