"""Who is charged for what, and the refusal to overspend."""

import dataclasses
from collections.abc import Callable

import pytest

from fedsketch.conf.schema import Against
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import NoSampling
from fedsketch.server.accounts import Accounts
from fedsketch.server.run_folder import Attempt
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.fed_sgm import EAVESDROPPER

MakeStrategy = Callable[..., Strategy]
PLAIN = [
    "secagg=none",
    "privacy.against=server",
    "clients.total=9",
    "clients.per_round=9",
    "privacy.noise_multiplier=4",
]


@pytest.fixture
def make(make_strategy: MakeStrategy) -> MakeStrategy:
    return lambda *overrides: make_strategy(*PLAIN, *overrides)


def _price(strategy: Strategy, against: Against, count: int) -> float:
    accountant = Accountant(strategy.config.privacy.delta)
    accountant.record(strategy.releases(1, 9, 9)[against], count)
    return accountant.epsilon().epsilon


def _spent(accounts: Accounts) -> tuple[float, float]:
    epsilon = accounts.epsilon()
    assert epsilon["model"] is not None
    assert epsilon["server"] is not None
    return epsilon["model"], epsilon["server"]


def test_nothing_charged_nothing_spent(make: MakeStrategy) -> None:
    assert _spent(Accounts(make())) == (0.0, 0.0)


def test_adversaries_are_charged_apart(make: MakeStrategy) -> None:
    plan = make()
    accounts = Accounts(plan)
    for _ in range(3):
        accounts.charge_attempt(1, 9)
    accounts.charge_applied(1, 9)
    model, server = _spent(accounts)
    assert model == pytest.approx(_price(plan, Against.MODEL, 1))
    assert server == pytest.approx(_price(plan, Against.SERVER, 3))


def test_without_noise_there_is_no_guarantee(make: MakeStrategy) -> None:
    accounts = Accounts(make("privacy.noise_multiplier=0", "privacy.epsilon=null"))
    accounts.charge_applied(1, 9)
    assert accounts.epsilon()["model"] is None


def test_a_killed_attempt_was_seen_by_the_server_only(make: MakeStrategy) -> None:
    """Killed while round 6 was out, after the checkpoint of round 5."""
    plan = make()
    accounts = Accounts(plan)
    accounts.charge_lost([Attempt(6, 9)])
    assert _spent(accounts) == (0.0, pytest.approx(_price(plan, Against.SERVER, 1)))


def test_lost_rounds_whose_model_went_out_are_charged_to_the_model_too(make: MakeStrategy) -> None:
    """Killed in round 8 after the checkpoint of round 5: the cohorts of 7 and 8 got the models of 6 and 7."""
    plan = make()
    accounts = Accounts(plan)
    accounts.charge_lost([Attempt(6, 9), Attempt(7, 9), Attempt(8, 9)])
    model, server = _spent(accounts)
    assert server == pytest.approx(_price(plan, Against.SERVER, 3))
    assert model == pytest.approx(_price(plan, Against.MODEL, 2))


def test_a_retry_of_a_lost_round_publishes_its_model_once(make: MakeStrategy) -> None:
    plan = make()
    accounts = Accounts(plan)
    accounts.charge_lost([Attempt(6, 9), Attempt(7, 9), Attempt(7, 9)])
    model, server = _spent(accounts)
    assert server == pytest.approx(_price(plan, Against.SERVER, 3))
    assert model == pytest.approx(_price(plan, Against.MODEL, 1))


def test_two_kills_publish_two_models_of_the_same_round(make: MakeStrategy) -> None:
    """Killed in round 7, resumed from 5, killed in round 7 again: two models of round 6 with different noise were
    seen."""
    plan = make()
    accounts = Accounts(plan)
    accounts.charge_lost([Attempt(6, 9), Attempt(7, 9), Attempt(6, 9), Attempt(7, 9)])
    assert _spent(accounts)[0] == pytest.approx(_price(plan, Against.MODEL, 2))


def test_a_lost_round_of_a_pass_is_paid_for_beside_the_pass(make: MakeStrategy) -> None:
    """Passes of 3 rounds. Round 1 was lost after its model was out, then rounds 1 to 5 were played: who was in round 1
    and in round 4 or 5 was seen three times."""
    plan = make("clients.per_round=3", "clients.sampling=passes")
    accounts = Accounts(plan)
    accounts.charge_lost([Attempt(1, 3), Attempt(2, 3)])
    for _ in range(5):
        accounts.charge_applied(1, 3)
    thrice = Accountant(plan.config.privacy.delta)
    seen = plan.releases(1, 3, 3)[Against.MODEL]
    thrice.record(dataclasses.replace(seen, sampling=NoSampling()), 3)
    assert _spent(accounts)[0] >= thrice.epsilon().epsilon * (1 - 1e-9)


