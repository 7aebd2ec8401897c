"""Noise inside of training: real Poisson draws, the noise that is booked in every step, and nothing else in the upload.

Statistical tests use fixed seeds; each states how likely a correct implementation would fail with another seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsketch.errors import UnsafeUpdateError, UnsoundMechanismError
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import (
    Adversary,
    DrawnBy,
    Gaussian,
    NoSampling,
    Poisson,
    Unit,
)
from fedsketch.privacy.mechanisms.mechanism import RingShape
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.records import mechanism_from_record

DIM = 6


def mechanism(**changes: Any) -> NoisyTraining:
    usual = NoisyTraining(
        unit=Unit.EXAMPLE,
        rows=1000,
        clip=0.5,
        local_multiplier=2.0,
        rate=0.1,
        steps=4,
        batch=100.0,
        lr=0.25,
        dim=DIM,
        bits=32,
        clients=3,
    )
    return replace(usual, **changes)


@dataclass
class Toy:
    """A trainee whose example i has the row `values[i]`, wherever the model is."""

    values: torch.Tensor
    width: int = DIM
    batches: list[list[int]] = field(default_factory=list)
    moves: list[torch.Tensor] = field(default_factory=list)
    more: int = 0  # rows that it makes up

    @property
    def examples(self) -> int:
        return len(self.values)

    def rows(self, chosen: torch.Tensor) -> Iterator[torch.Tensor]:
        self.batches.append(chosen.tolist())
        yield from self.values[chosen].split(64)
        if self.more:
            yield torch.zeros(self.more, self.width)

    def step(self, update: torch.Tensor) -> None:
        self.moves.append(update)

    def upload(self, total: torch.Tensor) -> torch.Tensor:
        return total

    def trained_model(self) -> Toy:
        return self


def stream(seed: int) -> Stream:
    return Stream(derived_key(seed, "noisy training"))


def zeros(count: int = 1000) -> Toy:
    return Toy(torch.zeros(count, DIM))


def test_batches_are_poisson_draws_with_the_rate_that_is_booked() -> None:
    toy, made = zeros(), mechanism(steps=400)
    made.run(toy, stream(1), 1)
    sizes = np.array([len(batch) for batch in toy.batches])
    law = made.release_to(1, Unit.EXAMPLE, NoSampling(), Adversary.SERVER).sampling
    assert isinstance(law, Poisson)
    mean, variance = 1000 * law.rate, 1000 * law.rate * (1 - law.rate)
    # 5 standard errors each: 6e-7 and (a chi-square of 400) about 1e-6.
    assert abs(sizes.mean() - mean) < 5 * math.sqrt(variance / 400)
    assert abs(sizes.var() / variance - 1) < 5 * math.sqrt(2 / 400)
    # Every example as often as any other: 1,000 binomials of 400 draws, the largest deviation below 5.5 sigma but for
    # 4e-5.
    taken = np.bincount(np.concatenate(toy.batches), minlength=1000)
    assert np.abs(taken - 40).max() < 5.5 * math.sqrt(400 * 0.1 * 0.9)


def test_draws_of_two_steps_are_independent() -> None:
    toy = zeros()
    mechanism(steps=200).run(toy, stream(2), 1)
    both = [len(set(a) & set(b)) for a, b in zip(toy.batches, toy.batches[1:], strict=False)]
    # 199 binomials of 1,000 with probability 0.01, 5 standard errors of their mean.
    assert abs(np.mean(both) - 10) < 5 * math.sqrt(9.9 / 199)


def test_every_example_is_drawn_with_rate_one() -> None:
    toy = zeros(5)
    mechanism(rate=1.0).run(toy, stream(3), 1)
    assert toy.batches == [[0, 1, 2, 3, 4]] * 4


def test_an_empty_batch_gets_its_noise_and_its_step() -> None:
    toy = zeros(1)
    mechanism(rate=1e-9).run(toy, stream(4), 1)
    assert toy.batches == []
    assert len(toy.moves) == 4
    assert all(bool((move != 0).all()) for move in toy.moves)


def test_every_step_carries_the_noise_that_is_booked() -> None:
    made = mechanism(steps=2000, rate=0.01)
    toy = Toy(torch.zeros(10, DIM))
    made.run(toy, stream(5), 1)
    law = made.release_to(1, Unit.EXAMPLE, NoSampling(), Adversary.SERVER)
    assert isinstance(law.law, Gaussian)
    # A step of lr times the sum over the expected batch: 12,000 normals, 5 standard errors of their variance and mean.
    sums = torch.stack(toy.moves).double() * made.batch / made.lr
    deviation = law.law.noise_multiplier * made.clip
    assert abs(float(sums.var()) / deviation**2 - 1) < 5 * math.sqrt(2 / 12_000)
    assert abs(float(sums.mean())) < 5 * deviation / math.sqrt(12_000)
    # And independent from step to step.
    pairs = float((sums[1:] * sums[:-1]).mean()) / deviation**2
    assert abs(pairs) < 5 / math.sqrt(12_000)


def test_one_example_moves_a_step_by_no_more_than_the_clip() -> None:
    """The same randomness with and without the example: the sums differ by its clipped row."""
    values = torch.randn(50, DIM, generator=torch.Generator().manual_seed(6)) * 100
    made = mechanism(rate=1.0, steps=1, bits=0)
    with_it, without = Toy(values), Toy(values.clone())
    without.values[7] = 0.0
    sums = [made.noised_sum(toy, stream(6)) for toy in (with_it, without)]
    moved = float(np.linalg.norm(sums[0] - sums[1]))
    assert 0.499 < moved <= 0.5 * (1 + 1e-12)


def test_rows_that_are_not_finite_count_as_zero() -> None:
    values = torch.ones(3, DIM)
    values[1, 2], values[2, 0] = math.nan, math.inf
    made = mechanism(rate=1.0, local_multiplier=0.0)
    np.testing.assert_allclose(
        made.noised_sum(Toy(values), stream(7)), np.full(DIM, 0.5 / math.sqrt(DIM)), rtol=1e-6
    )


def test_the_upload_is_the_sum_of_the_noised_steps_and_nothing_else() -> None:
    toy, made = zeros(), mechanism()
    upload = made.run(toy, stream(8), 1)
    moved = torch.stack(toy.moves).sum(dim=0).numpy()
    # Up to rounding to the ring: half an integer.
    np.testing.assert_allclose(made.total([upload.vector], 1), moved, atol=0.5001 / made.scale)


def test_uploads_add_up_under_masks_as_without() -> None:
    masked, plain = mechanism(), mechanism(bits=0)
    values = torch.randn(40, DIM, generator=torch.Generator().manual_seed(9))
    in_ring, real = (
        [made.run(Toy(values), stream(seed), 1).vector for seed in range(3)]
        for made in (masked, plain)
    )
    assert {vector.dtype for vector in in_ring} == {np.dtype(np.uint64)}
    assert max(int(vector.max()) for vector in in_ring) < 2**32
    # A sum made under masks is one vector modulo 2^32.
    ring = np.sum(in_ring, axis=0, dtype=np.uint64) & np.uint64(2**32 - 1)
    # Half an integer for each, and the rounding of the plain ones to float32.
    np.testing.assert_allclose(
        masked.total([ring], 1), plain.total(real, 1), atol=1.6 / masked.scale + 1e-6
    )


@pytest.mark.parametrize("bits", [16, 20, 32, 64])
def test_sums_of_the_largest_uploads_do_not_wrap_around(bits: int) -> None:
    made = mechanism(bits=bits, local_multiplier=0.0)
    biggest = made._encoded(np.full(DIM, 1e9)).vector
    np.testing.assert_allclose(
        made.total([biggest] * 3, 1), np.full(DIM, 3 * made.limit), rtol=1e-3
    )
    lowest = made._encoded(np.full(DIM, -1e9)).vector
    np.testing.assert_allclose(
        made.total([lowest] * 3, 1), np.full(DIM, -3 * made.limit), rtol=1e-3
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noise_of_uploads_is_as_told_and_silence_has_the_same_law(momentum: float) -> None:
    made = mechanism(momentum=momentum, rate=1e-9, bits=48)
    runs = [made.run(zeros(1), stream(seed), 1).vector for seed in range(400)]
    silent = [made.protect_nothing(stream(1000 + seed)).vector for seed in range(400)]
    for vectors in (runs, silent):
        values = np.array([made.total([vector], 1) for vector in vectors])
        # 2,400 normals, 5 standard errors of their variance.
        assert abs(values.var() / made.variance_per_device - 1) < 5 * math.sqrt(2 / 2400)
    assert made.noise_std(9 * made.variance_per_device) == pytest.approx(
        3 * made.noise_std(made.variance_per_device)
    )


def test_a_round_is_booked_as_its_steps_against_everybody_whatever_others_do() -> None:
    made = mechanism()
    own = Poisson(0.1, Unit.EXAMPLE, DrawnBy.DEVICE)
    for adversary in (Adversary.MODEL, Adversary.SERVER):
        seen = {
            made.release_to(devices, Unit.EXAMPLE, sampling, adversary)
            for devices in (1, 3)
            for sampling in (NoSampling(), Poisson(0.5))
        }
        assert len(seen) == 1
        release = seen.pop()
        assert (release.law, release.sampling, release.times) == (Gaussian(2.0), own, 4)


def test_a_client_as_unit_is_booked_without_the_draw_and_with_all_its_rows() -> None:
    made = mechanism()
    release = made.release_to(3, Unit.CLIENT, NoSampling(), Adversary.SERVER)
    assert (release.law, release.sampling) == (Gaussian(2.0 / 1000), NoSampling())
    accountant = Accountant(1e-5)
    accountant.record(release)
    assert accountant.epsilon().epsilon > 1e5


def test_more_examples_than_are_booked_are_refused() -> None:
    with pytest.raises(UnsafeUpdateError, match="at most 1000 examples"):
        mechanism().run(zeros(1001), stream(1), 1)


def test_rows_that_nobody_drew_are_refused() -> None:
    toy = zeros()
    toy.more = 1
    with pytest.raises(UnsafeUpdateError, match="another number of rows"):
        mechanism().run(toy, stream(1), 1)


def test_an_upload_of_another_length_is_refused() -> None:
    with pytest.raises(UnsafeUpdateError, match="7 numbers"):
        mechanism(dim=7).run(zeros(), stream(1), 1)


def test_vectors_that_are_already_computed_are_not_let_out() -> None:
    with pytest.raises(UnsafeUpdateError, match="already computed"):
        mechanism().protect(torch.zeros(1, DIM), stream(1), 1)


def test_survives_the_wire() -> None:
    made = mechanism(momentum=0.5)
    assert mechanism_from_record(made.to_record()) == made


@pytest.mark.parametrize(
    "changes",
    [
        *({"unit": "client"}, {"rate": 0.0}, {"rate": 1.5}, {"rate": math.nan}, {"steps": 0}),
        *({"steps": 2**40}, {"steps": 2.0}, {"steps": -1}, {"clip": 0.0}, {"clip": math.inf}),
        *({"batch": 0.0}, {"batch": 1e-320}, {"lr": 0.0}, {"lr": 1e308}, {"momentum": 1.0}),
        *({"bits": 8}, {"bits": 65}, {"clients": 0}, {"clients": 2**31}, {"rows": 0}, {"dim": 0}),
        *({"local_multiplier": -1.0}, {"local_multiplier": math.inf}, {"noise": 1.0}),
        *({"clients": 2**20, "bits": 16}, {"rate": True}),
    ],
)
def test_records_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsoundMechanismError):
        mechanism_from_record({**mechanism().to_record(), **changes})


def test_is_for_the_round_that_it_was_made_for() -> None:
    made = mechanism()
    made.check_round(RingShape(DIM, 32, 2**32), 3, 1, 1)
    for ring, most in (
        (RingShape(7, 32, 2**32), 3),
        (RingShape(DIM, 16, 2**16), 3),
        (RingShape(DIM, 32, 2**32), 4),
    ):
        with pytest.raises(UnsoundMechanismError, match="but the round has"):
            made.check_round(ring, most, 0, 0)
    with pytest.raises(UnsoundMechanismError, match="Only ring integers"):
        mechanism(bits=0).check_round(RingShape(DIM, 32, 2**32), 3, 0, 0)
    with pytest.raises(UnsoundMechanismError, match="Only ring integers"):
        mechanism(bits=0).protect_nothing(stream(1))
