"""What a run states as epsilon, against an accountant of the tests' own, from what really happened in a round.

A real round is played with the real devices and the real server (`tests.privacy.witness`), and the noise that they really draw is written
down. What each adversary can see of it is said in `tests.privacy.seen`; `tests.privacy.own_accountant` makes an epsilon of that, for data
that hides a unit as badly as we know. It must never exceed what the run states, and the run must not state much more either.
"""

from __future__ import annotations

import pytest

from fedsketch.conf import compose
from fedsketch.strategies.shared.cohort import Cohorts
from tests.privacy.own_accountant.sums import epsilon
from tests.privacy.seen import everything_seen, stated
from tests.privacy.witness import witnessed

SMALL = [
    *("strategy=dp_fedavg", "data=synthetic", "data.examples=60", "data.test_examples=20"),
    *("data.shape=[1,2,3]", "data.classes=3", "model=logistic", "device=cpu"),
    *("rounds=6", "clients.total=12", "clients.per_round=12", "clients.timeout=5"),
    *("privacy.epsilon=null", "privacy.noise_multiplier=3"),
]
KEY = 5  # of the cohorts that are played

EXACT = 1.01
LARGEST_FACTOR = {
    # How much larger the stated epsilon may be than what the tests' own accountant gives from above, by the law of the noise and the draw.
    ("gaussian", "always"): EXACT,
    ("gaussian", "poisson"): EXACT,
    ("gaussian", "fixed size"): EXACT,
    ("gaussian", "revealed"): EXACT,
    ("skellam", "always"): 1.12,
    ("skellam", "poisson"): 1.30,
    ("skellam", "fixed size"): 3.0,
    ("skellam", "revealed"): 1.30,
    ("gaussian", "fixed size among others"): 1.3,
    ("gaussian", "revealed among others"): 1.3,
    ("skellam", "fixed size among others"): 3.0,
    ("skellam", "revealed among others"): 1.3,
}


NONE = "secagg=none privacy.against=model"
SKELLAM = f"{NONE} secagg.noise=skellam"
SAMPLED = "clients.total=20 clients.per_round=8 privacy.noise_multiplier=1.5"
EXAMPLE = "privacy=example privacy.epsilon=null privacy.noise_multiplier=3"
CASES = [
    (NONE, 0),
    ("secagg=none privacy.against=server", 0),
    (f"{NONE} {SAMPLED} clients.sampling=fixed", 0),
    (f"{NONE} {SAMPLED} clients.sampling=fixed clients.tolerated_dropouts=0.25", 2),
    (f"{NONE} {SAMPLED} clients.sampling=poisson", 0),
    (f"{NONE} {SAMPLED} clients.sampling=poisson clients.tolerated_dropouts=0.25", 1),
    (f"{NONE} {SAMPLED} clients.sampling=passes", 0),
    (SKELLAM, 0),
    (f"{SKELLAM} {SAMPLED} clients.sampling=fixed", 0),
    (f"{SKELLAM} {SAMPLED} clients.sampling=poisson", 0),
    (f"{SKELLAM} {SAMPLED} clients.sampling=passes", 0),
    ("secagg=semi_honest", 0),
    (f"secagg=semi_honest {SAMPLED} secagg.colluders=0.25 clients.sampling=fixed", 0),
    (f"secagg=semi_honest {SAMPLED} clients.sampling=poisson privacy.against=model", 0),
    ("secagg=pairwise secagg.colluders=0", 0),
    ("secagg=pairwise clients.tolerated_dropouts=0.25 secagg.colluders=0.2", 3),
    ("secagg=pairwise clients.tolerated_dropouts=0.25 secagg.colluders=0.2", 0),
    ("secagg=pairwise secagg.bits=16", 0),
    (f"secagg=pairwise {SAMPLED} clients.sampling=passes", 0),
    (f"secagg=pairwise {SAMPLED} clients.sampling=fixed clients.tolerated_dropouts=0.2", 1),
    (f"secagg=pairwise {SAMPLED} clients.sampling=poisson secagg.colluders=0.3", 0),
    (f"{EXAMPLE} {NONE}", 0),
    (f"{EXAMPLE} {NONE} {SAMPLED} clients.sampling=fixed", 0),
    (f"{EXAMPLE} {NONE} {SAMPLED} clients.sampling=poisson", 0),
    (f"{EXAMPLE} secagg=pairwise clients.tolerated_dropouts=0.25", 2),
    (f"{EXAMPLE} secagg=semi_honest {SAMPLED} clients.sampling=poisson", 0),
    (f"{EXAMPLE} secagg=pairwise {SAMPLED} clients.sampling=passes", 0),
    (
        "strategy=fedpcdp strategy.projection=none strategy.local.steps=3 strategy.local.batch=1 secagg=none",
        0,
    ),
    (
        "strategy=fedpcdp strategy.projection=none strategy.local.steps=2 strategy.local.batch=2 secagg=pairwise",
        0,
    ),
    ("strategy=fed_sgm strategy.sketch_dim=8 secagg=pairwise", 0),
    ("strategy=dome strategy.broadcast=full secagg=none privacy.against=model", 0),
]


@pytest.mark.parametrize(("overrides", "lost"), CASES)
def test_the_stated_epsilon_is_true_and_not_much_more_than_true(overrides: str, lost: int) -> None:
    config = compose([*SMALL, *overrides.split()])
    gone = Cohorts(config.clients, KEY).draw(1)[:lost]
    (round,) = witnessed(config, key=KEY, lost=gone.__contains__)
    assert len(round.arrived) == round.cohort - lost
    seen = everything_seen(config, round)
    for adversary, claim in stated(config, round).items():
        law, kind, pair, times = seen[adversary]
        own = epsilon([(pair, times)], config.privacy.delta)
        line = (
            f"{adversary}: {law}, {kind}: stated {claim:.4f}, own {own.low:.4f} to {own.high:.4f}"
        )
        print(f"{line}, factor {claim / own.high:.3f}")  # pytest -s shows the table
        assert own.low <= claim, line
        assert claim <= LARGEST_FACTOR[law, kind] * own.high, line
