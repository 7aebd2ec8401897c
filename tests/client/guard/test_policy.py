"""The owner's file: what it may hold, and that nothing in it is silently ignored."""

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedsketch.client.guard.policy import Policy
from fedsketch.secagg import SettingsError


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_generated_file_is_the_default_policy_with_every_key_explained(tmp_path: Path) -> None:
    text = Policy().to_toml()
    assert Policy.load(written(tmp_path / "policy.toml", text)) == Policy()
    lines = text.splitlines()
    for key in tomllib.loads(text):
        place = next(i for i, line in enumerate(lines) if line.startswith(f"{key} = "))
        assert lines[place - 1].startswith("# ")


def test_a_file_may_hold_only_what_differs(tmp_path: Path) -> None:
    policy = Policy.load(written(tmp_path / "policy.toml", "epsilon = 2\nrings = [32]\n"))
    assert policy == Policy(epsilon=2.0, rings=(32,))


def test_changed_values_survive_writing_and_reading(tmp_path: Path) -> None:
    policy = Policy(unit="example", epsilon=math.inf, allow_unmasked=True, delta=1e-7)
    assert Policy.load(written(tmp_path / "policy.toml", policy.to_toml())) == policy


def test_assumed_colluders_are_a_share_or_from_1_on_a_number(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    for text, colluders in (("0.25", 0.25), ("0", 0.0), ("1", 1), ("3.0", 3)):
        read = Policy.load(written(path, f"assumed_colluders = {text}\n")).colluders
        assert (read, type(read)) == (colluders, type(colluders))


def test_a_policy_of_an_earlier_version_allows_both_protocols(tmp_path: Path) -> None:
    policy = Policy.load(written(tmp_path / "policy.toml", "epsilon = 2\n"))
    assert policy.protocols == ("pairwise", "two_trips")


def test_a_policy_cannot_be_changed_by_the_program() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().epsilon = 100.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("smallest_cohort", 1, "smallest_cohort is at least 2: a sum of one is no sum."),
        ("smallest_cohort", 20.0, "smallest_cohort is a whole number."),
        ("smallest_cohort", True, "smallest_cohort is a whole number."),
        ("largest_drops", 1.0, "largest_drops is a share: at least 0 and below 1."),
        ("largest_drops", math.nan, "largest_drops is a share: at least 0 and below 1."),
        ("largest_losses", 1.0, "largest_losses is a share: at least 0 and below 1."),
        (
            "assumed_colluders",
            -0.1,
            "assumed_colluders is a share from 0 and below 1, or a whole number of clients.",
        ),
        (
            "assumed_colluders",
            1.5,
            "assumed_colluders is a share from 0 and below 1, or a whole number of clients.",
        ),
        (
            "assumed_colluders",
            math.inf,
            "assumed_colluders is a share from 0 and below 1, or a whole number of",
        ),
        (
            "assumed_colluders",
            math.nan,
            "assumed_colluders is a share from 0 and below 1, or a whole number of",
        ),
        ("protocols", (), "protocols holds one at least of pairwise, two_trips."),
        ("protocols", ("semi_honest",), "protocols holds one at least of pairwise, two_trips."),
        ("protocols", "pairwise", "protocols is a list of texts."),
        ("largest_clip", math.inf, "largest_clip is positive and finite."),
        ("largest_clip", math.nan, "largest_clip is positive and finite."),
        ("largest_clip", "1", "largest_clip is a number."),
        ("rings", (8,), "rings holds sizes from 16 to 64 bits."),
        ("rings", (32.0,), "rings is a list of whole numbers."),
        ("smallest_noise", -1.0, "smallest_noise is finite and not negative."),
        ("unit", "user", 'unit is "client" or "example".'),
        ("unit", 3, "unit is a text."),
        ("epsilon", 0.0, "epsilon is positive."),
        ("epsilon", math.nan, "epsilon is positive."),
        ("delta", 0.0, "delta lies strictly between 0 and 1."),
        ("most_rounds", -1, "most_rounds is not negative."),
        ("reply_seconds", -1.0, "reply_seconds is finite and not negative."),
        ("reply_seconds", math.nan, "reply_seconds is finite and not negative."),
        ("witness", "witness.jsonl", "witness is empty, or the path of a file from the root on."),
        ("allow_semi_honest", 1, "allow_semi_honest is true or false."),
        ("allow_unmasked", True, "allow_unmasked lets out what no budget can count"),
    ],
)
def test_a_wrong_value_is_refused_with_a_sentence(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Policy(**{key: value})
    assert str(caught.value).startswith(f"In this device's policy, {sentence}")


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no key 'epsilonn'; the keys are smallest_"):
        Policy.load(written(tmp_path / "policy.toml", "epsilonn = 2\n"))


@pytest.mark.parametrize("text", ["epsilon = ", "epsilon = 1\nepsilon = 2\n", "\x00"])
def test_what_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="is not TOML"):
        Policy.load(written(tmp_path / "policy.toml", text))
