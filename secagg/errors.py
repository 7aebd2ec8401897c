"""The errors of secure aggregation.

Whatever bytes arrive, the package raises nothing but these. A device that does not continue raises a
`Refusal` with one sentence, which the server logs as the reason of a dropout. A server that cannot
finish raises `Aborted`, which says which stage failed, who is missing and what to change.
"""

from __future__ import annotations

from collections.abc import Mapping


class SecAggError(Exception):
    """The base of every error that this package raises on purpose."""


class Malformed(SecAggError):
    """Bytes from the other side that are not a message of this protocol."""


class SettingsError(SecAggError, ValueError):
    """Settings of a round, or files of a device, that break a rule."""


class Refusal(SecAggError):
    """A step that a device does not take although it was asked for it; the message is one sentence."""


class Aborted(SecAggError):
    """A round that ended without a sum. No share left the devices unless `stage` is "unmask" or
    "answer".

    `missing` maps the ids of the nodes that were lost so far to the stage and the reason.
    """

    def __init__(self, stage: str, problem: str, missing: Mapping[int, str], advice: str) -> None:
        self.stage = stage
        self.missing = dict(missing)
        who = f" Missing: {_named(missing)}." if missing else ""
        super().__init__(f"Secure aggregation stopped at stage {stage!r}: {problem}.{who} {advice}")


def _named(missing: Mapping[int, str]) -> str:
    """Return the first five reasons, each with the first five of its nodes."""
    nodes: dict[str, list[int]] = {}
    for node, reason in missing.items():
        nodes.setdefault(reason.rstrip("."), []).append(node)
    told = [f"{_first_of(found)}: {reason}" for reason, found in list(nodes.items())[:5]]
    rest = sum(map(len, list(nodes.values())[5:]))
    return "; ".join([*told, *([f"and {rest} more"] if rest else [])])


def _first_of(nodes: list[int]) -> str:
    shown = ", ".join(map(str, nodes[:5])) + (
        f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
    )
    return f"node {shown}" if len(nodes) == 1 else f"nodes {shown}"
