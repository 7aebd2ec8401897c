"""From what adversaries saw to one score per canary: the logarithm of how much likelier it is if the canary was there.

A number x holds `length` times the coin, and Gaussian noise whose variance the adversary has measured: it can play the code as often as it
likes. Everything here is used for a score and for nothing else, so an approximation costs power and never soundness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from fedsketch.audit.stage import Trial
from fedsketch.audit.statistics import Sample
from fedsketch.audit.views import Seen

Array = NDArray[np.float64]
_LARGEST = 1e6  # of a score: as good as certain
_LOUD = 1.2  # a canary this much longer than the median is one that a bound did not hold: an adversary takes it


def sample(trials: Sequence[Trial], scores: Array) -> Sample:
    """The scores (trials, canaries) of the two worlds. Where some canaries are louder than the others, only they count."""
    coins = np.array([trial.coins for trial in trials])
    some = next(iter(trials[0].seen))
    lengths = np.array([[seen.length for seen in trial.seen[some]] for trial in trials])
    typical = np.nanmax(np.nan_to_num(lengths), axis=(0, 1))
    loud = typical > _LOUD * np.median(typical)
    chosen = loud if loud.any() else np.full(len(loud), True)
    kept, coins = np.clip(scores[:, chosen], -_LARGEST, _LARGEST), coins[:, chosen]
    return Sample(kept[~coins], kept[coins])


def known_draw(trials: Sequence[Trial], name: str, rate: float = 1.0, times: int = 1) -> Array:
    """Where everybody knows who was in each cohort. `rate` and `times`: of a draw that the canary's device makes itself in its local steps.

    The noise is measured: its mean over all other trials, which is zero if it is fresh, and its covariance over rounds, which is diagonal if
    it is independent. Noise that is neither is taken away by the same formula, and the canary stands bare.
    """
    coins = np.array([trial.coins for trial in trials])[:, None, :]
    x, length = _stacked(trials, name, "x"), _stacked(trials, name, "length")
    inside = ~np.isnan(x)
    x, length = np.nan_to_num(x), np.nan_to_num(length)
    if rate < 1.0 or times > 1:
        return _drawn_by_device(trials, name, x, length, rate, times)
    noise = np.where(inside, x - coins * length, 0.0)
    count = np.maximum(inside.sum(axis=0) - 1, 1)
    x = np.where(inside, x - (noise.sum(axis=0) - noise) / count, 0.0)
    if not inside.all():
        variance = (noise**2).sum(axis=(0, 2)) / np.maximum(inside.sum(axis=(0, 2)), 1)
        weights = length / np.maximum(variance, 1e-300)[None, :, None]
        return np.asarray((weights * (x - length / 2)).sum(axis=1))
    flat = np.moveaxis(noise, 1, 0).reshape(noise.shape[1], -1)
    covariance = flat @ flat.T / flat.shape[1]
    covariance += np.eye(len(covariance)) * max(1e-9 * float(np.trace(covariance)), 1e-300)
    weights = np.einsum("rs,tsm->trm", np.linalg.inv(covariance), length)
    return np.asarray((weights * (x - length / 2)).sum(axis=1))


def _drawn_by_device(
    trials: Sequence[Trial], name: str, x: Array, length: Array, rate: float, times: int
) -> Array:
    """`times` local steps, in each of which the example was drawn with probability `rate`: every number of them brings its share."""
    variance = _variance(trials, name)[None, :, None]
    likelihoods = []
    for drawn in range(times + 1):
        part = length * drawn / times
        likelihoods.append(
            stats.binom.logpmf(drawn, times, rate) + part * (x - part / 2) / variance
        )
    return np.asarray(logsumexp(likelihoods, axis=0).sum(axis=1))


def secret_draw(
    trials: Sequence[Trial], name: str, *, population: int, prior: Array, opposed: bool
) -> Array:
    """Where nobody knows who was in a cohort: `prior` is the law of its size, from 0 to the population.

    Bayes: over the sizes that occurred, by their prior and by all that tells them apart (what adversaries were told, and the noise outside of
    all canaries' directions), and over whether the canary was drawn. With `opposed` each other member brings minus the contribution.
    """
    rounds = len(trials[0].seen[name])
    total = np.zeros((len(trials), len(trials[0].coins)))
    for current in range(rounds):
        seen = [trial.seen[name][current] for trial in trials]
        total += _one_round(seen, population, prior, opposed)
    return total


def _one_round(seen: Sequence[Seen], population: int, prior: Array, opposed: bool) -> Array:
    sizes = sorted({one.size for one in seen if one.freedom})
    if not sizes:
        return np.zeros((len(seen), len(seen[0].x)))
    energy = np.array([one.energy for one in seen])
    freedom = np.array([one.freedom for one in seen])
    size = np.array([one.size for one in seen])
    played = freedom > 0
    variances = np.array([energy[size == c].sum() / freedom[size == c].sum() for c in sizes])
    told = _told([one.told for one in seen], size, sizes)
    clues = -0.5 * (freedom[:, None] * np.log(variances) + energy[:, None] / variances)
    with np.errstate(divide="ignore"):
        weights = np.log(prior[sizes]) + np.log(told) + clues
    length = np.nanmedian([one.length for one in seen if one.freedom], axis=0)
    # A canary that was not drawn is seen all the same: what is left in its direction is noise, and others who push against it.
    x = np.array([one.x for one in seen])
    share = np.array(sizes) / population

    def likelihood(coin: int) -> Array:
        push = length[None, :, None] if opposed else 0.0
        heads, v = np.array(sizes), variances

        def normal(mean: Array) -> Array:
            return -0.5 * np.square(x[:, :, None] - mean) / v - 0.5 * np.log(v)

        with np.errstate(divide="ignore"):
            out = np.log1p(-share) + normal(-push * heads)
            drawn = np.log(share) + normal(-push * (heads - 1) + coin * length[None, :, None])
        return np.asarray(logsumexp(weights[:, None, :] + np.logaddexp(out, drawn), axis=2))

    scores = likelihood(1) - likelihood(0)
    return np.where(played[:, None] & np.isfinite(scores), scores, 0.0)


def _told(told: Sequence[Hashable], size: NDArray[np.int64], sizes: Sequence[int]) -> Array:
    """How likely each trial's words are for every size: by their share among the other trials of that size. Words that nobody else heard
    say nothing."""
    counts = {
        c: Counter(word for word, one in zip(told, size, strict=True) if one == c) for c in sizes
    }
    result = np.ones((len(told), len(sizes)))
    for i, word in enumerate(told):
        heard = np.array([counts[c][word] - (c == size[i]) for c in sizes], dtype=float)
        others = np.array([counts[c].total() - (c == size[i]) for c in sizes], dtype=float)
        if heard.any():
            result[i] = heard / np.maximum(others, 1)
    return result


def _stacked(trials: Sequence[Trial], name: str, what: str) -> Array:
    """(trials, rounds, canaries)."""
    return np.array([[getattr(seen, what) for seen in trial.seen[name]] for trial in trials])


def _variance(trials: Sequence[Trial], name: str) -> Array:
    """Of the noise, by round."""
    energy = np.array([[seen.energy for seen in trial.seen[name]] for trial in trials])
    freedom = np.array([[seen.freedom for seen in trial.seen[name]] for trial in trials])
    return np.asarray(energy.sum(axis=0) / np.maximum(freedom.sum(axis=0), 1))
