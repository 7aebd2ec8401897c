"""Folders of made-up runs, and what a page of a report shows."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

from fedsketch.server.report.run_page import write_report

_VOID = {"meta", "br"}
_GUARANTEE = "Epsilon 8 at delta 1e-05, per client (its contribution zeroed out), against all."

_WORDS = {"server": "whoever runs it", "client": "2 of them", "model": "all who see models"}


def make_run(
    folder: Path,
    *,
    strategy: str = "dp_fedavg",
    epsilon: float | None = 8.0,
    rounds: int = 6,
    randomness: str = "secret",
    clients: int = 4,
    extra: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    finished: bool = True,
    brief: bool = False,
) -> Path:
    """A run folder as the server leaves it; a brief one has little to draw, which saves time."""
    folder.mkdir(parents=True)
    noise = None if epsilon else 0.0
    config = {
        "rounds": rounds,
        "seed": 0,
        "clients": {"total": clients, "per_round": clients},
        "data": {"name": "digits"},
        "model": {"name": "mlp", "width": 32},
        "privacy": {
            **{"unit": "client", "epsilon": epsilon, "delta": 1e-5, "clip": 0.5},
            **{"noise_multiplier": noise, "against": "model", "randomness": randomness},
        },
        "secagg": {"name": "none"},
        "runtime": {"name": "local"},
        "strategy": {"name": strategy, "lr": 0.1 if strategy == "fedavg" else 0.02},
        **(settings or {}),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = []
    for count in range(1, rounds + 1):
        spent = None if epsilon is None else epsilon * count / rounds
        row = {
            **{"round": count, "delta": 1e-5, "clients": clients, "dropped": 0},
            "accuracy": None if count % 2 else 0.9 * count / rounds,
            "loss": None if count % 2 else 2 / count,
            "epsilon": {
                "model": spent,
                "client": spent and 2 * spent,
                "server": spent and 5 * spent,
            },
            "private": randomness == "secret" and bool(epsilon),
            **{"uplink_bytes": 2000.0, "downlink_bytes": 3000.0},
            "seconds": {"round": 0.5, "clients": 0.3, "update": 0.1},
            "snr": spent and 0.5,
            **(extra or {}),
        }
        if brief:
            row = {key: row[key] for key in ("round", "accuracy")}
        lines.append(json.dumps(row) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    if finished:
        final = {
            **{"seconds": 75.0, "parameters": 2410, "stopped": None, "versions": {"torch": "2.13"}},
            "noise_multiplier": 1.5 if epsilon else 0.0,
            "guarantee": _GUARANTEE if epsilon else "NOT PRIVATE: nothing is noised.",
            "partition": {"histogram": [] if brief else [[i % 3, 5, 2] for i in range(clients)]},
            "not_private": _reason(epsilon, randomness),
            "adversaries": _WORDS,
            **(summary or {}),
        }
        (folder / "summary.json").write_text(json.dumps(final))
    return folder


def _reason(epsilon: float | None, randomness: str) -> str | None:
    if epsilon is None:
        return "nothing is noised"
    return "privacy.randomness=seeded" if randomness == "seeded" else None


class Outline(HTMLParser):
    """Checks that tags are balanced, and collects ids, captions and what the pictures are called."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.pictures: list[str] = []
        self.captions: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        if found.get("role") == "img":
            self.pictures.append(found["aria-label"] or "")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "figcaption":
            self.captions.append(data)


def page_of(folder: Path) -> str:
    return write_report(folder).read_text()


def assert_self_contained(page: str) -> None:
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?:|//\w|@import|<link|<script|\bsrc=", without_namespaces)
    for target in re.findall(r'href="([^"]*)"|url\(([^)]*)\)', page):
        assert "".join(target).startswith(("#", "data:image/png;base64,"))
