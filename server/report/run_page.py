"""The report of one run, made from the files in its folder.

Only the metrics must exist, so a run that was killed, or is still going on, has a report too. A page is one file that
loads nothing else. It needs neither torch nor the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path

import numpy as np

from fedsketch.conf.metric_names import NOISE_FREE
from fedsketch.server.report import number_format as readable
from fedsketch.server.report import plots, smoothing
from fedsketch.server.report.compared_metric import judged_by, metrics_of
from fedsketch.server.report.page import figure, text_of, write_page
from fedsketch.server.report.plots import Axis, Level, Line
from fedsketch.server.report.run_record import Run, at, number, read_run
from fedsketch.server.run_folder import RunFolder

_COMMON_KEYS = {  # keys of a round in every strategy, or not for others; any other number gets its own chart
    *("round", "epsilon", "delta", "budget_against", "private", "validation", "evaluation"),
    *("clients", "dropped"),
    *NOISE_FREE,
    *("uplink_bytes", "downlink_bytes", "seconds", "snr", smoothing.KEY),
}
_EXPLAINED = {
    "sketch_energy": "share of the update's energy that the sketch sees, estimated from its random probes",
    "sketch_rank": "learned directions in use",
}


def write_report(folder: Path) -> Path:
    """Write the report of a run into its folder."""
    files, run = RunFolder(folder), read_run(folder)
    name = f"{run.setting('strategy.name')} on {run.setting('data.name')}"
    parameters = number(run.summary, "parameters")
    size = f" ({parameters:,.0f} parameters)" if parameters else ""
    about = [
        f"model {run.setting('model.name')}{size}",
        f"{run.setting('clients.per_round')} of {run.setting('clients.total')} clients a round",
        f"secure aggregation {run.setting('secagg.name')}",
        f"runtime {run.setting('runtime.name')}",
        f"seed {run.setting('seed')}",
    ]
    versions = at(run.summary, "versions") or {}
    about += [", ".join(f"{package} {version}" for package, version in versions.items())]
    config = escape(run.config_text or f"{files.config.name} is missing.")
    body = f"""<header><h1>{escape(name)}</h1><p class="soft">{escape(" · ".join(filter(None, about)))}</p>
{_banners(run)}{_tiles(run)}</header>
<main><section><h2>Guarantee</h2>{_guarantee(run)}</section>
<section><h2>Rounds</h2><div class="grid">{"".join(_figures(run))}</div></section>
<details><summary>Configuration</summary><pre>{config}</pre></details></main>"""
    return write_page(files.report, name, body, files.mode)


def _banners(run: Run) -> str:
    """Return warnings that a reader must see before any number."""
    banners = []
    if (reason := run.not_private()) is not None:
        banners.append(("warning", f"NOT PRIVATE: {reason}."))
    if not run.rows:
        banners.append(("warning", "No round has been recorded yet."))
    elif not run.summary:
        rounds = f"{run.rows[-1]['round']} of {run.setting('rounds')}"
        text = f"This run has not finished: round {rounds} is the last one recorded."
        banners.append(("warning", text))
    if at(run.summary, "stopped"):
        banners.append(("note", str(run.summary["stopped"])))
    return "".join(f'<p class="banner {kind}">{escape(text)}</p>' for kind, text in banners)


def _tiles(run: Run) -> str:
    metric = judged_by([run])
    rounds, values = run.series(metric.name)
    choose = max if metric.higher_is_better else min
    top = choose(zip(values, rounds, strict=True), key=lambda found: found[0], default=None)
    note = f"best {readable.metric(metric, top[0])} in round {top[1]}" if top else "not evaluated"
    tiles = [
        (
            readable.name(metric),
            text_of(run.last(metric.name), partial(readable.metric, metric)),
            note,
        )
    ]
    tiles += _best_tile(run)
    mark = "" if run.not_private() is None else ", NOT PRIVATE"
    for adversary in run.adversaries():
        spent = run.last("epsilon", adversary)
        delta = text_of(run.last("delta"), readable.plain, "unknown")
        note = "no guarantee" if spent is None else f"at delta {delta}{mark}"
        tiles.append((f"Epsilon, {adversary}", text_of(spent, readable.plain), note))
    for name, words in run.in_words().items():
        if name not in run.adversaries():
            tiles.append((f"Epsilon, {name}", escape(words), "none is kept"))
    for title, key in (("Bytes up", "uplink_bytes"), ("Bytes down", "downlink_bytes")):
        values = run.series(key)[1]
        mean = sum(values) / max(len(values), 1)
        note = f"per client and round; {readable.size(sum(values))} in all"
        tiles.append((title, readable.size(mean), note))
    pace = readable.duration(run.seconds() / max(len(run.rows), 1))
    note = f"{len(run.rows)} rounds, {pace} each"
    tiles.append(("Wall time", readable.duration(run.seconds()), note))
    cells = (
        f'<div class="tile"><dt>{escape(title)}</dt><dd>{value}<span>{escape(note)}</span></dd></div>'
        for title, value, note in tiles
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _best_tile(run: Run) -> list[tuple[str, str, str]]:
    """Return the result of the model that the validation found best, if there was a validation."""
    best = at(run.summary, "best")
    metric = judged_by([run])
    reached = number(best, "test", metric.name)
    if reached is None:
        return []
    note = f"of the model after round {best['round']}, best in {best['metric']} on the validation examples"
    return [(f"{readable.name(metric)}, best model", readable.metric(metric, reached), note)]


def _guarantee(run: Run) -> str:
    """Return the run's own statement (adversary, unit, adjacency), and the settings behind it."""
    pending = (
        "The guarantee is stated when the run ends; the numbers above are what it has spent so far."
    )
    sentence = at(run.summary, "guarantee") or pending
    privacy = at(run.config, "privacy")
    budget = text_of(number(privacy, "epsilon"), readable.plain)
    clip = text_of(number(privacy, "clip"), readable.plain, str(at(privacy, "clip") or "none"))
    multiplier = number({**(privacy or {}), **run.summary}, "noise_multiplier")
    facts = {
        "unit": run.setting("privacy.unit"),
        "budget": f"{budget} against {run.bound()}{_beside(run)}",
        "delta": run.setting("privacy.delta"),
        "clip": clip,
        "noise multiplier": text_of(multiplier, readable.plain, "as the budget asks"),
        "randomness": run.setting("privacy.randomness"),
    }
    settings = escape(" · ".join(f"{name}: {value}" for name, value in facts.items()))
    who = "".join(
        f"<p>{'Against' if name in run.adversaries() else 'The'} {escape(name)}: {escape(words)}.</p>"
        for name, words in run.in_words().items()
    )
    return f'<div class="card"><p>{escape(str(sentence))}</p>{who}{_meaning(run)}<p class="soft">{settings}</p></div>'


