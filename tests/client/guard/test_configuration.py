"""What a device makes of a run's configuration."""

import sys
from collections.abc import Callable

import pytest

from fedsketch.client.data_survey import card_for
from fedsketch.client.guard.card import TARGETS
from fedsketch.client.guard.configuration import admitted
from fedsketch.client.guard.policy import Policy
from fedsketch.conf import compose
from fedsketch.conf.targets import Targets
from fedsketch.secagg import Refusal


def test_a_device_opens_no_schema_that_a_message_names() -> None:
    asked = compose(["data=folder", "data.schema=/etc/passwd"])
    played = admitted(asked, Policy(), card_for(compose(["data=folder"]))).config
    assert played.data.schema is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", ["folder", "digits"])
def test_a_device_drops_every_path_that_a_message_names(data: str) -> None:
    paths = ["data.public_root=/home", "model.weights=/srv/file"]
    root = ["data.root=/etc"] if data == "folder" else []  # digits have none
    asked = compose([f"data={data}", *paths, *root])
    played = admitted(asked, Policy(), card_for(compose([f"data={data}"]))).config
    assert (played.data.root, played.data.public_root, played.model.weights) == (None, None, None)


def test_made_up_data_are_bounded_as_the_model_sees_them() -> None:
    """Features are more numbers than pixels: 81 / 16 times as many."""
    keys = ["data=synthetic", "data.shape=[1,8,8]", "data.examples=90", "data.test_examples=10"]
    made_up, seen = compose(keys), compose([*keys, "model.features=scattering"])
    card = card_for(seen)
    assert card == card_for(made_up)  # it says what the data are, not what a model sees
    admitted(made_up, Policy(largest_model=6400), card)
    admitted(seen, Policy(largest_model=32_400), card)
    with pytest.raises(Refusal, match="more work"):
        admitted(seen, Policy(largest_model=32_399), card)


def test_a_feature_map_of_a_package_is_the_owners_choice(install: Callable[..., None]) -> None:
    """It is refused before its code is imported."""
    entries = {"fedsketch.features": "own = plugin_guarded:make"}
    install("plugin_guarded", {"__init__.py": "def make(shape): return None, (7,)"}, entries)
    asked, card = compose(["data=digits", "model.features=own"]), card_for(compose(["data=digits"]))
    with pytest.raises(Refusal, match="does not allow the features of an installed package"):
        admitted(asked, Policy(), card)
    assert "plugin_guarded" not in sys.modules
    assert admitted(asked, Policy(plugins="other, own"), card).config.model.features == "own"
    scattered = compose(["data=digits", "model.features=scattering"])
    assert admitted(scattered, Policy(), card).config.model.features == "scattering"


def test_a_card_knows_every_kind_of_targets() -> None:
    assert list(TARGETS) == list(Targets)
