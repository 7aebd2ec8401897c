"""The adaptive clip finds its quantile, its rows keep their bound exactly, and it costs what one more number costs."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from fedsketch.conf import compose
from fedsketch.errors import ConfigError, UnsoundMechanismError
from fedsketch.privacy.accounting.releases import Adversary, NoSampling, Unit
from fedsketch.privacy.mechanisms.gaussian import GaussianNoise
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.privacy.mechanisms.ring_choice import choose_ring
from fedsketch.strategies.algorithm import Aggregate, Strategy
from fedsketch.strategies.rounds.clip import AdaptiveClip, clipping_of, with_counts
from fedsketch.strategies.rounds.messages import Broadcast
from tests.rounds import coordinator_of

ADAPTIVE = ["data=synthetic", "privacy.clip=adaptive"]
DIM, ROWS = 8, 200
MakeStrategy = Callable[..., Strategy]


def _broadcast(mechanism: Mechanism, *overrides: str) -> Broadcast:
    return Broadcast(compose([*ADAPTIVE, *overrides]), 1, mechanism, {})


def _ring(clip: float, dim: int = DIM + 1, multiplier: float = 2.0) -> Mechanism:
    return choose_ring(
        dim=dim, clients=1, rows=ROWS, clip=clip, noise=lambda l2, l1: (multiplier * l2) ** 2
    )


def _gaussian(clip: float) -> Mechanism:
    return GaussianNoise(rows=ROWS, local_multiplier=2.0, clip=clip)


# ---------------------------------------------------------------------------- the device
@pytest.mark.parametrize("weight", [0.01, 0.28, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_row_with_its_count_exceeds_the_bound(weight: float, dtype: torch.dtype) -> None:
    """In exact arithmetic, for rows far below, far above and right at the clip."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
    lengths = torch.cat([torch.full((ROWS // 2,), 0.3), torch.logspace(-6, 6, ROWS // 2)])
    rows = (rows / rows.norm(dim=1, keepdim=True) * lengths[:, None]).to(dtype)
    bound = AdaptiveClip(compose(ADAPTIVE).privacy.adaptive).bound
    assert bound is not None
    counted = with_counts(rows, _broadcast(_gaussian(bound), f"privacy.adaptive.weight={weight}"))
    assert counted.shape == (ROWS, DIM + 1)
    for row in counted.tolist():
        squared = sum(Fraction(value) ** 2 for value in row)
        assert squared <= Fraction(bound) ** 2 * (1 + Fraction(1, 2**50))  # a norm in float64


def test_a_count_says_whether_its_row_fitted() -> None:
    mechanism = _gaussian(0.3 * math.sqrt(1 + 0.28**2 / 4))
    rows = torch.zeros(3, DIM)
    rows[:, 0] = torch.tensor([0.0, 0.29, 0.31])
    counted = with_counts(rows, _broadcast(mechanism))
    assert counted[:, -1].tolist() == pytest.approx([0.0, 0.042, -0.042], rel=1e-5)
    assert torch.equal(counted[:2, :-1], rows[:2])
    assert float(counted[2, 0]) == pytest.approx(0.3, rel=1e-5)


def test_with_a_fixed_clip_rows_stay_as_they_are() -> None:
    rows = torch.ones(2, DIM)
    fixed = Broadcast(compose(["data=synthetic"]), 1, _gaussian(0.3), {})
    assert with_counts(rows, fixed) is rows


# ---------------------------------------------------------------------------- what is seen
@pytest.mark.parametrize("make", [_ring, _gaussian])
def test_every_clip_is_the_same_release(make: Callable[[float], Mechanism]) -> None:
    first = make(0.3)
    seen = [first.release_to(4.0, Unit.CLIENT, NoSampling(), Adversary.SERVER)]
    bounds = [0.3 * 1.07**i for i in range(-60, 60)]
    for bound in bounds:
        moved = first.with_bound(bound)
        moved.check()
        assert moved.bound is not None
        assert bound * (1 - 1e-6) <= moved.bound <= bound
        assert moved.noise_std(4.0) == pytest.approx(first.noise_std(4.0) * bound / 0.3, rel=1e-6)
        seen.append(moved.release_to(4.0, Unit.CLIENT, NoSampling(), Adversary.SERVER))
    assert len(set(seen)) == 1


def test_noise_inside_of_training_has_a_fixed_bound(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy("strategy=fedpcdp", "privacy=example", "data.public=10")
    mechanism = strategy.mechanism(1, 6)
    assert isinstance(mechanism, NoisyTraining)
    with pytest.raises(UnsoundMechanismError, match="fixed"):
        mechanism.with_bound(1.0)


@pytest.mark.parametrize("secagg", ["none", "pairwise"])
@pytest.mark.parametrize("unit", ["client", "example"])
def test_a_run_costs_what_one_more_number_costs(
    make_strategy: MakeStrategy, secagg: str, unit: str
) -> None:
    common = (f"secagg={secagg}", f"privacy={unit}", "privacy.epsilon=4")
    adaptive = make_strategy(*common, "privacy.clip=adaptive", "privacy.adaptive.start=0.3")
    fixed = make_strategy(*common, "privacy.clip=0.3")
    assert adaptive.vector_length(1) == fixed.vector_length(1) + 1
    longer = replace(fixed.noise, dim=adaptive.vector_length(1), clip=adaptive.clipping.bound)
    assert adaptive.releases(1, 6, 6) == longer.releases(6, 6)
    assert adaptive.noise.noise_multiplier == longer.noise_multiplier
    for clip in (0.03, 0.3, 7.0):
        adaptive.clipping.load_state_dict({"clip": clip})
        asked = adaptive.clipping.of_round(adaptive.mechanism(1, 6))
        booked = adaptive.mechanism(1, 6).release_to(
            3.0, Unit(unit), NoSampling(), Adversary.SERVER
        )
        assert asked.release_to(3.0, Unit(unit), NoSampling(), Adversary.SERVER) == booked
        assert asked.bound == pytest.approx(clip * 1.00975, rel=1e-5)


# ---------------------------------------------------------------------------- the server
@pytest.mark.parametrize("make", [_ring, _gaussian])
@pytest.mark.parametrize("quantile", [0.3, 0.8])
@pytest.mark.parametrize("start", [0.01, 100.0])
def test_it_comes_to_rest_at_its_quantile(
    make: Callable[[float], Mechanism], quantile: float, start: float
) -> None:
    """From a hundred times too small or too large, under noise, on norms of which some are thrice others. All
    randomness has a seed."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(ROWS, DIM, generator=generator)
    rows *= torch.exp(torch.randn(ROWS, 1, generator=generator)) / rows.norm(dim=1, keepdim=True)
    chosen = [f"privacy.adaptive.start={start}", f"privacy.adaptive.quantile={quantile}"]
    config = compose([*ADAPTIVE, *chosen])
    clipping = clipping_of(config)
    assert isinstance(clipping, AdaptiveClip)
    assert clipping.bound is not None
    usual, clips = make(clipping.bound), []
    for server_round in range(200):
        mechanism = clipping.of_round(usual)
        counted = with_counts(rows, Broadcast(config, server_round, mechanism, {}))
        with Stream(derived_key(0, "test", server_round)) as stream:
            upload = mechanism.protect(counted, stream, server_round)
        total = torch.from_numpy(mechanism.total([upload.vector], server_round))
        left = clipping.read(
            Aggregate(total, 1, mechanism.noise_std(mechanism.variance_per_device)), ROWS
        )
        assert left.sum.shape == (DIM,)
        clips.append(clipping.clip)
    rest = torch.tensor(clips[100:]).log().mean().exp()
    fitting = float((rows.norm(dim=1) <= rest).float().mean())
    assert fitting == pytest.approx(quantile, abs=0.05)


def test_it_stays_within_a_thousandth_and_a_thousand_of_its_start() -> None:
    """Norms that vanish, or explode, do not carry it to where floating point ends."""
    for sign, end in ((1.0, 0.3e-3), (-1.0, 0.3e3)):
        clipping = clipping_of(compose([*ADAPTIVE, "privacy.adaptive.start=0.3"]))
        assert isinstance(clipping, AdaptiveClip)
        for _ in range(200):
            clipping.read(Aggregate(torch.tensor([0.0, sign * 1e9]), 1, 0.0), 1)
        assert clipping.clip == pytest.approx(end)


def test_counts_are_taken_off_the_parts_too() -> None:
    clipping = clipping_of(compose(ADAPTIVE))
    part = Aggregate(torch.tensor([1.0, 2.0, 0.0]), 1, 0.5, (3,))
    left = clipping.read(Aggregate(torch.tensor([2.0, 4.0, 0.0]), 2, 0.7, (3, 4), (part, part)), 2)
    assert left.sum.tolist() == [2.0, 4.0]
    assert [one.sum.tolist() for one in left.parts] == [[1.0, 2.0]] * 2
    assert clipping.metrics() == {"clip": 0.3, "clip_fraction": 0.5}


# ---------------------------------------------------------------------------- a draw that is a secret
HIDDEN = (
    "clients.total=40",
    "clients.per_round=10",
    "clients.sampling=poisson",
    "privacy.epsilon=8",
)


@pytest.mark.parametrize("secagg", ["none", "pairwise"])
def test_clip_and_lattice_of_a_round_do_not_tell_the_size_of_its_cohort(
    make_strategy: MakeStrategy, secagg: str
) -> None:
    strategy = make_strategy(*HIDDEN, f"secagg={secagg}", "privacy.clip=adaptive")
    assert strategy.noise.draw_is_secret
    strategy.clipping.load_state_dict({"clip": 0.1234})
    asked = [cohort for cohort in range(1, 25) if strategy.noise.accepts(cohort)]
    rounds = [strategy.clipping.of_round(strategy.mechanism(1, cohort)) for cohort in asked]
    assert len(rounds) > 10
    assert len({(one.bound, getattr(one, "scale", None)) for one in rounds}) == 1


def test_a_round_that_nobody_is_asked_for_moves_the_clip_like_any_other(
    make_strategy: MakeStrategy,
) -> None:
    """By noise alone: a clip that stood still would tell how the draw came out."""
    strategy = make_strategy(*HIDDEN, "privacy.clip=adaptive")
    before = strategy.model.vector.clone()
    coordinator_of(strategy).skip_round(1)
    told = coordinator_of(strategy).all_metrics()
    assert told["clip"] == 0.3
    assert 0.0 <= told["clip_fraction"] <= 1.0
    assert strategy.clipping.state_dict()["clip"] != 0.3
    assert not torch.equal(strategy.model.vector, before)


# ---------------------------------------------------------------------------- configuration
@pytest.mark.parametrize(
    "refused",
    [
        ("strategy=fedpcdp", "privacy=example", "data.public=100"),
        ("strategy=fed_sgm", "strategy.clip=before"),
        ("strategy=fed_sgm", "strategy.clip=both"),
        ("strategy=fedavg",),
    ],
)
def test_who_clips_elsewhere_refuses_in_one_sentence(refused: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"set .*privacy\.clip to a number"):
        compose([*refused, "data=synthetic", "secagg=none", "privacy.clip=adaptive"])


@pytest.mark.parametrize("wrong", ["quantile=1", "quantile=0", "rate=0", "weight=3", "start=0"])
def test_what_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=rf"privacy\.adaptive\.{wrong.split('=')[0]}"):
        compose([*ADAPTIVE, f"privacy.adaptive.{wrong}"])
