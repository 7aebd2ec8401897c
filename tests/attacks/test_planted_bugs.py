"""Bugs that break a guarantee and nothing else: each is planted into the real code, and the checks of
`tests.attacks.symptoms` must find it.

The same checks find nothing in the healthy code, for the same configurations.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsketch.attacks.audit import audit
from fedsketch.client import workspace
from fedsketch.conf import Config, compose
from fedsketch.conf.plugins import built_in
from fedsketch.privacy.mechanisms import clipping, encoding, skellam_ring
from fedsketch.privacy.mechanisms import rows as rows_module
from fedsketch.privacy.mechanisms.gaussian import GaussianNoise
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.noise import rings
from fedsketch.strategies.noise.device import DeviceNoise
from fedsketch.strategies.noise.sizes import CohortSizes
from fedsketch.strategies.rounds.sampling import CohortSampler
from tests.attacks import symptoms
from tests.attacks.symptoms import CHECKS
from tests.small import small

# Before anything is planted: a function that a strategy imports while it is broken would stay broken.
for _name in built_in("strategy"):
    import_module(f"fedsketch.strategies.{_name}")

DATA = "data.shape=[1,8,8] data.classes=10"
NOISE = "privacy.epsilon=null privacy.noise_multiplier=3"
PLAIN = f"secagg=none privacy.against=model {NOISE}"
EXAMPLES = f"privacy=example {PLAIN}"
MASKED = f"secagg=pairwise clients.tolerated_dropouts=0.25 secagg.colluders=0.2 {NOISE}"
MASKED_EXAMPLES = f"privacy=example secagg=pairwise {NOISE}"
ONE_STEP = "strategy.local.steps=1 strategy.local.batch=0"
SKETCHED = f"strategy=fed_sgm strategy.clip=before {ONE_STEP} {PLAIN}"
DRAWN = f"clients.total=30 clients.per_round=9 privacy.against=model {NOISE}"
FIXED = f"secagg=pairwise clients.sampling=fixed {DRAWN}"
POISSON = f"secagg=pairwise secagg.bits=16 clients.sampling=poisson {DRAWN}"
DROPPING = f"secagg=none clients.sampling=poisson clients.tolerated_dropouts=0.3 {DRAWN}"

Plant = Callable[[pytest.MonkeyPatch], None]


class Bug(NamedTuple):
    plant: Plant
    found_by: Callable[[Config], bool]
    configuration: str


# ---------------------------------------------------------------------- the bugs
def integer_noise_halved(patch: pytest.MonkeyPatch) -> None:
    healthy = skellam_ring.sample_skellam
    patch.setattr(
        skellam_ring, "sample_skellam", lambda mu, size, stream: healthy(mu // 4, size, stream)
    )


def real_noise_halved(patch: pytest.MonkeyPatch) -> None:
    healthy = Stream.gaussian
    patch.setattr(Stream, "gaussian", lambda stream, n: 0.5 * healthy(stream, n))


def noise_reused_in_the_next_round(patch: pytest.MonkeyPatch) -> None:
    key = cache(lambda client: secrets.token_bytes(16))
    patch.setattr(workspace, "noise_stream", lambda client, round: Stream(key(client)))


def one_noise_for_all_devices(patch: pytest.MonkeyPatch) -> None:
    key = cache(lambda round: secrets.token_bytes(16))
    patch.setattr(workspace, "noise_stream", lambda client, round: Stream(key(round)))


def seeded_noise_in_a_secret_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        workspace,
        "noise_stream",
        lambda client, round: Stream(derived_key(0, "noise", client, round)),
    )


def clip_before_the_sketch_only(patch: pytest.MonkeyPatch) -> None:
    """Fed-SGM's half has the healthy clip and uses it before it sketches; the mechanism's last clip is gone."""
    patch.setattr(clipping, "clip_rows", lambda rows, clip: rows)


def last_row_unclipped(patch: pytest.MonkeyPatch) -> None:
    healthy = clipping.clip_rows
    patch.setattr(
        clipping,
        "clip_rows",
        lambda rows, clip: torch.cat([healthy(rows[:-1], clip), rows[-1:]]),
    )


def last_integer_row_unclipped(patch: pytest.MonkeyPatch) -> None:
    def most(rows: NDArray[Any], clip: float) -> NDArray[Any]:
        return np.concatenate([encoding.clip_rows(rows[:-1], clip), rows[-1:]])

    def unbounded(values: NDArray[Any], bound: int, stream: Stream) -> NDArray[Any]:
        return encoding.round_conditionally(values, 2**60, stream)

    def weights_of_most(norms: NDArray[Any], clip: float) -> NDArray[Any]:
        return np.append(healthy(norms[:-1], clip), 1.0)

    healthy = rows_module.clip_weights
    patch.setattr(skellam_ring, "clip_rows", most)
    patch.setattr(skellam_ring, "round_conditionally", unbounded)
    patch.setattr(rows_module, "clip_weights", weights_of_most)  # where sums are rounded


def rows_clipped_together(patch: pytest.MonkeyPatch) -> None:
    healthy = clipping.clip_rows
    patch.setattr(
        clipping,
        "clip_rows",
        lambda rows, clip: healthy(rows.reshape(1, -1), clip * len(rows)).reshape(rows.shape),
    )


def rounding_without_the_bound(patch: pytest.MonkeyPatch) -> None:
    def unconditionally(values: NDArray[Any], bound: int, stream: Stream) -> NDArray[Any]:
        return encoding.round_conditionally(values, 2**60, stream)

    patch.setattr(skellam_ring, "round_conditionally", unconditionally)


def colluders_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CohortSizes, "colluders", lambda sizes, cohort: 0)


def dropouts_forgotten(patch: pytest.MonkeyPatch) -> None:
    healthy = Strategy.releases
    patch.setattr(
        Strategy,
        "releases",
        lambda self, server_round, cohort, clients: healthy(self, server_round, cohort, cohort),
    )


def own_noise_of_colluding_clients_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CohortSizes, "colluding_clients", lambda sizes, cohort: 0)


def colluding_clients_under_masks_do_not_know_the_cohort(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        DeviceNoise,
        "draw_without",
        lambda self, colluding_clients, cohort, clients: self.secret_draw(cohort, clients),
    )


def noise_of_the_server_left_out(patch: pytest.MonkeyPatch) -> None:
    def nothing(self: GaussianNoise, dim: int, variance: float, stream: Stream) -> NDArray[Any]:
        return np.zeros(dim)

    patch.setattr(GaussianNoise, "noise_alone", nothing)


def noise_of_the_server_left_unsaid(patch: pytest.MonkeyPatch) -> None:
    """There is no nominal noise: every sum has what its devices bring, and says so."""
    patch.setattr(
        DeviceNoise,
        "variance",
        lambda self, cohort, clients: clients * self.mechanism(cohort).variance_per_device,
    )


def size_of_the_cohort_in_the_scale(patch: pytest.MonkeyPatch) -> None:
    """As it was: the largest scale that fits the sum of just this cohort."""
    healthy = DeviceNoise.mechanism

    def mechanism(self: DeviceNoise, cohort: int, dim: int | None = None) -> Any:
        ring, _ = rings.ring_of(self, cohort)
        return replace(healthy(self, cohort, dim), scale=ring.scale)  # type: ignore[arg-type]

    patch.setattr(DeviceNoise, "mechanism", mechanism)


def size_of_the_cohort_in_the_mean(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Strategy, "clients", lambda self, aggregate: aggregate.clients)


def one_cohort_for_all_rounds(patch: pytest.MonkeyPatch) -> None:
    healthy = CohortSampler.draw
    patch.setattr(CohortSampler, "draw", lambda self, round, attempt=0: healthy(self, 1))


def favourites_in_every_cohort(patch: pytest.MonkeyPatch) -> None:
    def draw(self: CohortSampler, round: int, attempt: int = 0) -> list[int]:
        return list(range(self.settings.per_round))

    patch.setattr(CohortSampler, "draw", draw)


NOISE_LAW = symptoms.noise_is_what_it_is_said_to_be
BOUNDS = symptoms.contributions_are_bounded
EPSILON = symptoms.stated_epsilons_are_true
DRAWS = symptoms.cohorts_are_drawn_as_booked
SIZES = symptoms.sizes_stay_secret
BUGS = [
    Bug(integer_noise_halved, NOISE_LAW, MASKED),
    Bug(real_noise_halved, NOISE_LAW, PLAIN),
    Bug(noise_reused_in_the_next_round, NOISE_LAW, PLAIN),
    Bug(one_noise_for_all_devices, NOISE_LAW, PLAIN),
    Bug(seeded_noise_in_a_secret_run, NOISE_LAW, MASKED),
    Bug(clip_before_the_sketch_only, BOUNDS, SKETCHED),
    Bug(last_row_unclipped, BOUNDS, EXAMPLES),
    Bug(last_integer_row_unclipped, BOUNDS, MASKED_EXAMPLES),
    Bug(rows_clipped_together, BOUNDS, EXAMPLES),
    Bug(rounding_without_the_bound, BOUNDS, MASKED),
    Bug(colluders_forgotten, EPSILON, MASKED),
    Bug(dropouts_forgotten, EPSILON, MASKED),
    Bug(noise_of_the_server_left_out, EPSILON, DROPPING),
    Bug(own_noise_of_colluding_clients_forgotten, EPSILON, PLAIN),
    Bug(colluding_clients_under_masks_do_not_know_the_cohort, EPSILON, FIXED),
    Bug(one_cohort_for_all_rounds, DRAWS, POISSON),
    Bug(favourites_in_every_cohort, DRAWS, FIXED),
    Bug(noise_of_the_server_left_unsaid, SIZES, POISSON),
    Bug(size_of_the_cohort_in_the_scale, SIZES, POISSON),
    Bug(size_of_the_cohort_in_the_mean, SIZES, POISSON),
]
# The others make claims too low by less than an audit of a minute can tell, or fool it as they fool the run.
SEEN_BY_AN_AUDIT = [
    integer_noise_halved,
    real_noise_halved,
    last_row_unclipped,
    rows_clipped_together,
]


def _config(*overrides: str) -> Config:
    return compose(small(DATA, "rounds=6", *overrides, clients=12))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.plant.__name__)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    # With a seed of its own, so that nothing of it is in a cache when others play the same configuration.
    seed = 1 + BUGS.index(bug)
    config = _config(bug.configuration, f"seed={seed}")
    bug.plant(monkeypatch)
    assert not bug.found_by(config)


@pytest.mark.parametrize(
    ("check", "configuration"),
    sorted({(bug.found_by, bug.configuration) for bug in BUGS}, key=str),
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_same_check_passes_in_healthy_code(
    check: Callable[[Config], bool], configuration: str
) -> None:
    assert check(_config(configuration))


@pytest.mark.parametrize(
    "strategy",
    [
        "dome",
        "dome strategy.broadcast=full",
        f"fed_sgm {ONE_STEP}",
        "fedceo strategy.every=1 strategy.local.epochs=1",
    ],
)
def test_no_strategy_tells_the_size_of_a_secret_cohort(strategy: str) -> None:
    assert SIZES(_config(POISSON, f"strategy={strategy}"))


@pytest.mark.slow
@pytest.mark.parametrize("configuration", sorted({bug.configuration for bug in BUGS}))
def test_healthy_code_has_no_symptoms(configuration: str) -> None:
    assert symptoms.symptoms(_config(configuration)) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [bug for bug in BUGS if bug.plant in SEEN_BY_AN_AUDIT],
    ids=lambda bug: bug.plant.__name__,
)
def test_an_audit_finds_it_too(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 scores are few, and enough for bugs that double what is learned."""
    config = _config(bug.configuration, f"seed={1 + BUGS.index(bug)}")
    bug.plant(monkeypatch)
    assert audit(config, trials=4000).exceeded()


def test_every_check_finds_a_bug() -> None:
    assert {bug.found_by for bug in BUGS} == set(CHECKS)
