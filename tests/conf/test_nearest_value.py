"""A rate that follows epsilon by a table: which entry is taken, who has the last word, and what is refused."""

import pytest

from fedsketch.conf import compose
from fedsketch.conf.nearest_value import nearest
from fedsketch.errors import ConfigError

TABLE = {0.5: 0.1, 2.0: 0.4, 8.0: 0.8}
PRESET = "experiment=dp_fedavg"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0.5, 0.1),
        (0.01, 0.1),
        (0.99, 0.1),
        (1.01, 0.4),
        (2, 0.4),
        (3.9, 0.4),
        (4.1, 0.8),
        (100, 0.8),
    ],
)
def test_the_nearest_key_is_that_of_the_least_ratio(value: float, wanted: float) -> None:
    assert nearest(value, TABLE) == wanted


def test_halfway_the_smaller_key_counts_in_whatever_order_they_stand() -> None:
    assert nearest(1.0, TABLE) == 0.1
    assert nearest(4.0, dict(reversed(TABLE.items()))) == 0.4


def _table(text: str, *more: str) -> float:
    """The rate with a table as a user would write it, also in the override string of a deployment."""
    return compose([f'strategy.server.lr="${{nearest:{text}}}"', *more]).strategy.server.lr


def test_a_user_can_write_a_table_in_quotes() -> None:
    text = "${privacy.epsilon},{0.5:0.1,2:0.4,8:0.8}"
    assert _table(text, "privacy.epsilon=1.5") == 0.4
    assert _table(text, "privacy.epsilon=0.5") == 0.1


def test_a_preset_follows_epsilon_and_the_user_has_the_last_word() -> None:
    rates = [
        compose([PRESET, f"privacy.epsilon={epsilon}"]).strategy.server.lr for epsilon in (0.5, 8)
    ]
    assert rates[0] < rates[1]
    assert compose([PRESET, "strategy.server.lr=0.123"]).strategy.server.lr == 0.123


def test_with_given_noise_nothing_is_near_and_the_rate_must_be_set() -> None:
    given = [PRESET, "privacy.epsilon=null", "privacy.noise_multiplier=2"]
    with pytest.raises(
        ConfigError, match=r"^strategy\.server\.lr follows .*: set strategy\.server\.lr"
    ):
        compose(given)
    assert compose([*given, "strategy.server.lr=0.5"]).strategy.server.lr == 0.5


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("2,{}", "takes the nearest value of a table"),
        ("2,0.1", "takes the nearest value of a table"),
        ("2,{1:-0.1}", "has the entry -0.1"),
        ("2,{0:0.1}", "has the entry 0"),
        ("2,{1:often}", "has the entry often"),
        ("2,{1:true}", "has the entry True"),
        ("-2,{1:0.1}", "-2 is not a finite positive number"),
        ("inf,{1:0.1}", "inf is not a finite positive number"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_in_a_sentence(text: str, flaw: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _table(text)
    assert "strategy.server.lr" in str(caught.value)
    assert flaw in str(caught.value)
    assert "\n" not in str(caught.value)
