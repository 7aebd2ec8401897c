"""A checked configuration cannot be changed behind the checks."""

import dataclasses

import pytest

from fedsketch.conf import compose


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
