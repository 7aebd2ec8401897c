"""The page docs/results.md, from records: tables, sentences about who is ahead, and the text of results_template.txt
around them."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from presets import EPSILONS, PANELS, Panel, Preset
from results_cells import Difference, Results
from results_plots import MIDDLE

from fedsketch.server.report.number_format import size

TEMPLATE = Path(__file__).parent / "results_template.txt"
NAMES = {"fashion_mnist": "Fashion-MNIST", "mnist": "MNIST", "digits": "the 8x8 digits"}


def page(results: Results, origin: Mapping[str, str], images: Sequence[str], parts: Path) -> str:
    """Return the whole page. `origin` says how and where the records were made; `parts` is a folder of pages by others,
    which are put in."""
    sections = [_panel(results, panel, images) for panel in PANELS]
    filled = {
        "origin": "\n".join(_prose(f"- {key}: {value}") for key, value in origin.items()),
        "panels": "\n\n".join(section for section in sections if section),
        "prices": _prices(results, images),
        "parts": "\n\n".join(part.read_text().strip() for part in sorted(parts.glob("*.md"))),
    }
    text = re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], TEMPLATE.read_text())
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _prose(text: str) -> str:
    """Return the text in lines of at most 118 characters; those of a list item are indented."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 118, subsequent_indent=indent, break_on_hyphens=False)


def name_of(data: str) -> str:
    return NAMES.get(data, data)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first row is its head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _panel(results: Results, panel: Panel, images: Sequence[str]) -> str:
    """Return heading, who trusts whom, and a table, a picture and sentences for each data set; nothing without
    records."""
    played = [data for data in results.data if any(results.row(data, p) for p in panel.presets)]
    if not played:
        return ""
    facts = f"Unit: {panel.unit}. Epsilon against: `{panel.adversary}`. Trust: {panel.trust}. Setting: {panel.setting}."
    parts = [f"## {panel.title}", _prose(facts)]
    for data in played:
        parts += [f"### {name_of(data)}", _accuracies(results, panel, data)]
        image = f"results_{panel.name}_{data}.svg"
        if image in images:
            parts.append(f"![Accuracy against epsilon](images/{image})")
        parts.append("\n".join(_prose(f"- {line}") for line in verdicts(results, panel, data)))
    return "\n\n".join(part for part in parts if part)


def _accuracies(results: Results, panel: Panel, data: str) -> str:
    rows = [["`experiment=`", "", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]]
    for preset in panel.presets:
        row = results.row(data, preset)
        cells = []
        for epsilon in EPSILONS:
            cell = row.get(epsilon)
            deviation = "" if cell is None or len(cell.records) == 1 else f" ± {cell.deviation:.1f}"
            cells.append("" if cell is None else f"{cell.accuracy:.1f}{deviation}")
        if row:
            rows.append([f"`{preset.name}`", preset.title, *cells])
    return table(rows)


def verdicts(results: Results, panel: Panel, data: str) -> list[str]:
    """Return, for each preset, where it is ahead of the full dimension, behind or level, and how many bytes it
    saves."""
    lines = []
    for preset in panel.presets[1:]:
        differences = results.differences(data, panel, preset)
        if differences:
            told = "; ".join(
                f"{word} at epsilon {_listed(differences, word)}"
                for word in ("ahead", "behind", "level", "undecided")
                if any(difference.word == word for difference in differences.values())
            )
            lines.append(f"**{preset.title}**: {told}. {_bytes(results, panel, preset, data)}")
    return lines


def _listed(differences: Mapping[float, Difference], word: str) -> str:
    found = [(e, d) for e, d in differences.items() if d.word == word]
    return ", ".join(f"{epsilon:g} ({difference.points:+.1f})" for epsilon, difference in found)


def _bytes(results: Results, panel: Panel, preset: Preset, data: str) -> str:
    """Return how its bytes compare with those of the full dimension."""
    ours, full = (results.row(data, one) for one in (preset, panel.baseline))
    epsilon = next(e for e in ours if e in full)
    times = [
        (full[epsilon].per_round(key) / ours[epsilon].per_round(key), where)
        for key, where in (("uplink_bytes", "up"), ("downlink_bytes", "down"))
    ]
    return f"Bytes: {' and '.join(f'{_times(ratio)} {where}' for ratio, where in times)}."


def _times(ratio: float) -> str:
    if 0.95 < ratio < 1.05:
        return "as many"
    return f"{ratio:.1f} times fewer" if ratio > 1 else f"{1 / ratio:.1f} times more"


def _prices(results: Results, images: Sequence[str]) -> str:
    """Return bytes and seconds of all presets, on the first data set."""
    if not results.data:
        return ""
    data = results.data[0]
    head = ["`experiment=`", "unit", "rounds", "numbers of the model", "numbers up", "up", "down"]
    rows = [[*head, "seconds of one core per round", f"noise multiplier at epsilon {MIDDLE:g}"]]
    for panel in PANELS:
        for preset in panel.presets:
            row = results.row(data, preset)
            if row:
                cell = row.get(MIDDLE, next(iter(row.values())))
                rows.append(
                    [
                        *(f"`{preset.name}`", panel.unit),
                        f"{cell.mean('rounds'):.0f}",
                        f"{cell.mean('parameters'):,.0f}",
                        f"{cell.mean('numbers'):,.0f}",
                        size(cell.per_round("uplink_bytes")),
                        size(cell.per_round("downlink_bytes")),
                        f"{cell.mean('processor_seconds_per_round'):.2f}",
                        f"{cell.mean('noise_multiplier'):.2f}" if MIDDLE in row else "",
                    ]
                )
    wanted = (f"results_bytes_{data}.svg", f"results_time_{data}.svg")
    pictures = [f"![{name}](images/{name})" for name in wanted if name in images]
    return "\n\n".join([table(rows), *pictures])
