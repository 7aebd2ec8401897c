"""Every file composes, every mistake is one sentence that names its key, and JSON carries a configuration unchanged."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from fedsketch.conf import Config, compose, from_json, load, to_json
from fedsketch.conf.composition import FOLDER, compose_with_folder
from fedsketch.errors import ConfigError


def _choices() -> list[str]:
    """One override per file below conf/: `strategy=fedavg`, `data/partition=iid`, ..."""
    files = [path for path in FOLDER.rglob("*.yaml") if path.parent != FOLDER]
    names = [(path.parent.relative_to(FOLDER).as_posix(), path.stem) for path in files]
    return sorted(f"{group}={name}" for group, name in names)


# What cannot be guessed for a user.
_NEEDED = {
    "runtime=deployment": ["runtime.superlink=campus"],
    "runtime=processes": ["clients.total=4", "clients.per_round=4"],
}


@cache
def _composed(choice: str) -> Config:
    return compose([choice, *_NEEDED.get(choice, [])])


def test_a_runtime_says_what_it_needs() -> None:
    assert "set runtime.superlink" in _refusal("runtime=deployment")
    assert "lower clients.total" in _refusal(
        "runtime=processes", "clients.total=17", "clients.per_round=17"
    )


def _refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def _refusal_of_value(override: str) -> str:
    """The same for one value, without Hydra, which takes a tenth of a second to compose."""
    key, text = override.split("=")
    tree = OmegaConf.create(json.loads(to_json(_composed("data=digits"))))
    OmegaConf.update(tree, key, yaml.safe_load(_YAML_NUMBERS.get(text, text)))
    with pytest.raises(ConfigError) as caught:
        load(tree)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


_R_SECRET = [
    "rounds=1",
    "strategy=fed_sgm",
    "strategy.accounting=r_secret",
    "strategy.clip=before",
    "secagg=none",
]
_YAML_NUMBERS = {"inf": ".inf", "nan": ".nan"}


@pytest.mark.parametrize("choice", _choices())
def test_every_file_of_every_group_composes(choice: str) -> None:
    assert isinstance(_composed(choice), Config)


def test_the_walk_finds_all_groups() -> None:
    groups = {choice.split("=")[0] for choice in _choices()}
    wanted = "strategy data data/partition model tracking privacy secagg runtime experiment"
    assert groups >= set(wanted.split())


@pytest.mark.parametrize("override", ["rounds=True", "seed=false", "privacy.epsilon=true"])
def test_a_truth_is_no_number(override: str) -> None:
    """`rounds=True` would otherwise play one round."""
    key, value = override.split("=")
    assert _refusal(override) == f"{key}: input should be a number, not {value.lower()}."


@pytest.mark.parametrize("data", ["digits", "synthetic"])
def test_a_folder_that_nobody_reads_is_refused(data: str) -> None:
    sentence = _refusal(f"data={data}", "data.root=somewhere")
    assert sentence == "data.root is not used with these settings: leave it out."


def test_keys_that_others_rely_on() -> None:
    config, folder = compose_with_folder(
        [
            "rounds=7",
            "seed=11",
            "device=cpu",
            "clients.total=9",
            "clients.per_round=4",
            "privacy.unit=example",
            "privacy.epsilon=3",
            "privacy.delta=1e-6",
            "privacy.clip=0.25",
            "data=mnist",
            "data.root=somewhere",
            "hydra.run.dir=there/it/is",
        ]
    )
    assert (config.rounds, config.seed, config.device) == (7, 11, "cpu")
    assert (config.clients.total, config.clients.per_round) == (9, 4)
    privacy = config.privacy
    assert (privacy.unit.value, privacy.epsilon, privacy.delta, privacy.clip) == (
        "example",
        3.0,
        1e-6,
        0.25,
    )
    assert config.data.root == "somewhere"
    assert folder == Path("there/it/is")


def test_two_runs_of_different_strategies_do_not_share_a_folder() -> None:
    assert compose_with_folder(["strategy=fedavg"])[1] != compose_with_folder([])[1]


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("nonsense=1", "nonsense"),
        ("+nonsense=1", "nonsense"),
        ("privacy.nonsense=1", "privacy.nonsense"),
        ("+privacy.nonsense=1", "privacy.nonsense"),
        ("+data.nonsense=1", "data.nonsense"),
        ("+runtime.nonsense=1", "runtime.nonsense"),
        ("+strategy.local.nonsense=1", "strategy.local.nonsense"),
        ("~rounds", "rounds"),
    ],
)
def test_unknown_or_missing_key_is_named(override: str, key: str) -> None:
    assert key in _refusal(override)


@pytest.mark.parametrize(
    "choice", [f"{group}=nonsense" for group in sorted({c.split("=")[0] for c in _choices()})]
)
def test_unknown_file_names_the_group_and_what_exists(choice: str) -> None:
    group = choice.split("=")[0]
    sentence = _refusal(choice)
    assert f"{group}/nonsense" in sentence
    existing = [c.split("=")[1] for c in _choices() if c.split("=")[0] == group]
    assert all(name in sentence for name in existing)


@pytest.mark.parametrize(
    "override",
    [
        "rounds=many",
        "rounds=3.5",
        "rounds=null",
        "seed=x",
        "device=5",
        "clients=5",
        "clients.total=[1,2]",
        "clients.sampling=sometimes",
        "privacy.unit=planet",
        "privacy.epsilon=much",
        "privacy.randomness=dice",
        "strategy.server.optimizer=newton",
        "data.partition.scheme=nonsense",
        "model.width=wide",
    ],
)
def test_wrong_type_names_the_key(override: str) -> None:
    assert override.split("=")[0] in _refusal_of_value(override)


@pytest.mark.parametrize(
    "override",
    [
        "rounds=0",
        "seed=-1",
        "seed=9223372036854775808",
        "evaluate_every=0",
        "checkpoint_every=0",
        "clients.total=0",
        "clients.per_round=0",
        "clients.retries=-1",
        "clients.timeout=0",
        "clients.tolerated_dropouts=1",
        "clients.tolerated_dropouts=-0.1",
        "privacy.epsilon=0",
        "privacy.epsilon=-1",
        "privacy.epsilon=inf",
        "privacy.epsilon=nan",
        "privacy.delta=0",
        "privacy.delta=1",
        "privacy.clip=0",
        "privacy.clip=-1",
        "privacy.noise_multiplier=-0.5",
        "strategy.local.steps=0",
        "strategy.local.lr=0",
        "strategy.local.momentum=1",
        "strategy.server.lr=-0.1",
        "model.width=0",
    ],
)
def test_out_of_range_names_the_key(override: str) -> None:
    assert override.split("=")[0] in _refusal_of_value(override)


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["clients.total=10", "clients.per_round=11"], ["clients.per_round", "clients.total"]),
        (["privacy.epsilon=null"], ["privacy.epsilon", "privacy.noise_multiplier"]),
        (["privacy.clip=null"], ["privacy.clip"]),
        (["strategy=fedavg", "privacy=client"], ["strategy=fedavg"]),
        (["privacy=example", "strategy.local.steps=2"], ["privacy.unit", "strategy.local.steps"]),
        (["privacy=example", "strategy.local.batch=4"], ["privacy.unit", "strategy.local.batch"]),
        (["privacy=example", "strategy.local.epochs=1"], ["privacy.unit", "strategy.local.epochs"]),
        (
            ["strategy=fed_sgm", "strategy.sketch=count_sketch", "strategy.clip=before"],
            ["strategy.clip=after"],
        ),
        (
            ["strategy=fed_sgm", "strategy.accounting=r_secret"],
            ["strategy.clip=before", "secagg=none", "r_public"],
        ),
        (
            ["strategy=fed_sgm", "strategy.accounting=r_secret", "strategy.sketch=hadamard"],
            ["strategy.sketch=gaussian"],
        ),
        (
            ["strategy=fed_sgm", "strategy.accounting=r_secret", "strategy.seed_per=run"],
            ["strategy.seed_per=round"],
        ),
        (["strategy=dome", "strategy.variant=paper"], ["strategy.sketch=flat"]),
        (["strategy=dome", "strategy.mean_removal=0.9"], ["strategy.feed=gradient"]),
        (
            ["strategy=dome", "strategy.error_feedback=0.9", "privacy=example"],
            ["strategy.error_feedback", "privacy.unit=client"],
        ),
        ([*_R_SECRET, "clients.sampling=poisson"], ["clients.sampling=fixed"]),
        ([*_R_SECRET, "privacy.accounting=paper"], ["privacy.accounting=paper"]),
        (["data=synthetic", "data.shape=[1,0]"], ["data.shape"]),
        (["data=synthetic", "data.classes=1"], ["data.classes"]),
        (["runtime=simulation", "runtime.cpus_per_client=0"], ["runtime.cpus_per_client"]),
    ],
)
def test_what_does_not_fit_together_names_its_keys(overrides: list[str], keys: list[str]) -> None:
    sentence = _refusal(*overrides)
    assert all(key in sentence for key in keys)


@pytest.mark.parametrize("override", ["rounds", "rounds=[", "rounds=${nothing}", "privacy=null"])
def test_what_hydra_cannot_read_is_a_sentence(override: str) -> None:
    _refusal(override)


@pytest.mark.parametrize("choice", _choices())
def test_json_round_trip_is_the_identity(choice: str) -> None:
    config = _composed(choice)
    assert from_json(to_json(config)) == config
    assert to_json(from_json(to_json(config))) == to_json(config)


def test_different_configurations_have_different_json() -> None:
    texts = {to_json(_composed(o)) for o in ("seed=0", "seed=1", "privacy.epsilon=1", "data=mnist")}
    assert len(texts) == 4


def _set(path: str, value: object) -> Callable[[dict[str, Any]], object]:
    def tamper(tree: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            tree = tree[parent]
        tree[last] = value

    return tamper


@pytest.mark.parametrize(
    ("tamper", "key"),
    [
        (_set("privacy.delta", 2), "privacy.delta"),
        (_set("privacy.clip", -1.0), "privacy.clip"),
        (_set("privacy.unit", "planet"), "privacy.unit"),
        (_set("backdoor", 1), "backdoor"),
        (_set("data.url", "elsewhere"), "data.url"),
        (_set("data.name", "passwords"), "data"),
        (_set("strategy.name", "os"), "strategy"),
        (_set("clients.per_round", 10**6), "clients.per_round"),
        (lambda tree: tree.pop("privacy"), "privacy"),
    ],
)
def test_a_device_refuses_tampered_json(
    tamper: Callable[[dict[str, Any]], object], key: str
) -> None:
    tree = json.loads(to_json(_composed("data=digits")))
    tamper(tree)
    with pytest.raises(ConfigError, match=key):
        from_json(json.dumps(tree))


@pytest.mark.parametrize(
    "text", ["", "hello", "[]", "3", "null", '{"rounds":', '{"rounds": 1e999}']
)
def test_a_device_refuses_what_is_no_configuration(text: str) -> None:
    with pytest.raises(ConfigError):
        from_json(text)


def test_an_experiment_sets_what_the_main_file_proposes_and_the_user_has_the_last_word() -> None:
    config = compose(["experiment=paper_fedpcdp"])
    assert (config.rounds, config.clients.total, config.data.name) == (80, 10, "fashion_mnist")
    assert (config.privacy.noise_multiplier, config.strategy.server.lr) == (4.0, 0.003)
    assert config.strategy.name == "fedpcdp"  # as the file says
    assert compose(["experiment=dp_fedavg", "strategy=fed_sgm"]).strategy.name == "fed_sgm"
    assert compose(["experiment=dp_fedavg", "rounds=7"]).rounds == 7


def test_letters_beyond_ascii_need_no_quotes() -> None:
    config, folder = compose_with_folder(["hydra.run.dir=/a/größe", "model.weights=é.safetensors"])
    assert folder == Path("/a/größe")
    assert config.model.weights == "é.safetensors"
    assert compose_with_folder(['hydra.run.dir="/a/größe"'])[1] == folder
    with pytest.raises(ConfigError, match="put it in quotes"):
        compose_with_folder(["hydra.run.dir=größe,grün"])


def test_ctrl_c_is_no_mistake_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ValueError from error

    monkeypatch.setattr("hydra.compose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compose(["seed=2718281828"])  # that no other test has composed before
