"""The usual keys of Flower's apps become ours, and nothing is set twice."""

import tomllib
from pathlib import Path

import pytest

from fedsketch.conf import compose
from fedsketch.errors import ConfigError
from fedsketch.server.flower_keys import KEYS, translated

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
UNSET = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"]
VALUES: dict[str, object] = {
    "num-server-rounds": 3,
    "num-clients": 20,
    "fraction-train": 0.25,
    "local-epochs": 2,
    "batch-size": 16,
    "learning-rate": 0.05,
    "momentum": 0.5,
    "server-learning-rate": 0.7,
    "clipping-norm": 0.3,
    "noise-multiplier": 1.5,
    "server-device": "cpu",
    "seed": 9,
}


def test_every_key_can_be_given_to_flwr_run_and_is_unset_at_first() -> None:
    """Flower refuses --run-config for a key that is not there."""
    assert {key: UNSET[key] for key in KEYS} == dict.fromkeys(KEYS, "")
    assert VALUES.keys() == KEYS.keys()
    assert translated(UNSET, ["rounds=7"]) == ["rounds=7"]


@pytest.mark.parametrize("strategy", ["dome", "dp_fedavg", "csgm"])
def test_every_key_arrives(strategy: str) -> None:
    config = compose(translated(UNSET | VALUES, [f"strategy={strategy}"]))
    assert (config.rounds, config.seed, config.device) == (3, 9, "cpu")
    assert (config.clients.total, config.clients.per_round) == (20, 5)
    local, server = config.strategy.local, config.strategy.server
    assert (local.epochs, local.batch, local.lr, local.momentum) == (2, 16, 0.05, 0.5)
    assert server.lr == 0.7
    assert (config.privacy.clip, config.privacy.noise_multiplier) == (0.3, 1.5)


@pytest.mark.parametrize("key", KEYS)
def test_what_both_say_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}=.* leave out one"):
        translated(UNSET | VALUES, [f"{KEYS[key]}=1"])


def test_all_simulated_nodes_are_clients_unless_the_run_says_more() -> None:
    assert translated(UNSET, [], nodes=7) == ["clients.total=7", "clients.per_round=7"]
    assert translated(UNSET | {"fraction-train": 0.5}, [], nodes=7)[-1] == "clients.per_round=3"
    assert translated(UNSET | {"num-clients": 5}, [], nodes=7)[0] == "clients.total=5"
    said = ["clients.total=4", "clients.per_round=2"]
    assert translated(UNSET, said, nodes=7) == said
    assert translated(UNSET, ["experiment=dome"], nodes=7) == ["experiment=dome"]
    assert translated(UNSET, ["clients.per_round=2"], nodes=7)[-1] == "clients.total=7"


@pytest.mark.parametrize("fraction", [0, 1.5, -0.1, "half", True])
def test_a_fraction_is_a_share(fraction: object) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        translated(UNSET | {"fraction-train": fraction}, [], nodes=7)


def test_a_fraction_of_an_unknown_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="set num-clients too"):
        translated(UNSET | {"fraction-train": 0.5}, [])
