"""The model card says what is true of a run, and takes it from the configuration and the summary alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsketch.conf import compose
from fedsketch.errors import TooFewClients
from fedsketch.server.report.model_card import model_card

Play = Callable[..., Any]
SUMMARY: dict[str, Any] = {
    "rounds": 7,
    "accuracy": 0.5,
    "loss": 1.25,
    "best": None,
    "epsilon": {"model": 1.5, "client": 2.0, "server": None},
    "delta": 1e-5,
    "budget_against": "model",
    "noise_multiplier": 1.5,
    "guarantee": "What holds.",
    "not_private": None,
    "adversaries": {"model": "all who see models", "client": "2 of them", "server": "who runs it"},
    "stopped": None,
    "parameters": 2410,
    "versions": {"torch": "2.13"},
}


def _card(*overrides: str, **changes: Any) -> str:
    return model_card(compose([*overrides]), {**SUMMARY, **changes})


def test_it_has_a_section_for_every_topic_and_every_adversary() -> None:
    card = _card()
    headings = [line for line in card.splitlines() if line.startswith("## ")]
    for topic in ("Unit", "parameters", "Mechanism", "accounting", "threat", "Data", "bias"):
        assert any(topic in heading for heading in headings)
    for topic in ("Access", "hazards", "To be added"):
        assert any(topic in heading for heading in headings)
    for fact in (
        "| model | 1.5 | 1e-05 | 81.76 % (50 % without the run) |",
        "| server | no guarantee | | |",
        "- server: who runs it.",
        "The budget was epsilon 8, against model.",
        "accuracy on the server's test set: 50.0 %",
        "loss on the server's test set: 1.25",
        "after 7 of 40 rounds",
        "one client, with all its data",
        "What holds.",
    ):
        assert fact in card
    assert "NOT PRIVATE" not in card
    assert "Stopped" not in card


@pytest.mark.parametrize(
    ("overrides", "says", "never"),
    [
        ([], "added in integers", "floating point, which is not"),
        (["secagg=none"], "floating point, which is not", "added in integers"),
        (["secagg=none"], "the server sees every upload", "sees sums"),
        (["strategy=fedpcdp", "privacy=example", "data.public=50"], "in every step", "it sends,"),
        (["privacy=example", "strategy=dp_fedavg"], "one example", "one client, with"),
        (["privacy.clip=adaptive"], "a noised quantile", "at norm"),
        (["data.public=50"], "50 of its training examples were public", "public examples in"),
        (["model.weights=x.safetensors"], "started from given weights", "frozen feature"),
        (["validation.examples=9", "validation.patience=2"], "all planned rounds", "were public"),
        (["validation.examples=9"], "9 validation examples", "were public"),
        (
            ["runtime=processes", "clients.total=3", "clients.per_round=3"],
            "one machine",
            "simulated",
        ),
        (["clients.tolerated_dropouts=0.25"], "Up to 25% of a round's clients", "Up to 0%"),
        (["privacy.epsilon=null", "privacy.noise_multiplier=2"], "no budget", "The budget was"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_it_follows_the_configuration(overrides: list[str], says: str, never: str) -> None:
    card = _card(*overrides)
    assert says in card
    assert never not in card


DRAWN = ("clients.total=40", "clients.per_round=10", "clients.sampling=poisson")


def test_it_does_not_tell_how_many_clients_a_secret_draw_chose() -> None:
    """Which the epsilon of those who know the cohorts does, to four digits."""
    spent = {"model": 1.5, "client": 13.17, "server": 7.993}
    card = _card(*DRAWN, epsilon=spent, budget_against="server")
    assert "| model | 1.5 | 1e-05 |" in card
    assert "| client | in `summary.json`, because it tells how many were drawn | | |" in card
    assert "| server | at most 8 | 1e-05 |" in card
    assert not {"13.17", "7.993"} & set(card.split())
    assert "| client | in `summary" in _card(*DRAWN, epsilon=spent, budget_against="client")
    for told in ((*DRAWN, "privacy=none"), (*DRAWN, "clients.sampling=passes")):
        assert "| client | 13.17 |" in _card(*told, epsilon=spent)


def test_a_trusted_server_is_named_as_the_one_who_adds_the_noise() -> None:
    card = _card(adversaries={"model": "all", "client": "2", "server": "trusted"})
    assert "added by the server, after it has seen the uploads" in card
    assert "floating point, which is not" in card


def test_a_run_that_is_not_private_says_so_first() -> None:
    card = _card("privacy.randomness=seeded", not_private="its noise is known")
    assert card.index("NOT PRIVATE: its noise is known.") < card.index("## ")
    assert "from the seed, so that everybody can compute it" in card
    assert "costs that epsilon" not in card


def test_what_devices_said_of_the_model_is_told_with_its_noise() -> None:
    told = {"metrics": {"accuracy": {"mean": 0.75, "noise": 0.04}}}
    card = _card("evaluation=federated", evaluation=told)
    assert "accuracy on examples that devices held out: 0.75, with noise of 0.04." in card
    assert "Metrics on devices' own examples are noised" in card
    assert "devices" not in _card().split("## Utility and bias")[1].split("## Impl")[0]


def test_a_played_run_has_one_and_so_has_one_that_broke_off(play: Play, tmp_path: Path) -> None:
    played = play("rounds=1", "validation.examples=5")
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert played.guarantee in card
    assert "`best.safetensors` is the model after round 1" in card
    with pytest.raises(TooFewClients):
        play("clients.retries=0", folder="torn", failing=lambda call, client: call >= 12)
    torn = (tmp_path / "torn" / "MODEL_CARD.md").read_text()
    assert "Interrupted after round 2" in torn
    assert "after 2 of 4 rounds" in torn
    resumed = play("clients.retries=0", folder="torn")
    assert resumed.done == 2
    assert "Interrupted" not in (tmp_path / "torn" / "MODEL_CARD.md").read_text()
