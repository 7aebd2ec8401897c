"""An evaluation goes through the same door as training: judged and charged before data are touched, and all that leaves
is noised.

What a server might try: ask twice, bring another model, cut the cohort into small groups, call training an evaluation
and an evaluation training, or ask in a run that has none.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message

from fedsketch.client.enroll import POLICY as POLICY_FILE
from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.policy import Policy
from fedsketch.privacy.accounting.release_json import release_from_json
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.secagg import Aborted
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.rounds.codec import EVALUATION, GROUPS, HEAD
from fedsketch.strategies.rounds.evaluation import FederatedEvaluation
from fedsketch.tasks.data.folder import DATA_VARIABLE
from tests.client.fleet import NODES, POLICY, Fleet, npz, overflows_above
from tests.rounds import ask

EVALUATED = ("evaluation=federated", "evaluation.groups=1", "evaluation.epsilon=20")


class Evaluated(Fleet):
    """Devices, and a server that evaluates on them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.evaluation: Strategy = FederatedEvaluation(self.strategy)

    def evaluate(self, vector: torch.Tensor, **numbers: Any) -> str:
        """One evaluation of this model, with changes to the numbers of the broadcast (None: taken away)."""
        return self._send(self.evaluation, vector, numbers)

    def train(self, vector: torch.Tensor, **numbers: Any) -> str:
        return self._send(self.strategy, vector, numbers)

    def _send(self, strategy: Strategy, vector: torch.Tensor, numbers: dict[str, Any]) -> str:
        strategy.model.load(vector)
        asked = ask(strategy, 1, self.secure_grid)
        content = asked[0].content
        told = {**content.config_records.get(HEAD, {}), **numbers}
        kept = {key: value for key, value in told.items() if value is not None}
        content[HEAD] = ConfigRecord(kept)
        try:
            list(self.secure_grid.send_and_receive(asked, timeout=60))
        except Aborted as aborted:
            return str(aborted)
        return "a sum"

    def charged(self) -> list[dict[str, Any]]:
        return [line for line in self.ledgers()[0] if line["entry"] == "charged"]

    def set_policy(self, policy: Policy) -> None:
        for node in range(2, NODES + 2):
            (self.root / f"device{node}" / POLICY_FILE).write_text(policy.to_toml())


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    monkeypatch.setenv(DATA_VARIABLE, str(npz(tmp_path / "data.npz", 0.5, 5)))
    return Evaluated(tmp_path, EVALUATED)


def _zeros(fleet: Fleet) -> torch.Tensor:
    return torch.zeros(fleet.strategy.model.size)


def test_every_evaluation_is_booked_as_what_it_releases(fleet: Evaluated) -> None:
    """Asked twice after one round, and once with another model: three charges, each of what the evaluation's mechanism
    shows."""
    ends = [fleet.evaluate(_zeros(fleet) + shift) for shift in (0.0, 0.0, 1.0)]
    assert ends == ["a sum"] * 3
    booked = [release_from_json(line["release"]) for line in fleet.charged()]
    expected = fleet.evaluation.releases(1, NODES, NODES)["server"]
    assert booked == [expected] * 3


def test_one_budget_pays_for_training_and_evaluations(fleet: Evaluated) -> None:
    """Training fits, and then the evaluation does not; nothing is booked for it, and the data are not touched."""
    fleet.evaluate(_zeros(fleet))
    fleet.train(_zeros(fleet))
    (_, charged) = fleet.charged()
    assert charged["release"] != fleet.charged()[0]["release"]
    spent = Ledger(fleet.root / "device2" / "ledger.jsonl").state().spent(1e-5)
    fleet.set_policy(Policy(**{**vars(POLICY), "epsilon": spent + 0.01}))
    end = fleet.evaluate(_zeros(fleet))
    assert "budget of this device does not cover this round" in str(fleet.grid.seen)
    assert end != "a sum"
    assert len(fleet.charged()) == 2


def test_a_message_that_comes_again_is_answered_once(fleet: Evaluated) -> None:
    fleet.evaluate(_zeros(fleet))
    content, node = fleet.grid.sent[0]
    list(fleet.grid.send_and_receive([Message(content, node, "train")]))
    assert "refusal" in str(fleet.grid.seen[-1])
    assert len(fleet.charged()) == 1


@pytest.mark.parametrize("kind", ["evaluate", "train.evaluate"])
def test_there_is_no_other_way_to_ask(fleet: Evaluated, kind: str) -> None:
    """Flower's own kind of message for evaluations has no handler here, whatever its content."""
    fleet.evaluate(_zeros(fleet))
    content, node = fleet.grid.sent[0]
    list(fleet.grid.send_and_receive([Message(content, node, kind)]))
    assert "vector" not in str(fleet.grid.seen[-1])
    assert len(fleet.charged()) == 1


def test_small_groups_are_refused_before_anything_is_booked(fleet: Evaluated) -> None:
    """The policy asks for three in a sum, and two groups of four clients have two each."""
    end = fleet.evaluate(_zeros(fleet), **{GROUPS: 2})
    assert end != "a sum"
    assert not fleet.charged()


def test_an_evaluation_in_a_run_without_any_is_refused_before_anything_is_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    (tmp_path / "plain").mkdir()
    plain = Fleet(tmp_path / "plain")
    evaluated = Evaluated(tmp_path, EVALUATED)
    evaluated.strategy, evaluated.secure_grid = plain.strategy, plain.secure_grid
    evaluated.grid = plain.grid
    assert evaluated.train(_zeros(plain), **{EVALUATION: True}) != "a sum"
    assert "set evaluation=federated" in str(plain.grid.seen)
    assert all(line["entry"] != "charged" for lines in plain.ledgers() for line in lines)


def _told(fleet: Evaluated) -> tuple[list[str], Any, Any]:
    """Everything that leaves: an evaluation of a model that overflows on a private pixel; evaluation and training under
    each other's name, whose vectors have a length that the other's mechanism does not take."""
    crafted = overflows_above(0.5, fleet.strategy.model.size)
    ends = [
        fleet.evaluate(crafted),
        fleet.evaluate(_zeros(fleet) + float("nan")),
        fleet.train(crafted, **{EVALUATION: True}),
        fleet.evaluate(crafted, **{EVALUATION: None}),
    ]
    return ends, fleet.grid.seen, fleet.ledgers()


@pytest.mark.parametrize("unit", ["client", pytest.param("example", marks=pytest.mark.slow)])
def test_what_leaves_does_not_tell_about_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    worlds = [npz(tmp_path / "low.npz", 0.4, 5), npz(tmp_path / "high.npz", 0.9, 2)]
    worlds.append(tmp_path / "missing.npz")
    told = []
    for number, data in enumerate(worlds):
        monkeypatch.setenv(DATA_VARIABLE, str(data))
        root = tmp_path / f"world{number}"
        root.mkdir()
        noise = ("privacy.epsilon=null", "privacy.noise_multiplier=1", "data.largest_shard=8")
        # What protects an example protects a client less, and the owner asks for noise per client.
        policy = replace(POLICY, smallest_noise=0.01, epsilon=1e6)
        fleet = Evaluated(root, (*EVALUATED, f"privacy={unit}", *noise), policy=policy)
        told.append(_told(fleet))
    assert told[0][0] == ["a sum"] * 4
    assert all(one == told[0] for one in told[1:])
    assert sum(line["entry"] == "charged" for line in told[0][2][0]) == 4
