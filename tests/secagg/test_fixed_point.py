"""The plain codec: means in fixed point, exact to its scale, and refusals instead of clipping."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsketch.secagg.codec import Sum
from fedsketch.secagg.errors import Refusal, SettingsError
from fedsketch.secagg.fixed_point import FixedPoint
from fedsketch.secagg.options import SecAggOptions
from fedsketch.secagg.packing import reduce, ring_dtype
from fedsketch.secagg.pairwise.settings import PairwiseSettings
from fedsketch.secagg.settings import RoundSettings, Sizes
from fedsketch.secagg.two_trips.field import prime_below
from fedsketch.secagg.two_trips.settings import Cohort, Terms, TwoTripsSettings


def reply(values: Any, weight: Any = 10, **metrics: float) -> RecordDict:
    arrays = ArrayRecord({"b": Array(np.array(values)), "a": Array(np.array([[1.0], [2.0]]))})
    return RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({"num-examples": weight, **metrics})}
    )


def settings_for(codec: FixedPoint, like: RecordDict, n: int = 4) -> RoundSettings:
    plan = SecAggOptions(drops=0)
    vector = codec.describe(like, plan.sizes(n))
    return PairwiseSettings.proposed(plan, 1, 1, range(n), vector, b"")


def in_two_trips(codec: FixedPoint, like: RecordDict, n: int) -> RoundSettings:
    """The settings of a round that sums modulo a prime."""
    vector = codec.describe(like, Sizes(n, 0, 0))
    cohort = Cohort(run=1, epoch=1, closed=True, ids=tuple(range(n)))
    terms = Terms(n, 1, 0, 0, 0, vector.dim, vector.bits, vector.application)
    return TwoTripsSettings.of(cohort, terms, 1, bytes(16), bytes(32))


@settings(max_examples=100, deadline=None)
@given(
    bits=st.sampled_from([24, 32, 40, 64]),
    prime=st.booleans(),
    n=st.integers(2, 30),
    seed=st.integers(0, 2**32),
    extreme=st.booleans(),
)
def test_the_mean_is_right_and_never_wraps(
    bits: int, prime: bool, n: int, seed: int, extreme: bool
) -> None:
    rng = np.random.default_rng(seed)
    codec = FixedPoint(bits=bits, value_limit=4.0, weight_limit=100, metrics=("loss",))
    sign = rng.choice([-1.0, 1.0])
    replies = [
        reply(
            np.full(3, 4.0 * sign) if extreme else rng.uniform(-4, 4, 3),
            weight=100 if extreme else int(rng.integers(1, 101)),
            loss=1000.0 * sign if extreme else float(rng.uniform(-9, 9)),
        )
        for _ in range(n)
    ]
    prime = prime and bits <= 32
    chosen = (in_two_trips if prime else settings_for)(codec, replies[0], n)
    assert chosen.modulus % 2 == prime
    total = np.zeros(chosen.dim, dtype=np.uint64 if prime else ring_dtype(bits))
    for one in replies:
        sent = codec.encode(one, chosen)
        assert sent.dtype == ring_dtype(bits)
        assert int(sent.max()) < chosen.modulus
        total += sent
    decoded = codec.decode(Sum(reduce(total, chosen.modulus), tuple(range(n))), chosen, replies[0])
    weights = np.array([one["metrics"]["num-examples"] for one in replies], dtype=float)
    values = np.array([one["arrays"]["b"].numpy() for one in replies])
    mean = (weights[:, None] * values).sum(0) / weights.sum()
    step = n / (codec._scales(chosen.sizes)[0] * weights.sum())  # every client rounds by half
    np.testing.assert_allclose(decoded["arrays"]["b"].numpy(), mean, atol=step, rtol=1e-9)
    assert list(decoded["arrays"]) == ["b", "a"]
    assert decoded["metrics"]["num-examples"] == weights.sum()
    losses = np.array([one["metrics"]["loss"] for one in replies])
    step = n / (codec._scales(chosen.sizes)[1] * weights.sum())
    assert decoded["metrics"]["loss"] == pytest.approx((weights @ losses) / weights.sum(), abs=step)


def test_dtypes_and_shapes_of_the_broadcast_return() -> None:
    codec = FixedPoint()
    broadcast = RecordDict(
        {
            "model": ArrayRecord(
                {
                    "w": Array(np.ones((2, 3), dtype=np.float32)),
                    "count": Array(np.array(5, dtype=np.int64)),
                }
            )
        }
    )
    content = RecordDict(
        {"model": broadcast["model"], "metrics": MetricRecord({"num-examples": 7})}
    )
    chosen = settings_for(codec, broadcast, 2)
    total = codec.encode(content, chosen) + codec.encode(content, chosen)
    decoded = codec.decode(Sum(total, (0, 1)), chosen, broadcast)
    assert decoded["model"]["w"].numpy().dtype == np.float32
    np.testing.assert_allclose(decoded["model"]["w"].numpy(), np.ones((2, 3)), atol=1e-3)
    assert decoded["model"]["count"].numpy() == np.int64(5)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (reply([5.0, 0, 0]), "value_limit"),
        (reply([np.nan, 0, 0]), "value_limit"),
        (reply([np.inf, 0, 0]), "value_limit"),
        (reply([0.0, 0, 0], weight=101), "whole number up to 100"),
        (reply([0.0, 0, 0], weight=-1), "whole number"),
        (reply([0.0, 0, 0], weight=1.5), "whole number"),
        (reply([0.0, 0, 0], weight=[1, 2]), "does not report"),
        (reply([0.0, 0]), "other limits, metrics or arrays"),
        (RecordDict({"arrays": ArrayRecord()}), "MetricRecord"),
        (RecordDict({"metrics": MetricRecord({"num-examples": 1})}), "ArrayRecord"),
    ],
)
def test_replies_outside_the_limits_are_refused(wrong: RecordDict, what: str) -> None:
    codec = FixedPoint(value_limit=4.0, weight_limit=100)
    chosen = settings_for(codec, reply([0.0, 0, 0]))
    with pytest.raises(Refusal, match=what):
        codec.encode(wrong, chosen)


def test_refusals_do_not_quote_the_data() -> None:
    """The sentence travels to the server in the clear."""
    codec = FixedPoint(value_limit=4.0, weight_limit=100, metrics=("loss",))
    chosen = settings_for(codec, reply([0.0, 0, 0]))
    for wrong in (
        reply([7.25, 0, 0], loss=0.0),
        reply([0.0, 0, 0], weight=725, loss=0.0),
        reply([0.0, 0, 0], loss=7251.0),
    ):
        with pytest.raises(Refusal) as caught:
            codec.encode(wrong, chosen)
        assert "7" not in str(caught.value)


def test_a_server_with_other_limits_is_refused() -> None:
    """The device's limits are its own: a server cannot raise them."""
    mine, theirs = FixedPoint(value_limit=4.0), FixedPoint(value_limit=1e9, bits=64)
    chosen = settings_for(theirs, reply([0.0, 0, 0]))
    with pytest.raises(Refusal, match="other limits"):
        mine.encode(reply([0.0, 0, 0]), chosen)


