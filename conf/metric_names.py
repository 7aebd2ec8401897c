"""What a task's settings class must declare, and the names that its metrics cannot have."""

from __future__ import annotations

from fedsketch.conf.settings import LOSS, TaskSettings
from fedsketch.conf.targets import Targets

# All other keys in a line of metrics.jsonl or in summary.json: `tests/server/test_rounds.py` compares.
TAKEN = frozenset(
    {
        "adversaries",
        "basis_rank",
        "best",
        "budget_against",
        "clients",
        "clip",
        "clip_fraction",
        "clipped_fraction",
        "cut_short",
        "delta",
        "downlink_bytes",
        "dropped",
        "epsilon",
        "evaluation",
        "frozen",
        "guarantee",
        "noise_multiplier",
        "not_private",
        "parameters",
        "partition",
        "private",
        "round",
        "rounds",
        "seconds",
        "seed",
        "server",
        "sketch_energy",
        "sketch_rank",
        "smoothing",
        "snr",
        "stopped",
        "uplink_bytes",
        "validation",
        "versions",
    }
)

# Computed from uploads before any noise, by a server that is trusted: for its own file only.
NOISE_FREE = frozenset({"clipped_fraction"})

ON_DEVICES = "federated_"  # prefix of a metric that devices measured


def flaw_of(settings: type[TaskSettings]) -> str | None:
    """Return what is wrong with the class, as the end of a sentence; None if nothing is."""
    if not isinstance(getattr(settings, "targets", None), Targets):
        return "has no targets: set them to classes, numbers or labels of fedsketch.conf.targets.Targets"
    metrics = getattr(settings, "metrics", None)
    if not isinstance(metrics, tuple):
        return "has no metrics: set them to a tuple of fedsketch.conf.settings.Metric, empty if the loss is enough"
    names = [metric.name for metric in (*metrics, LOSS)]
    for name in names:
        if name in TAKEN or name.startswith(ON_DEVICES):
            return f"has a metric named '{name}', which is another key of metrics.jsonl: rename it"
        if not name.isidentifier() or names.count(name) > 1:
            return f"has a metric named '{name}': use a different name for each, of letters, digits and _, and not loss"
    return None
