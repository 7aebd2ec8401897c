"""What one release costs: its Renyi curve and, if there is one, its dominating pair.

This file decides which theorem may be used for which law, sampling, adjacency and adversary. All other
combinations are refused with an `UnsupportedReleaseError`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedsketch.errors import UnsupportedReleaseError
from fedsketch.privacy.accounting import (
    coordinate_sampling,
    poisson,
    renyi,
    skellam,
    skellam_as_gaussian,
    sketched_gaussian,
    without_replacement,
)
from fedsketch.privacy.accounting.dominating_pairs import (
    GaussianZeroOutPair,
    Pair,
    PlainPair,
    PoissonPair,
    ReplaceOnePair,
    RevealedPair,
    VariancePair,
    ZeroOutPair,
)
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    CoordinateSampledGaussian,
    FullPasses,
    Gaussian,
    MatrixGaussian,
    NoiseLaw,
    Poisson,
    Release,
    SecretDraw,
    Skellam,
    SketchedGaussian,
    Unit,
    WithoutReplacement,
    is_drawn_by_device,
)
from fedsketch.privacy.accounting.renyi import LARGEST_SAMPLED_ORDER, ORDERS, Curve

_FACTOR = {Adjacency.ADD_OR_REMOVE: 1.0, Adjacency.ZERO_OUT: 1.0, Adjacency.REPLACE_ONE: 2.0}
"""How far one unit can move the sum, in units of its bound C."""


@dataclass(frozen=True)
class Cost:
    """`curve` is the Renyi curve. `pair` is the pair of distributions that dominates the release, or None."""

    curve: Curve
    pair: Pair | None


def _gaussian_equivalent(law: NoiseLaw) -> float | None:
    """Return the noise multiplier of the plain Gaussian mechanism that equals or dominates this one; None if there is
    none."""
    if isinstance(law, Gaussian):
        return law.noise_multiplier
    if isinstance(law, Skellam):
        return skellam_as_gaussian.noise_multiplier(law)
    if isinstance(law, MatrixGaussian):
        # Denisov et al. 2022, Theorem 2.1: A X + B Z = B (C X + Z), which is one Gaussian release of C X. A unit in
        # one row moves C X by at most the largest column norm times its clip, also if rows are chosen adaptively.
        return law.noise_multiplier / law.column_norm
    if isinstance(law, SketchedGaussian) and not law.needs_secret_sketch:
        return law.noise_multiplier
    return None


def _refuse_unsupported(release: Release) -> None:
    _refuse_unsupported_sampling(release)
    server = release.adversary.name == "server"
    drawn_by_device = is_drawn_by_device(release.sampling)
    if (
        server
        and isinstance(release.sampling, Poisson | WithoutReplacement)
        and not drawn_by_device
    ):
        raise UnsupportedReleaseError(
            "the server picks the cohort, so sampling hides nothing from it: state NoSampling for the server adversary."
        )
    if server and isinstance(release.sampling, FullPasses) and release.unit is Unit.CLIENT:
        raise UnsupportedReleaseError(
            "the server picks the cohort and may pick a client twice in a pass: state NoSampling for the server "
            "adversary."
        )
    if server and isinstance(release.law, CoordinateSampledGaussian):
        raise UnsupportedReleaseError(
            "in L2-CSGM the server sees every client's vector and adds the noise itself: it is trusted, and only the "
            "model adversary has a guarantee."
        )
    secret = release.law.needs_secret_sketch
    if secret and release.adversary != Adversary.EAVESDROPPER:
        raise UnsupportedReleaseError(
            "the R-secret bound holds only against an eavesdropper who sees neither R nor a model made with it, "
            f"not against the {release.adversary}: state r_public."
        )
    if release.adversary == Adversary.EAVESDROPPER and not secret:
        raise UnsupportedReleaseError(
            "only r_secret sketches have the adversary eavesdropper: state the server or the model."
        )
    without_its_noise = isinstance(release.law, Skellam) and release.unit is Unit.CLIENT
    if without_its_noise and release.adjacency is Adjacency.ADD_OR_REMOVE:
        # The variances n mu and (n - 1) mu can be distinguished: in k dimensions the divergence is about k / (4 n^2).
        raise UnsupportedReleaseError(
            "devices add the Skellam noise, so removing a client also removes its noise: state zero-out adjacency."
        )
    if isinstance(release.sampling, FullPasses) and release.adjacency is Adjacency.ADD_OR_REMOVE:
        raise UnsupportedReleaseError(
            "removing a unit moves other units into other rounds of a pass: state zero-out adjacency for full passes."
        )
    if release.law.is_correlated and not isinstance(release.sampling, FullPasses):
        raise UnsupportedReleaseError(
            "a column norm bounds one participation per pass: a matrix-factorised release needs "
            "FullPasses(rounds of the matrix)."
        )


def _refuse_unsupported_sampling(release: Release) -> None:
    """Refuse what sampling does not hide. Sampling examples does not hide a client. Sampling whole clients does hide
    an example, but only as much as `_revealed` says: all examples of a client are drawn together, and the
    amplification theorems require that the unit is drawn alone."""
    if not isinstance(release.sampling, Poisson | WithoutReplacement):
        return
    if release.sampling.of is Unit.EXAMPLE and release.unit is Unit.CLIENT:
        raise UnsupportedReleaseError(
            "examples are drawn, which hides no client: state NoSampling where the unit is the client."
        )
    if isinstance(release.sampling, Poisson) and release.adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedReleaseError(
            "Poisson sampling lets the size of the data vary, but replace-one adjacency keeps it fixed: "
            "state add/remove or zero-out adjacency."
        )
    if _missed(release.sampling) and release.adjacency is not Adjacency.ZERO_OUT:
        raise UnsupportedReleaseError(
            "removing a unit may make a cohort too small to be asked: state zero-out adjacency if `missed` is positive."
        )
    if release.law.needs_secret_sketch:
        raise UnsupportedReleaseError(
            "no theorem covers r_secret sketches of a sampled cohort: state NoSampling, which is valid and costs more."
        )


def cost(release: Release) -> Cost:
    """Return the cost of a release that is made once. For FullPasses it is the cost of a whole pass."""
    _refuse_unsupported(release)
    return _cost(release.law, release.sampling, release.adjacency, release.unit)


@lru_cache(maxsize=1024)
def _cost(law: NoiseLaw, sampling: SecretDraw, adjacency: Adjacency, unit: Unit) -> Cost:
    if isinstance(sampling, Poisson | WithoutReplacement):
        result = _sampled_cost(law, sampling, adjacency, unit)
    else:
        result = _unsampled_cost(law, adjacency)
    result.curve.setflags(write=False)
    return result


def _sampled_cost(
    law: NoiseLaw, sampling: Poisson | WithoutReplacement, adjacency: Adjacency, unit: Unit
) -> Cost:
    multiplier = _gaussian_equivalent(law)
    remembered = isinstance(sampling, WithoutReplacement) and sampling.with_memory
    alone = sampling.of is unit and not remembered
    if alone and isinstance(law, Skellam):
        return _skellam_cost(law, multiplier, sampling, adjacency)
    if alone and multiplier is not None:
        price = _gaussian_cost(multiplier, sampling, adjacency)
        if isinstance(price.pair, ZeroOutPair):
            return replace(price, pair=GaussianZeroOutPair(price.pair.noise, price.pair.rate))
        return price
    shifts_others = isinstance(sampling, WithoutReplacement) and sampling.of is unit
    if shifts_others and adjacency is Adjacency.ADD_OR_REMOVE:
        raise UnsupportedReleaseError(
            f"removing a unit changes who else is drawn: state zero-out adjacency for {type(law).__name__}."
        )
    unsampled, rate = _unsampled_cost(law, adjacency), _rate(sampling)
    if sampling.of is unit and isinstance(law, CoordinateSampledGaussian):
        return Cost(_coordinate_curve(law, sampling, unsampled.curve), None)
    pair = None
    if unsampled.pair is not None:
        pair = _pair(unsampled.pair.noise, rate, RevealedPair(unsampled.pair.noise, rate))
    return Cost(_revealed(unsampled.curve, rate), pair)


def _coordinate_curve(
    law: CoordinateSampledGaussian, sampling: Poisson | WithoutReplacement, unsampled: Curve
) -> Curve:
    """Return the curve if clients are sampled as well. For fixed-size samples no tighter bound is known here than the
    one for a sample that the adversary sees."""
    shown = _revealed(unsampled, _rate(sampling))
    if isinstance(sampling, WithoutReplacement):
        return shown
    parameters = (law.sigma, law.rate, law.l2, law.linf)
    drawn = coordinate_sampling.drawn_curve(sampling.rate, *parameters)
    return np.minimum(_mixed(drawn, unsampled, sampling.missed), shown)


def _mixed(usual: Curve, rare: Curve, probability: float) -> Curve:
    """Return the curve of a mechanism that is the rare one with this probability, independently of the data, and
    the usual one otherwise.

    exp((alpha - 1) D_alpha) is, up to constants, an f-divergence (Hellinger's), and therefore jointly convex.
    """
    if probability in (0.0, 1.0):
        return rare.copy() if probability else usual
    rest = np.log1p(-probability) + (ORDERS - 1.0) * usual
    return np.logaddexp(rest, np.log(probability) + (ORDERS - 1.0) * rare) / (ORDERS - 1.0)


def _revealed(unsampled: Curve, rate: float) -> Curve:
    """Return the curve for any sampling that draws the unit with probability `rate`, whoever else is drawn with it.
    Given the sample, the divergence is that of the unsampled mechanism if the unit was drawn, and zero otherwise."""
    return _mixed(np.zeros(ORDERS.shape), unsampled, rate)


def _pair(noise: float, rate: float, sampled: Pair) -> Pair:
    """Return the pair at any rate. At rate 0 nothing is released, and at rate 1 there is no sampling."""
    return sampled if 0.0 < rate < 1.0 else PlainPair(noise if rate else math.inf)


def _missed(sampling: SecretDraw) -> float:
    return sampling.missed if isinstance(sampling, Poisson) else 0.0


def _rate(sampling: Poisson | WithoutReplacement) -> float:
    return sampling.rate if isinstance(sampling, Poisson) else sampling.size / sampling.population


def _unsampled_cost(law: NoiseLaw, adjacency: Adjacency) -> Cost:
    multiplier = _gaussian_equivalent(law)
    own = None
    if isinstance(law, Skellam):
        own = Cost(_skellam_at(law, _FACTOR[adjacency], ORDERS), None)
    if multiplier is not None:
        multiplier /= _FACTOR[adjacency]
        return _smaller(Cost(renyi.gaussian(multiplier), PlainPair(multiplier)), own)
    if own is not None:
        return own
    if adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedReleaseError(
            f"{type(law).__name__} is analysed for add/remove and zero-out adjacency only: state one of them."
        )
    if isinstance(law, CoordinateSampledGaussian):
        # Chen et al. 2024, Theorem 5.1: both bounds times the column norm (`privacy.accounting.factorisation`).
        norm = law.column_norm or 1.0
        curve = coordinate_sampling.curve(law.sigma, law.rate, norm * law.l2, norm * law.linf)
        return Cost(curve, None)
    if isinstance(law, SketchedGaussian):
        parameters = (law.noise_multiplier, law.rows, law.clients)
        curve = sketched_gaussian.secret_curve(*parameters)
        if law.noise_multiplier == 0.0:
            return Cost(curve, None)
        return Cost(curve, VariancePair(0.0, sketched_gaussian.worst_ratio(*parameters), law.rows))
    raise UnsupportedReleaseError(f"{type(law).__name__} is not a law known here.")


def _smaller(gaussian: Cost, own: Cost | None) -> Cost:
    """Return the Gaussian's cost, with the smaller of two valid Renyi curves. Skellam's own curve is smaller if the
    variance is only a few units."""
    return (
        gaussian if own is None else replace(gaussian, curve=np.minimum(gaussian.curve, own.curve))
    )


def _gaussian_cost(
    multiplier: float, sampling: Poisson | WithoutReplacement, adjacency: Adjacency
) -> Cost:
    rate, halved = _rate(sampling), multiplier / 2.0
    pair: Pair
    if isinstance(sampling, Poisson):
        curve = poisson.gaussian(rate, multiplier)
        curve = _mixed(curve, renyi.gaussian(multiplier), sampling.missed)
        pair = PoissonPair(multiplier, rate, sampling.missed)
        return Cost(curve, _pair(multiplier, rate, pair))
    if adjacency is Adjacency.ADD_OR_REMOVE:
        curve, pair = poisson.gaussian(rate, halved), PoissonPair(halved, rate)
        return Cost(curve, _pair(halved, rate, pair))
    if adjacency is Adjacency.ZERO_OUT:
        curve, pair = without_replacement.zero_out(rate, multiplier), ZeroOutPair(multiplier, rate)
    else:
        curve, pair = without_replacement.gaussian(rate, halved), ReplaceOnePair(halved, rate)
    curve = np.minimum(curve, _revealed(renyi.gaussian(pair.noise), rate))
    return Cost(curve, _pair(pair.noise, rate, pair))


def _skellam_at(law: Skellam, factor: float, orders: Curve) -> Curve:
    """Return the Skellam curve with both sensitivities multiplied by `factor`."""
    l2, l1 = factor * law.l2_sensitivity, factor * law.l1_sensitivity
    return skellam.curve(law.variance, l2, l1, orders)


def _skellam_cost(
    law: Skellam,
    multiplier: float | None,
    sampling: Poisson | WithoutReplacement,
    adjacency: Adjacency,
) -> Cost:
    """Return the cost of a sampled Skellam release. For fixed-size samples three distributions are compared. There,
    domination by a Gaussian is proved for pairs but not for Renyi curves, so the curve is Skellam's own."""
    own = Cost(_skellam_curve(law, sampling, adjacency), None)
    if multiplier is None:
        return own
    price = _gaussian_cost(multiplier, sampling, adjacency)
    if isinstance(sampling, Poisson) or adjacency is Adjacency.ADD_OR_REMOVE:
        return _smaller(price, own)
    return replace(own, pair=price.pair)


def _skellam_curve(
    law: Skellam, sampling: Poisson | WithoutReplacement, adjacency: Adjacency
) -> Curve:
    rate, every = _rate(sampling), np.arange(LARGEST_SAMPLED_ORDER + 1.0)
    # These are the same cases as for the Gaussian: see without_replacement.py.
    if isinstance(sampling, Poisson) or adjacency is Adjacency.ADD_OR_REMOVE:
        factor = 1.0 if isinstance(sampling, Poisson) else 2.0
        unsampled = _skellam_at(law, factor, ORDERS)
        curve = poisson.symmetric_integer_curve(rate, unsampled, _skellam_at(law, factor, every))
        return _mixed(curve, unsampled, _missed(sampling))
    unsampled = _skellam_at(law, _FACTOR[adjacency], ORDERS)
    curve = without_replacement.general(rate, unsampled, _skellam_at(law, 2.0, every))
    return np.minimum(curve, _revealed(unsampled, rate))
