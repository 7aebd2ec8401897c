from __future__ import annotations

import json
import math

import pytest

from fedsketch.privacy.accounting import releases as data
from fedsketch.privacy.accounting.release_json import release_from_json, release_to_json
from fedsketch.privacy.accounting.releases import Adversary


def _release(sampling: data.SecretDraw, times: int = 1) -> data.Release:
    law, adjacency = data.Gaussian(1.0), data.Adjacency.ZERO_OUT
    return data.Release(law, sampling, adjacency, data.Unit.EXAMPLE, Adversary.SERVER, times)


@pytest.mark.parametrize(
    "text", ["model", "client", "client+3", "server", "server+20", "eavesdropper"]
)
def test_adversary_survives_text(text: str) -> None:
    assert str(Adversary.parse(text)) == text


def test_named_adversaries_are_the_parsed_ones() -> None:
    assert Adversary.parse("server+20") == Adversary.server(colluders=20)
    assert Adversary.parse("model") == Adversary.MODEL
    assert Adversary.server() == Adversary.SERVER
    assert Adversary.parse("client+1") == Adversary.client() == Adversary.client(colluders=1)


@pytest.mark.parametrize("text", ["model+3", "eavesdropper+1", "client+-1", "server+-1", "nobody"])
def test_impossible_adversaries_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"adversary|colluding"):
        Adversary.parse(text)


@pytest.mark.parametrize(
    "build",
    [
        lambda: data.Gaussian(-1.0),
        lambda: data.Gaussian(math.nan),
        lambda: data.Poisson(1.5),
        lambda: data.Poisson(math.nan),
        lambda: data.Poisson(0.1, missed=-1e-9),
        lambda: data.Poisson(0.1, missed=math.nan),
        lambda: data.WithoutReplacement(11, 10),
        lambda: data.Poisson(0.5, data.Unit.CLIENT, data.DrawnBy.DEVICE),
        lambda: data.FullPasses(0),
        lambda: _release(data.NoSampling(), times=0),
        lambda: _release(data.FullPasses(3), times=2),
        lambda: data.Skellam(1.0, 0.0, 1.0),
        lambda: data.Skellam(-1.0, 1.0, 1.0),
        lambda: data.CoordinateSampledGaussian(1.0, 2.0, 1.0, 1.0),
        lambda: data.MatrixGaussian(1.0, math.inf),
        lambda: data.SketchedGaussian(1.0, 0, 10, data.SketchKnowledge.PUBLIC),
    ],
)
def test_impossible_numbers_are_refused(build: object) -> None:
    with pytest.raises(ValueError, match=r"\."):
        build()  # type: ignore[operator]


@pytest.mark.parametrize(
    "mechanism",
    [
        data.Gaussian(1.25),
        data.Gaussian(0.0),
        data.Skellam(2.5e9, 4097.0, 40970.0),
        data.CoordinateSampledGaussian(0.1, 0.01, 1.0, 0.03),
        data.CoordinateSampledGaussian(0.1, 0.01, 1.0, 0.03, 1.5),
        data.MatrixGaussian(3.0, 1.7),
        data.SketchedGaussian(9.5, 254, 10, data.SketchKnowledge.SECRET),
    ],
)
@pytest.mark.parametrize(
    "sampling",
    [
        data.NoSampling(),
        data.Poisson(0.1, of=data.Unit.EXAMPLE),
        data.Poisson(0.1, data.Unit.EXAMPLE, data.DrawnBy.DEVICE),
        data.Poisson(0.1, missed=1e-9),
        data.WithoutReplacement(3, 9),
        data.FullPasses(60),
    ],
)
def test_release_survives_json(mechanism: data.Mechanism, sampling: data.SecretDraw) -> None:
    release = data.Release(
        mechanism, sampling, data.Adjacency.ZERO_OUT, data.Unit.EXAMPLE, Adversary.server(3)
    )
    back = release_from_json(json.loads(json.dumps(release_to_json(release))))
    assert back == release
    assert repr(back) == repr(release)  # enumerations, not the strings that equal them


def test_unknown_kind_in_json_is_refused() -> None:
    state = release_to_json(
        data.Release(
            data.Gaussian(1.0),
            data.NoSampling(),
            data.Adjacency.ZERO_OUT,
            data.Unit.CLIENT,
            Adversary.MODEL,
        )
    )
    state["mechanism"]["type"] = "Laplace"
    with pytest.raises(ValueError, match="Laplace"):
        release_from_json(state)


def test_repeated_release_survives_json() -> None:
    release = _release(data.Poisson(0.1, data.Unit.EXAMPLE, data.DrawnBy.DEVICE), times=125)
    assert release_from_json(json.loads(json.dumps(release_to_json(release)))) == release


def test_releases_are_written_as_before_where_nothing_new_is_stated() -> None:
    """A ledger that was begun by an earlier version holds these very keys."""
    state = release_to_json(_release(data.Poisson(0.1, of=data.Unit.EXAMPLE)))
    assert state == {
        "mechanism": {"type": "Gaussian", "noise_multiplier": 1.0},
        "sampling": {"type": "Poisson", "rate": 0.1, "of": "example"},
        "adjacency": "zero_out",
        "unit": "example",
        "adversary": "server",
    }


def test_who_knows_the_cohort_does_not_know_what_a_device_draws() -> None:
    own = _release(data.Poisson(0.1, data.Unit.EXAMPLE, data.DrawnBy.DEVICE), times=5)
    assert own.with_known_cohort() == own
    assert _release(data.Poisson(0.1)).with_known_cohort() == _release(data.NoSampling())
    in_passes = _release(data.FullPasses(4))
    assert in_passes.with_known_cohort() == in_passes  # rests on no secret
    assert in_passes.once_more() == _release(data.NoSampling())
