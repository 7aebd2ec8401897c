"""Every key of the configuration: a page for each group, and an index. Default and explanation come from the YAML
files, the type from the settings classes."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from settings_types import in_words
from wrapping import item, page, wrapped
from yaml_comments import Commented, read

from fedsketch.conf import schema
from fedsketch.conf.evaluation_settings import FederatedEvaluationConfig, ServerEvaluationConfig
from fedsketch.conf.plugins import FOLDER, settings_class
from fedsketch.conf.settings import PartitionConfig

# Groups in the order of the page, each with a sentence. Their choices are the files of its folder.
GROUPS = {
    "strategy": "The algorithm: what a client sends, and what the server makes of the sum.",
    "privacy": "Whose data are protected, how much, and against whom.",
    "secagg": "Secure aggregation: whether the server sees sums or single uploads.",
    "data": "The data set.",
    "data/partition": "How the examples of a data set are spread over the clients: `data/partition=dirichlet`.",
    "task": "What is learned: a loss and metrics.",
    "model": "The network.",
    "evaluation": "Who tests the models.",
    "runtime": "Where clients run.",
    "tracking": "Who is told of the run besides its folder.",
}
_CLOSED: dict[str, dict[str, Any]] = {
    "privacy": dict.fromkeys(("client", "example", "none", "trusted"), schema.PrivacyConfig),
    "secagg": {
        "none": schema.NoSecAggConfig,
        **dict.fromkeys(("auto", "pairwise", "semi_honest", "two_trips"), schema.SecAggConfig),
    },
    "runtime": {
        "local": schema.LocalRuntimeConfig,
        "cohort": schema.CohortRuntimeConfig,
        "simulation": schema.SimulationRuntimeConfig,
        "processes": schema.ProcessesRuntimeConfig,
        "deployment": schema.DeploymentRuntimeConfig,
    },
    "evaluation": {"server": ServerEvaluationConfig, "federated": FederatedEvaluationConfig},
}


@dataclass(frozen=True)
class Key:
    """One key of a choice; `explanation` is empty if no comment has one."""

    name: str
    type: str
    default: str
    explanation: str

    def line(self) -> str:
        return item(f"**`{self.name}`** = `{self.default}`: {self.explanation} *({self.type})*")


@dataclass(frozen=True)
class Choice:
    """One file of a group."""

    name: str
    about: str
    keys: tuple[Key, ...]


def _types(settings: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Full path and type of every field, also of nested settings."""
    hints = get_type_hints(settings, include_extras=True)
    for one in fields(settings):
        kind = hints[one.name]
        if is_dataclass(kind):
            yield from _types(kind, f"{prefix}{one.name}.")
        elif not any(isinstance(part, type) and is_dataclass(part) for part in get_args(kind)):
            yield f"{prefix}{one.name}", in_words(kind)


def _settings_of(group: str, name: str) -> Any:
    if group == "data/partition":
        return PartitionConfig
    return _CLOSED[group][name] if group in _CLOSED else settings_class(group, name)


def _inherited(folder: Path, name: str) -> Commented:
    """A file, with what it takes from the files of its group that its defaults name."""
    own = read(folder / f"{name}.yaml")
    defaults = yaml.safe_load((folder / f"{name}.yaml").read_text()).get("defaults", [])
    for base in (one for one in defaults if isinstance(one, str) and one != "_self_"):
        below = _inherited(folder, base)
        own.values = below.values | own.values
        own.comments = below.comments | own.comments
    return own


def choices(group: str) -> list[Choice]:
    """Return the choices of a group. If a file has no comment for a key, that of another file of the group is used."""
    folder = FOLDER / group
    files = {file.stem: _inherited(folder, file.stem) for file in sorted(folder.glob("*.yaml"))}
    shared: dict[str, str] = {}
    for file in files.values():
        shared = file.comments | shared
    prefix = group.replace("/", ".")
    found = []
    for name, file in files.items():
        kinds = dict(_types(_settings_of(group, name)))
        keys = tuple(
            Key(
                f"{prefix}.{key}",
                kinds[key],
                value,
                file.comments.get(key) or shared.get(key, ""),
            )
            for key, value in file.values.items()
            if key not in ("name", "scheme")
        )
        found.append(Choice(name, file.about, keys))
    return found


def general_keys() -> list[Key]:
    """Those of conf/config.yaml, outside of the groups."""
    file = read(FOLDER / "config.yaml")
    kinds = {
        **dict(_types(schema.ClientsConfig, "clients.")),
        **dict(_types(schema.ValidationConfig, "validation.")),
    }
    hints = get_type_hints(schema.Config, include_extras=True)
    return [
        Key(key, kinds.get(key) or in_words(hints[key]), value, file.comments.get(key, ""))
        for key, value in file.values.items()
    ]


def unexplained() -> list[str]:
    """The keys that no comment explains, and the choices that have no sentence at the head of their file."""
    missing = [key.name for key in general_keys() if not key.explanation]
    for group in GROUPS:
        for choice in choices(group):
            missing += [] if choice.about else [f"{group}={choice.name}"]
            missing += [key.name for key in choice.keys if not key.explanation]
    return missing


def _group(group: str) -> Iterator[str]:
    found = choices(group)
    default = _defaults().get(group)
    common = set(found[0].keys).intersection(*(choice.keys for choice in found[1:]))
    common = common if len(found) > 1 else set()
    if common:
        yield "All choices have:"
        yield "\n".join(key.line() for key in found[0].keys if key in common)
    for choice in found:
        mark = " (default)" if choice.name == default else ""
        yield f"## {group}={choice.name}"
        yield wrapped(choice.about + mark)
        if own := [key.line() for key in choice.keys if key not in common]:
            yield "\n".join(own)


def _defaults() -> dict[str, str]:
    lines = yaml.safe_load((FOLDER / "config.yaml").read_text())["defaults"]
    chosen = {
        group: name for line in lines if isinstance(line, dict) for group, name in line.items()
    }
    return chosen | {"data/partition": "iid"}  # which the files of the data sets name


def _file(group: str) -> str:
    return f"{group.replace('/', '_')}.md"


def _group_page(group: str) -> str:
    intro = (
        f"For those who look a key up. {GROUPS[group]} Choose one of the files below with `{group}=NAME`. "
        "[Configuration](index.md) has the other groups."
    )
    return page(group, intro, *_group(group))


def _index() -> str:
    groups = [
        item(
            f"[`{group}`]({_file(group)}): {sentence} "
            + ", ".join(f"`{choice.name}`" for choice in choices(group))
        )
        for group, sentence in GROUPS.items()
    ]
    presets = [
        item(f"`{file.stem}`: {about}")
        for file in sorted((FOLDER / "experiment").glob("*.yaml"))
        if (about := read(file).about) and file.stem != "none"
    ]
    return page(
        "Configuration",
        "For those who look a key up. Choose a file of a group with `group=name`, and set a key with `key=value`: "
        "`fedsketch strategy=dp_fedavg privacy.epsilon=4`. Every key has its default, what it does, and which "
        "values it takes. `fedsketch --cfg job` prints all keys of a run.",
        "## Groups",
        "\n".join(groups),
        "## General keys",
        "\n".join(key.line() for key in general_keys()),
        "## experiment",
        "An experiment sets a whole run: `fedsketch experiment=dome`.",
        "\n".join(presets),
    )


def configuration() -> dict[str, str]:
    """The index and the pages of the groups, by their paths."""
    groups = {f"configuration/{_file(group)}": _group_page(group) for group in GROUPS}
    return {"configuration/index.md": _index(), **groups}