def _beside(run: Run) -> str:
    """Return the budget of evaluations on devices, if there are any."""
    epsilon = number(run.config, "evaluation", "epsilon")
    return "" if epsilon is None else f", and {readable.plain(epsilon)} for evaluations on devices"


def _meaning(run: Run) -> str:
    """Return epsilon in words: how well one can guess whether a unit contributed."""
    delta, guesses = run.last("delta"), []
    for name in run.adversaries():
        spent = run.last("epsilon", name)
        if spent is not None and delta is not None:
            guesses.append(f"{name} at most {100 * readable.best_guess(spent, delta):.4g} %")
    if not guesses or run.not_private() is not None:
        return ""
    return (
        f"<p>In words: somebody who thinks that one {escape(run.setting('privacy.unit'))} contributed with a chance "
        f"of 50 %, and guesses after this run, is right with a chance of {escape('; '.join(guesses))}. Without the "
        "run it is 50 %.</p>"
    )


def _figures(run: Run) -> Iterator[str]:
    """Yield all charts for which the run has numbers."""
    metrics = metrics_of(run)
    for metric in metrics:
        paths = {readable.name(metric): (metric.name,), "validation": ("validation", metric.name)}
        note = "on the test set"
        if run.series(*paths["validation"])[1]:
            note = "on the test set and on the validation examples"
        yield _curves(run, paths, readable.name(metric), note, plots.axis_of(metric))
    budget = number(run.config, "privacy", "epsilon")
    evaluations = number(run.config, "evaluation", "epsilon") or 0.0
    levels = [Level(f"budget ({run.bound()})", budget + evaluations)] if budget else []
    spent = {name: ("epsilon", name) for name in run.adversaries()}
    axis = Axis("epsilon", readable.plain)
    yield _curves(run, spent, "Epsilon", "spent so far, per adversary", axis, levels)
    sent = {"up": ("uplink_bytes",), "down": ("downlink_bytes",)}
    axis = Axis("bytes", readable.size, from_zero=True)
    yield _curves(run, sent, "Traffic", "mean bytes per client and round", axis)
    yield _times(run)
    axis = Axis("signal to noise", readable.plain)
    yield _curve(run, "snr", "Signal-to-noise", "of the sum of a round", axis)
    axis = Axis("clients", readable.plain, integer=True, from_zero=True)
    if len(set(run.series("clients")[1])) > 1:
        yield _curve(run, "clients", "Clients", "whose update arrived", axis)
    if any(run.series("dropped")[1]):
        yield _curve(run, "dropped", "Dropouts", "clients lost in a round", axis)
    own = {key for row in run.rows for key in row} - _COMMON_KEYS
    for key in sorted(own - {metric.name for metric in metrics}):
        # Built-in keys are left out if they are constant.
        if key not in _EXPLAINED or len(set(run.series(key)[1])) > 1:
            yield _curve(run, key, key, _EXPLAINED.get(key, ""), Axis(key, readable.plain))
    yield from smoothing.figures(run)
    counts = at(run.summary, "partition", "histogram")
    if counts and counts[0]:
        classes = len(counts[0]) > 1
        kinds = f" of {len(counts[0])} classes" if classes else ""
        alt = f"Examples{kinds} on each of {len(counts)} clients."
        chart = plots.histogram_chart("classes", alt, counts)
        title, note = ("Classes", " and class") if classes else ("Examples", "")
        yield figure(title, f"examples per client{note}", chart, wide=True)


