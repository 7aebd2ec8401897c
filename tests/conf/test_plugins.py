"""Names select among what is installed; our own names stay ours; and what is wrong with a package is one sentence."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from fedsketch.conf import Config, compose, device_json, from_json, to_json
from fedsketch.conf.plugins import built_in, implementation, settings_class
from fedsketch.errors import ConfigError

GROUPS = {
    "strategy": "fedsketch.strategies",
    "task": "fedsketch.tasks",
    "model": "fedsketch.models",
    "data": "fedsketch.data",
    "tracking": "fedsketch.trackers",
}
SETTINGS = """
from fedsketch.conf.settings import StrategySettings
from fedsketch.conf.types import Fraction, frozen

@frozen
class Own(StrategySettings):
    factor: Fraction

    def check(self, config):
        if config.rounds == 13:
            raise ValueError("strategy=own is superstitious: set rounds to another number")

SETTINGS = Own
"""
YAML = """
name: NAME
factor: 0.5
local: {steps: 1, epochs: null, batch: 0, lr: 0.1, momentum: 0.0}
server: {optimizer: sgd, lr: 1.0, momentum: 0.0}
"""
Install = Callable[..., None]


@pytest.fixture(scope="module")
def usual() -> Config:
    return compose()


def _strategy(install: Install, package: str, name: str, settings: str = SETTINGS) -> None:
    files = {
        "__init__.py": "",
        f"strategy/{name}.yaml": YAML.replace("NAME", name),
        f"strategy/{name}.py": settings,
    }
    entries = {"fedsketch.conf": f"x = {package}", GROUPS["strategy"]: f"{name} = {package}"}
    install(package, files, entries)


def _refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    "name", ["toy", "os", "fedsketch.runtime.cli", "..schema", "__init__", "../strategy/dome", ""]
)
def test_a_message_that_names_what_is_not_installed_is_refused_and_imports_nothing(
    usual: Config, group: str, name: str
) -> None:
    tree = json.loads(to_json(usual))
    tree[group]["name"] = name
    _refusal(lambda: settings_class(group, name))  # and with it all that looking for it needs
    before = set(sys.modules)
    sentence = _refusal(lambda: from_json(json.dumps(tree)))
    assert set(sys.modules) == before
    assert f"'{name}'" in sentence
    assert all(known in sentence for known in built_in(group))


def test_a_message_that_names_features_that_are_not_installed_is_refused_and_imports_nothing(
    usual: Config, install: Install
) -> None:
    install("plugin_map", {"__init__.py": ""}, {"fedsketch.features": "own = plugin_map:make"})
    tree = json.loads(to_json(usual))
    for name in ("os", "fedsketch.runtime.cli", "own2"):
        tree["model"]["features"] = name
        sentence = _refusal(lambda: from_json(json.dumps(tree)))
        assert f"no feature map '{name}'" in sentence
        assert "choose one of own, scattering" in sentence
    tree["model"]["features"] = "own"
    assert from_json(json.dumps(tree)).model.features == "own"
    assert "plugin_map" not in sys.modules


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("value", [None, 3, "dome", ["dome"], {}, {"name": 3}, {"name": None}])
def test_a_choice_without_a_name_is_refused_by_its_key(
    usual: Config, group: str, value: object
) -> None:
    tree = json.loads(to_json(usual))
    tree[group] = value
    assert _refusal(lambda: from_json(json.dumps(tree))).startswith(f"{group}: ")


def test_our_own_names_are_found_without_a_look_at_what_is_installed(
    usual: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_class.cache_clear()
    from_json.cache_clear()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: pytest.fail("it looked"))
    assert from_json(to_json(usual)) == usual


def test_an_installed_strategy_is_composed_checked_and_read_again(install: Install) -> None:
    _strategy(install, "plugin_good", "own")
    config = compose(["strategy=own", "strategy.factor=0.75"])
    assert config.strategy.factor == 0.75
    assert from_json(to_json(config)) == config
    assert hash(from_json(to_json(config))) == hash(config)
    assert implementation("strategy", "own").__name__ == "plugin_good"


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("strategy.factor=1.5", "strategy.factor: "),
        ("strategy.server.lr=-1", "strategy.server.lr: "),
        ("+strategy.nonsense=1", "strategy.nonsense: "),
        ("rounds=13", "The configuration does not fit together: strategy=own is superstitious"),
    ],
)
def test_its_errors_name_the_key(install: Install, override: str, start: str) -> None:
    _strategy(install, "plugin_good", "own")
    assert _refusal(lambda: compose(["strategy=own", override])).startswith(start)


def test_a_name_of_ours_cannot_be_taken_over(install: Install, usual: Config) -> None:
    ours = settings_class("strategy", "dome")
    _strategy(install, "plugin_evil", "dome")
    sentence = _refusal(compose)
    assert "plugin_evil" in sentence
    assert "strategy named 'dome'" in sentence
    settings_class.cache_clear()
    assert settings_class("strategy", "dome") is ours
    assert type(from_json(to_json(usual)).strategy) is ours
    assert "plugin_evil" not in sys.modules


def test_a_file_of_ours_cannot_be_hidden(install: Install) -> None:
    files = {"__init__.py": "", "privacy/client.yaml": "epsilon: 1000"}
    install("plugin_loose", files, {"fedsketch.conf": "x = plugin_loose"})
    assert "plugin_loose has a file privacy/client.yaml" in _refusal(compose)


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    _strategy(install, "plugin_one", "own")
    _strategy(install, "plugin_two", "own")
    sentence = _refusal(lambda: compose(["strategy=own"]))
    assert "plugin_one and plugin_two" in sentence


def test_a_package_that_is_not_whole_says_what_is_missing(install: Install) -> None:
    install("plugin_bare", {"__init__.py": ""}, {GROUPS["model"]: "bare = plugin_bare:gone"})
    assert "0 entry points of the group fedsketch.conf" in _refusal(
        lambda: settings_class("model", "bare")
    )
    assert "plugin_bare:gone" in _refusal(lambda: implementation("model", "bare"))
    _strategy(install, "plugin_wrong", "wrong", settings="SETTINGS = dict")
    assert "fedsketch.StrategySettings" in _refusal(lambda: compose(["strategy=wrong"]))
    _strategy(install, "plugin_broken", "broken", settings="import nowhere_to_be_found")
    assert "nowhere_to_be_found" in _refusal(lambda: compose(["strategy=broken"]))


WHOLE = """
from typing import ClassVar
from fedsketch.conf.settings import Metric, TaskSettings
from fedsketch.conf.targets import Targets

