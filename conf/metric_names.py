"""What a task's settings class must say of itself, and the names that its metrics cannot have."""

from fedsketch.conf.settings import LOSS, TaskSettings
from fedsketch.conf.targets import Targets

# What else a line of metrics.jsonl or summary.json holds, of all our strategies: `tests/server/test_rounds.py` compares.
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

ON_DEVICES = "federated_"  # before the name of a metric, where devices measured it


def flaw_of(settings: type[TaskSettings]) -> str | None:
    """The end of a sentence about the class, if something is wrong with it."""
    if not isinstance(getattr(settings, "targets", None), Targets):
        return "has no targets: set them to Targets.classes, Targets.numbers or Targets.labels of fedsketch.conf.targets"
    metrics = getattr(settings, "metrics", None)
    if not isinstance(metrics, tuple):
        return "has no metrics: set them to a tuple of fedsketch.conf.settings.Metric, which is empty if the loss is enough"
    names = [metric.name for metric in (*metrics, LOSS)]
    for name in names:
        if name in TAKEN or name.startswith(ON_DEVICES):
            return f"has a metric named '{name}', and metrics.jsonl has something else of that name: rename it"
        if not name.isidentifier() or names.count(name) > 1:
            return f"has a metric named '{name}': give each a name of its own, of letters, digits and _, and none the name loss"
    return None
