"""Where secure aggregation refuses the settings of a run, users read its sentence and the keys that set them."""

from collections.abc import Callable
from typing import Any

import pytest

from fedsketch.conf import compose
from fedsketch.errors import ConfigError
from fedsketch.secagg import SettingsError
from fedsketch.server.grids.config_errors import config_errors
from fedsketch.server.plan import make_plan
from tests.small import plain

# 6 clients, of whom 4 collude and 1 drops out: all 6 would have to stay. Devices' noise counts against model users.
IMPOSSIBLE = ("secagg.colluders=0.7", "clients.tolerated_dropouts=0.2", "privacy.against=model")
REFUSED = (
    "6 clients with 1 drops and 4 colluders cannot finish: at least 6 must stay, so tolerate fewer drops or "
    "colluders, or take a larger cohort. The keys: clients.per_round or evaluation.clients for clients; "
    "clients.tolerated_dropouts for drops; secagg.colluders for colluders."
)


def test_a_sentence_gets_the_keys_of_what_it_speaks_of() -> None:
    with pytest.raises(ConfigError) as caught, config_errors():
        raise SettingsError("A ring has 16 to 64 bits, not 8.")
    assert str(caught.value) == "A ring has 16 to 64 bits, not 8. The keys: secagg.bits for bits."
    with pytest.raises(ConfigError, match=r"^The nodes differ\.$"), config_errors():
        raise SettingsError("The nodes differ.")


def test_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), config_errors():
        _ = 1 // 0


def test_a_plan_says_what_its_rounds_would_be_refused_for() -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(compose(plain("secagg=pairwise", *IMPOSSIBLE)))
    assert str(caught.value) == REFUSED


@pytest.mark.parametrize("runtime", ["local", "cohort"])
def test_a_run_ends_with_the_sentence_in_the_words_of_the_configuration(
    play: Callable[..., Any], runtime: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        play("secagg=pairwise", f"runtime={runtime}", *IMPOSSIBLE)
    assert str(caught.value) == REFUSED