class Own(TaskSettings):
    targets: ClassVar = Targets.NUMBERS
    metrics: ClassVar = (Metric("deviance"),)

SETTINGS = Own
"""


@pytest.mark.parametrize(
    ("right", "wrong", "sentence"),
    [
        (
            "targets: ClassVar = Targets.NUMBERS",
            "pass",
            "has no targets: set them to classes",
        ),
        ("Targets.NUMBERS", '"numbers"', "has no targets"),
        (
            'metrics: ClassVar = (Metric("deviance"),)',
            "pass",
            "has no metrics: set them to a tuple",
        ),
        (
            "deviance",
            "epsilon",
            "has a metric named 'epsilon', which is another key of metrics.jsonl",
        ),
        ("deviance", "federated_loss", "has a metric named 'federated_loss', which is another key"),
        ("deviance", "loss", "has a metric named 'loss': use a different name for each"),
        ("deviance", "mean deviance", "has a metric named 'mean deviance': use a different name"),
    ],
)
def test_a_task_that_is_not_whole_is_refused(
    install: Install, right: str, wrong: str, sentence: str
) -> None:
    assert right in WHOLE
    for package, name, text in (
        ("plugin_whole", "whole", WHOLE),
        ("plugin_task", "own", WHOLE.replace(right, wrong)),
    ):
        files = {"__init__.py": "", f"task/{name}.yaml": f"name: {name}", f"task/{name}.py": text}
        entries = {"fedsketch.conf": f"x = {package}", GROUPS["task"]: f"{name} = {package}"}
        install(package, files, entries)
    assert compose(["task=whole"]).task.headline.name == "deviance"
    refused = _refusal(lambda: compose(["task=own"]))
    assert "plugin_task.task.own" in refused
    assert sentence in refused


def test_devices_are_not_sent_the_tracker(install: Install) -> None:
    settings = "from fedsketch.conf.settings import TrackingSettings as SETTINGS"
    files = {"__init__.py": "", "tracking/own.yaml": "name: own", "tracking/own.py": settings}
    entries = {"fedsketch.conf": "x = plugin_track", GROUPS["tracking"]: "own = plugin_track"}
    install("plugin_track", files, entries)
    config = compose(["tracking=own"])
    assert json.loads(to_json(config))["tracking"] == {"name": "own"}
    assert "tracking" not in json.loads(device_json(config))
    assert from_json(device_json(config)) == compose()


def test_settings_of_ours_import_no_torch() -> None:
    """A device starts a process per message, and torch costs two seconds of it."""
    code = (
        "import sys; from fedsketch.conf.plugins import built_in, settings_class;"
        f"[settings_class(group, name) for group in {list(GROUPS)} for name in built_in(group)];"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


MODEL = """
from fedsketch.conf.settings import ModelSettings
from fedsketch.conf.types import Count, frozen

@frozen
class Own(ModelSettings):
    depth: Count

SETTINGS = Own
"""


def test_keys_of_the_base_class_need_not_stand_in_the_yaml_file(install: Install) -> None:
    """They came after some packages; users can set them all the same, and other keys are still checked."""
    files = {"__init__.py": "", "model/old.yaml": "name: old\ndepth: 2\n", "model/old.py": MODEL}
    package = "plugin_old_model"
    install(
        package, files, {"fedsketch.conf": f"x = {package}", GROUPS["model"]: f"old = {package}"}
    )
    model = compose(["model=old", "model.weights=w.safetensors", "model.depth=3"]).model
    assert (model.weights, model.features) == ("w.safetensors", None)
    with pytest.raises(ConfigError, match=r"no key 'model\.width'"):
        compose(["model=old", "model.width=3"])


def test_a_key_that_a_choice_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.public"):
        compose(["data=folder", "data.public=3"])
