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
    """A round that ended without a sum. No share left the devices unless `stage` is "unmask".

    `missing` maps the ids of the nodes that were lost so far to the stage and the reason.
    """

    def __init__(self, stage: str, problem: str, missing: Mapping[int, str], advice: str) -> None:
        self.stage = stage
        self.missing = dict(missing)
        named = "; ".join(f"node {node}: {reason}" for node, reason in list(missing.items())[:5])
        more = f"; and {len(missing) - 5} more" if len(missing) > 5 else ""
        who = f" Missing: {named}{more}." if missing else ""
        super().__init__(f"Secure aggregation stopped at stage {stage!r}: {problem}.{who} {advice}")
