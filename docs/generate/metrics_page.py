"""Every number that a run writes down. The explanations are in metrics.yaml, because no code needs them."""

from pathlib import Path

import yaml
from wrapping import item, page

from fedsketch.conf.metric_names import TAKEN
from fedsketch.conf.plugins import FOLDER, settings_class
from fedsketch.conf.settings import LOSS

_FILE = Path(__file__).with_name("metrics.yaml")


def _of_tasks() -> set[str]:
    found = {LOSS.name}
    for file in (FOLDER / "task").glob("*.yaml"):
        found |= {metric.name for metric in settings_class("task", file.stem).metrics}
    return found


def explanations() -> dict[str, dict[str, str]]:
    """By section of the page."""
    return yaml.safe_load(_FILE.read_text())


def unexplained() -> list[str]:
    """Names that runs write and nobody explains."""
    told = {name.split(".")[0] for names in explanations().values() for name in names}
    return sorted((TAKEN | _of_tasks()) - told)


def invented() -> list[str]:
    """Names that are explained and that no run writes."""
    told = {name.split(".")[0] for names in explanations().values() for name in names}
    return sorted(told - TAKEN - _of_tasks() - {"federated_NAME"})


def metrics() -> str:
    sections = []
    for title, names in explanations().items():
        sections += [
            f"## {title}",
            "\n".join(item(f"**`{name}`**: {told}") for name, told in names.items()),
        ]
    return page(
        "Metrics",
        "For those who read the numbers of a run. `metrics.jsonl` has a line of JSON for every round, `summary.json` "
        "one object for the whole run. A number that was not measured is null.",
        *sections,
    )
