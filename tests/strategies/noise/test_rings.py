"""`secagg.bits=auto`: every kind of round has the smallest ring that serves, for whichever protocol sums."""

from typing import Any

import pytest

from fedsketch.conf import Config, compose
from fedsketch.errors import ConfigError
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.skellam_ring import SkellamRing
from fedsketch.privacy.mechanisms.smallest_ring import LARGEST_COST, error_std
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.registry import make_strategy
from fedsketch.strategies.rounds.evaluation import FederatedEvaluation
from fedsketch.tasks.workload import Workload
from tests.small import small

# 2,010 weights and three times as much noise as a clipped update is long, from a hundred clients.
LONG = "data.shape=[200] data.classes=10 data.examples=200 privacy.epsilon=2"
TRAINED = "strategy=fedpcdp strategy.projection=none privacy=example"


def _config(*overrides: str, clients: int = 100) -> Config:
    return compose(small(LONG, *overrides, clients=clients))


def _strategy(*overrides: str, clients: int = 100) -> Strategy[Any]:
    config = _config(*overrides, clients=clients)
    workload = Workload(config)
    return make_strategy(config, workload, workload.model())


def _skellam(strategy: Strategy[Any]) -> SkellamRing:
    mechanism = strategy.mechanism(1, strategy.config.clients.per_round)
    assert isinstance(mechanism, SkellamRing)
    return mechanism


@pytest.mark.parametrize("clients", [100, 2000])
def test_it_costs_less_than_one_percent_and_one_bit_less_costs_more(clients: int) -> None:
    examples = f"data.examples={2 * clients}"
    chosen = _skellam(_strategy(examples, clients=clients))
    large = _skellam(_strategy(examples, "secagg.bits=64", clients=clients))
    assert chosen.bits == {100: 16, 2000: 18}[clients]
    assert error_std(chosen) <= LARGEST_COST * error_std(large)
    if chosen.bits > 16:
        less = _skellam(_strategy(examples, f"secagg.bits={chosen.bits - 1}", clients=clients))
        assert error_std(less) > LARGEST_COST * error_std(large)


def test_the_guarantee_is_that_of_a_large_ring() -> None:
    chosen, given = _strategy(), _strategy("secagg.bits=32")
    assert _skellam(chosen).bits == 16
    assert _skellam(given).bits == 32
    assert chosen.noise.noise_multiplier == pytest.approx(given.noise.noise_multiplier, rel=1e-4)


def test_all_cohorts_of_a_run_have_one_ring() -> None:
    noise = _strategy("data.examples=4000", clients=2000).noise
    shapes = {noise.mechanism(cohort).ring for cohort in (100, 1000, 1999, 2000)}
    assert len(shapes) == 1


def test_vectors_of_two_lengths_and_evaluations_have_a_ring_that_does_not_rotate() -> None:
    warm = _skellam(_strategy("strategy=dome strategy.warm_up=1 data.shape=[1,2,100]"))
    trained = _strategy("evaluation=federated evaluation.groups=1 data.examples=400")
    evaluated = _skellam(FederatedEvaluation(trained))
    for ring in (warm, evaluated):
        assert (ring.bits, ring.rotate) == (21, False)
        assert ring.scale * ring.clip == pytest.approx(2.0**12)
    assert _skellam(trained).bits == 16


def test_a_given_small_ring_is_still_refused_for_vectors_of_two_lengths() -> None:
    with pytest.raises(ConfigError, match=r"set secagg\.bits above 20"):
        _strategy("strategy=dome strategy.warm_up=1", "secagg.bits=20")


def test_in_two_trips_the_ring_is_that_of_a_prime() -> None:
    evaluated = "evaluation=federated evaluation.groups=1 data.examples=400"
    trained = _strategy("secagg=two_trips", evaluated)
    assert (_skellam(trained).bits, _skellam(trained).prime) == (16, 65521)
    assert _skellam(FederatedEvaluation(trained)).prime == 2**21 - 9
    assert _skellam(_strategy("secagg=two_trips", "secagg.bits=20")).prime == 2**20 - 3


@pytest.mark.parametrize(("protocol", "odd"), [("pairwise", False), ("two_trips", True)])
def test_noise_inside_of_training_has_a_ring_of_its_own(protocol: str, odd: bool) -> None:
    made = {}
    for bits in ("auto", "16"):
        strategy = _strategy(TRAINED, f"secagg={protocol}", f"secagg.bits={bits}")
        mechanism = strategy.mechanism(1, 100)
        assert isinstance(mechanism, NoisyTraining)
        assert mechanism.ring is not None
        assert mechanism.ring.modulus % 2 == odd
        made[bits] = mechanism
    assert made["auto"].rounding_cost <= LARGEST_COST
    assert made["auto"].bits == 16 or made["16"].rounding_cost > LARGEST_COST


def test_training_without_noise_has_32_bits() -> None:
    none = "privacy.epsilon=null privacy.noise_multiplier=0"
    mechanism = _strategy(TRAINED, none).mechanism(1, 100)
    assert isinstance(mechanism, NoisyTraining)
    assert mechanism.bits == 32