def test_json_carries_everything_spent(make: MakeStrategy) -> None:
    accounts, twin = Accounts(make()), Accounts(make())
    accounts.charge_attempt(1, 9)
    accounts.charge_applied(1, 9)
    twin.load_json(accounts.to_json())
    for one in (accounts, twin):
        one.charge_applied(1, 9)
    assert twin.epsilon() == accounts.epsilon()
    assert twin.to_json() == accounts.to_json()


@pytest.mark.parametrize("against", ["model", "server"])
def test_the_budget_stops_the_round_that_would_break_it(make: MakeStrategy, against: str) -> None:
    adversary = Against(against)
    budget = _price(make(), adversary, 3) * 1.0001  # three rounds fit, four do not
    accounts = Accounts(make(f"privacy.epsilon={budget}", f"privacy.against={against}"))
    for _ in range(3):
        assert accounts.affordable(1)
        accounts.charge_attempt(1, 9)
        accounts.charge_applied(1, 9)
    assert not accounts.affordable(1)
    spent = accounts.epsilon()[against]
    assert spent is not None
    assert spent <= budget


def test_without_a_budget_everything_is_affordable(make: MakeStrategy) -> None:
    accounts = Accounts(make("privacy.epsilon=null"))
    for _ in range(50):
        accounts.charge_applied(1, 9)
    assert accounts.affordable(1)


def test_a_calibrated_run_affords_exactly_its_rounds(make: MakeStrategy) -> None:
    accounts = Accounts(make("privacy.noise_multiplier=null", "privacy.against=model", "rounds=5"))
    for _ in range(5):
        assert accounts.affordable(1)
        accounts.charge_applied(1, 9)
    assert not accounts.affordable(1)


SKETCHED = ("strategy=fed_sgm", "strategy.clip=before", "secagg.noise=gaussian", "rounds=1")


def test_the_eavesdropper_of_a_secret_sketch_is_charged_for_whatever_reaches_the_server(
    make: MakeStrategy,
) -> None:
    accounts = Accounts(make(*SKETCHED))
    assert accounts.epsilon()[EAVESDROPPER] == 0.0
    accounts.charge_applied(1, 9)
    assert accounts.epsilon()[EAVESDROPPER] == 0.0
    accounts.charge_attempt(1, 9)
    once = Accountant(1e-5)
    once.record(make(*SKETCHED).releases(1, 9, 9)[EAVESDROPPER])
    assert accounts.epsilon()[EAVESDROPPER] == once.epsilon().epsilon > 0
    resumed = Accounts(make(*SKETCHED))
    resumed.load_json(accounts.to_json())
    assert resumed.epsilon() == accounts.epsilon()


def test_no_theorem_covers_a_second_look_at_a_secret_sketch(make: MakeStrategy) -> None:
    accounts = Accounts(make(*SKETCHED))
    accounts.charge_attempt(1, 9)
    accounts.charge_lost([Attempt(1, 9)])
    assert accounts.epsilon()[EAVESDROPPER] is None
    resumed = Accounts(make(*SKETCHED))
    resumed.load_json(accounts.to_json())
    assert resumed.epsilon() == accounts.epsilon()


def test_nobody_is_called_an_eavesdropper_where_no_theorem_covers_it(make: MakeStrategy) -> None:
    others = ("rounds=2", "strategy.clip=after", "strategy.seed_per=run", "secagg.noise=skellam")
    for other in others:
        assert set(Accounts(make(*SKETCHED, other)).epsilon()) == {"model", "client", "server"}


def test_a_budget_for_the_eavesdropper_binds_only_her(make: MakeStrategy) -> None:
    plan = make(
        *(*SKETCHED, "strategy.accounting=r_secret", "privacy.noise_multiplier=null"),
        "privacy.epsilon=1",
    )
    accounts = Accounts(plan)
    assert accounts.affordable(1)
    accounts.charge_attempt(1, 9)
    accounts.charge_applied(1, 9)
    assert not accounts.affordable(1)
    spent = accounts.epsilon()
    assert spent[EAVESDROPPER] == pytest.approx(1, abs=1e-6)
    assert spent[EAVESDROPPER] <= 1  # type: ignore[operator]
    assert _spent(accounts)[0] > 1