def test_other_rings_than_the_devices_are_refused() -> None:
    mine, theirs = FixedPoint(bits=32), FixedPoint(bits=64)
    chosen = settings_for(theirs, reply([0.0, 0, 0]))
    with pytest.raises(Refusal, match="bits"):
        mine.encode(reply([0.0, 0, 0]), chosen)


def test_a_ring_that_is_too_small_says_what_to_change() -> None:
    with pytest.raises(SettingsError, match="raise bits or lower weight_limit"):
        FixedPoint(bits=16, weight_limit=10_000).describe(reply([0.0]), Sizes(10, 0, 0))


def test_no_examples_at_all_is_an_error() -> None:
    codec = FixedPoint()
    nothing = reply([0.0, 0, 0], weight=0)
    chosen = settings_for(codec, nothing, 2)
    total = codec.encode(nothing, chosen)
    with pytest.raises(SettingsError, match="No survivor"):
        codec.decode(Sum(total + total, (0, 1)), chosen, nothing)


def test_limits_are_committed_in_the_settings() -> None:
    content = reply([0.0, 0, 0])
    one = settings_for(FixedPoint(value_limit=4.0), content)
    two = replace(one, application=settings_for(FixedPoint(value_limit=5.0), content).application)
    assert one.digest != two.digest


@pytest.mark.parametrize("bits", range(16, 33))
def test_the_room_of_a_ring_is_enough_modulo_its_prime(bits: int) -> None:
    """All clients at the limits: the sum stays below half of the prime, which is below 2^bits."""
    codec = FixedPoint(bits=bits, value_limit=1.0, metric_limit=1.0, weight_limit=1)
    for n in (2, 3, 63, 1000):
        value_scale, _ = codec._scales(Sizes(n, 0, 0))
        assert n * round(value_scale) <= (prime_below(bits) - 1) // 2
