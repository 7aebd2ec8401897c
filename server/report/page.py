"""The frame of every report: one HTML file that loads nothing else, in light and dark."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path

from fedsketch.errors import ReportError
from fedsketch.server.run_folder import create

_CSS = """
:root { color-scheme: light dark; --page: #f4f6f8; --card: #fff; --ink: #1c2530; --soft: #5b6675; --edge: #dde2e8;
  --warn: #fff1d6; --warn-edge: #d98e04; --note: #e6f0fb; --note-edge: #3583d6; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1318; --card: #181e25; --ink: #e4e9ef; --soft: #9aa6b4;
  --edge: #2c353f; --warn: #3a2c0c; --note: #142a42; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
header, main { max-width: 1240px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 32px; }
main { padding-bottom: 48px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.1rem; margin: 32px 0 12px; }
p { margin: 6px 0; }
.soft, figcaption small, .tile span { color: var(--soft); }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); margin: 20px 0 0; }
.tile, figure, .card, details {
  background: var(--card); border: 1px solid var(--edge); border-radius: 10px; margin: 0; padding: 14px 16px; }
.tile dt { color: var(--soft); font-size: .85rem; }
.tile dd { margin: 0; font-size: 1.5rem; font-weight: 600;
  font-variant-numeric: tabular-nums; line-height: 1.3; }
.tile span { display: block; font-size: .8rem; font-weight: 400; }
.wide { grid-column: 1 / -1; }
figcaption { font-weight: 600; margin-bottom: 6px; }
figcaption small { display: block; font-weight: 400; min-height: 1.5em; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
.banner { border-left: 5px solid var(--note-edge);
  background: var(--note); border-radius: 6px; padding: 10px 16px; margin: 16px 0 0; }
.warning { border-color: var(--warn-edge); background: var(--warn); }
details { margin-top: 16px; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; font-size: .85rem; line-height: 1.45; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: 8px; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--edge); vertical-align: top; }
th { color: var(--soft); font-weight: 600; } td.number, th.number { text-align: right; white-space: nowrap; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 22px; list-style: none; margin: 0 0 16px; padding: 0; }
tbody th { color: inherit; font-weight: 400; white-space: nowrap; }
.swatch { display: inline-block; width: 30px; height: 10px; margin-right: 8px; vertical-align: middle; }
@media print { body { background: none; } figure, .tile { break-inside: avoid; } }
"""


def text_of(value: float | None, form: Callable[[float], str], otherwise: str = "none") -> str:
    return otherwise if value is None else form(value)


def figure(title: str, note: str, chart: str, *, wide: bool = False) -> str:
    caption = f"{escape(title)}<small>{escape(note)}</small>"
    kind = "chart wide" if wide else "chart"
    return f'<figure class="{kind}"><figcaption>{caption}</figcaption>{chart}</figure>'


def write_page(path: Path, title: str, body: str, mode: int | None = None) -> Path:
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>fedsketch: {escape(title)}</title><style>{_CSS}</style></head>
<body>{body}</body></html>
"""
    try:
        create(path, mode)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror}): choose a folder that exists and is writable."
        raise ReportError(message) from error
    return path