def _curve(run: Run, key: str, title: str, note: str, axis: Axis) -> str:
    return _curves(run, {title: (key,)}, title, note, axis)


def _curves(
    run: Run,
    paths: Mapping[str, tuple[str, ...]],
    title: str,
    note: str,
    axis: Axis,
    levels: Sequence[Level] = (),
) -> str:
    """Return one chart of the numbers at these paths; empty if there are none."""
    lines = [
        Line(label, *run.series(*path), color)
        for (label, path), color in zip(paths.items(), plots.COLORS, strict=False)
        if run.series(*path)[1]
    ]
    if not lines:
        return ""
    if plots.spread([line.y[-1] for line in lines], 20):
        axis = replace(axis, log=True, from_zero=False)
    ends = (f"{line.label}: {axis.text(line.y[-1])} in round {line.x[-1]}" for line in lines)
    name = f"plot-{title.encode().hex()}"  # an id may not hold everything that a metric's name may
    chart = plots.line_chart(name, f"{title}. {'; '.join(ends)}.", lines, axis, levels=levels)
    return figure(title, note, chart)


def _times(run: Run) -> str:
    timed = [row for row in run.rows if number(row, "seconds", "round") is not None]
    if not timed:
        return ""
    whole, clients, update = (
        np.array([number(row, "seconds", key) or 0.0 for row in timed])
        for key in ("round", "clients", "update")
    )
    rest = np.maximum(whole - clients - update, 0)
    parts = {"clients": clients, "update": update, "rest (evaluation)": rest}
    alt = f"A round takes {readable.duration(whole.mean())} in the mean."
    rounds = [row["round"] for row in timed]
    chart = plots.stacked_chart("time", alt, rounds, parts, Axis("seconds", readable.plain))
    return figure("Time", "per round", chart)
