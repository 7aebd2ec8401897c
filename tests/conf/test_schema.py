"""A checked configuration cannot be changed behind the checks."""

import dataclasses

import pytest

from fedsketch.conf import ConfigError, compose, device_json, from_json


def test_configurations_are_frozen() -> None:
    config = compose([])
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.rounds = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.privacy.epsilon = 1000.0  # type: ignore[misc]


def test_equal_choices_make_equal_and_hashable_configurations() -> None:
    assert compose(["seed=3"]) == compose(["seed=3"])
    assert hash(compose(["seed=3"])) == hash(compose(["seed=3"]))
    assert compose(["seed=3"]) != compose(["seed=4"])


def test_without_noise_nothing_is_called_private() -> None:
    assert compose([]).privacy.private
    assert not compose(["privacy=none"]).privacy.private
    assert not compose(["privacy.noise_multiplier=0", "privacy.epsilon=null"]).privacy.private


def test_fedavg_brings_no_privacy_along_and_dp_fedavg_does() -> None:
    assert not compose(["strategy=fedavg"]).privacy.private
    assert compose(["strategy=dp_fedavg"]).privacy.private


def test_losses_and_colluders_are_shares_below_1_and_numbers_from_1_on() -> None:
    config = compose(["clients.tolerated_losses=3", "secagg.colluders=4.0"])
    found = (config.clients.tolerated_losses, config.secagg.colluders)
    assert found == (3, 4)
    assert all(isinstance(number, int) for number in found)
    assert from_json(device_json(config)).secagg == config.secagg
    for key in ("clients.tolerated_losses", "secagg.colluders"):
        with pytest.raises(ConfigError, match=f"^{key}: from 1 on it should be a whole number"):
            compose([f"{key}=1.5"])
        with pytest.raises(ConfigError, match=f"^{key}: input should be greater than or equal"):
            compose([f"{key}=-1"])


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("secagg.bits=40", "is more than the 32 of sums in two trips: lower it, or set secagg=pa"),
        ("secagg.merged=true", "is for pairwise masks, and sums in two trips have nothing to mer"),
    ],
)
def test_what_sums_in_two_trips_do_not_have_is_refused(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compose(["secagg=two_trips", override])
    compose(["secagg=auto", override])


def test_devices_are_not_told_the_losses() -> None:
    """The settings of secure aggregation hold them, and older messages mean the same."""
    assert "tolerated_losses" not in device_json(compose(["clients.tolerated_losses=3"]))
