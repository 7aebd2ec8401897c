"""Turns what adversaries saw into one score per canary: the log of how much likelier it is if the canary was there.

A number x is `length` times the coin plus Gaussian noise whose variance the adversary has measured, because it can run
the code as often as it likes. Everything here is used only for scores, so an approximation costs power, never
soundness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from fedsketch.attacks.scene import Trial
from fedsketch.attacks.statistics import Sample
from fedsketch.attacks.views import Seen

Array = NDArray[np.float64]
_LARGEST = 1e6  # a score that is as good as certain
_UNLIKELY = 8.0  # standard deviations
_LOUD = 1.2  # a canary this much longer than the median was not bounded correctly, so an adversary uses it


def sample(trials: Sequence[Trial], scores: Array) -> Sample:
    """Return the scores (trials, canaries) with and without the canary. If some canaries are longer than the others,
    only they count."""
    coins = np.array([trial.coins for trial in trials])
    some = next(iter(trials[0].seen))
    lengths = np.array([[seen.length for seen in trial.seen[some]] for trial in trials])
    typical = np.nanmax(np.nan_to_num(lengths), axis=(0, 1))
    loud = typical > _LOUD * np.median(typical)
    chosen = loud if loud.any() else np.full(len(loud), True)
    kept, coins = np.clip(scores[:, chosen], -_LARGEST, _LARGEST), coins[:, chosen]
    return Sample(kept[~coins], kept[coins])


def known_draw(trials: Sequence[Trial], name: str, rate: float = 1.0, times: int = 1) -> Array:
    """Return scores if everybody knows who was in each cohort. `rate` and `times` describe a draw in the local steps
    of the canary's own device.

    The noise is measured: its mean over all other trials, which is zero if noise is fresh, and its covariance over
    rounds, which is diagonal if noise is independent. If it is not, the same formula removes the noise, and the canary
    is exposed.
    """
    coins = np.array([trial.coins for trial in trials])[:, None, :]
    x, length = _stacked(trials, name, "x"), _stacked(trials, name, "length")
    inside = ~np.isnan(x)
    x, length = np.nan_to_num(x), np.nan_to_num(length)
    if rate < 1.0 or times > 1:
        return _drawn_by_device(trials, name, x, length, rate, times)
    noise = np.where(inside, x - coins * length, 0.0)
    x = np.where(inside, x - _repeated(noise, inside), 0.0)
    if not inside.all():
        variance = (noise**2).sum(axis=(0, 2)) / np.maximum(inside.sum(axis=(0, 2)), 1)
        weights = length / np.maximum(variance, 1e-300)[None, :, None]
        return np.asarray((weights * (x - length / 2)).sum(axis=1))
    flat = np.moveaxis(noise, 1, 0).reshape(noise.shape[1], -1)
    covariance = flat @ flat.T / flat.shape[1]
    covariance += np.eye(len(covariance)) * max(1e-9 * float(np.trace(covariance)), 1e-300)
    weights = np.einsum("rs,tsm->trm", np.linalg.inv(covariance), length)
    return np.asarray((weights * (x - length / 2)).sum(axis=1))


def _repeated(noise: Array, inside: NDArray[np.bool_]) -> Array:
    """Return the mean of the noise over all other trials if it is significant; otherwise zero, because subtracting it
    would add noise."""
    count = inside.sum(axis=0)
    mean = noise.sum(axis=0) / np.maximum(count, 1)
    variance = float((noise**2).sum() / max(int(inside.sum()), 1))
    chance = float((count * mean**2).sum()) / max(variance, 1e-300)
    freedom = int((count > 0).sum())
    if chance < freedom + _UNLIKELY * np.sqrt(2 * freedom):
        return np.zeros_like(noise)
    return np.asarray((noise.sum(axis=0) - noise) / np.maximum(count - 1, 1))


def _drawn_by_device(
    trials: Sequence[Trial], name: str, x: Array, length: Array, rate: float, times: int
) -> Array:
    """Return scores for `times` local steps, in each of which the example was drawn with probability `rate` and
    contributed its share."""
    variance = _variance(trials, name)[None, :, None]
    likelihoods = []
    for drawn in range(times + 1):
        part = length * drawn / times
        likelihoods.append(
            stats.binom.logpmf(drawn, times, rate) + part * (x - part / 2) / variance
        )
    return np.asarray(logsumexp(likelihoods, axis=0).sum(axis=1))


def poisson_draw(trials: Sequence[Trial], name: str, rate: float) -> Array:
    """Return scores if each client was drawn on its own with this probability, and the draw is secret.

    The adversary of the theorem knows of all other clients whether they were drawn: T of them. So the cohort's size is
    T, or T + 1 if the canary was drawn. If sizes cannot be distinguished, the posterior is the rate. But if what
    adversaries are told, or the noise outside of all canaries' directions, depends on the size, then the draw is
    revealed.
    """
    total = np.zeros((len(trials), len(trials[0].coins)))
    for current in range(len(trials[0].seen[name])):
        seen = [trial.seen[name][current] for trial in trials]
        clues = _Clues(seen)
        if clues.sizes:
            total += _poisson_round(seen, clues, rate)
    return total


def _poisson_round(seen: Sequence[Seen], clues: _Clues, rate: float) -> Array:
    drawn = np.array([one.drawn for one in seen])
    others = clues.size[:, None] - drawn
    place = np.full(int(clues.size.max()) + 2, -1)
    place[clues.sizes] = np.arange(len(clues.sizes))
    without, beside = place[others], place[others + 1]
    # Otherwise no trial has shown what such a size looks like.
    known = (without >= 0) & (beside >= 0)
    rows = np.arange(len(seen))[:, None]

    def heard(size: NDArray[np.int64], mean: Array) -> Array:
        variance = np.where(known, clues.variances[size], clues.variances.mean()) + 1e-300
        clue = np.where(known, clues.weights[rows, size], 0.0)
        return clue - 0.5 * np.square(clues.x - mean) / variance - 0.5 * np.log(variance)

    contribution = np.where(clues.asked[others + 1], clues.length[None, :], 0.0)
    out = np.log1p(-rate) + heard(without, np.zeros(1))
    with_coin = np.logaddexp(out, np.log(rate) + heard(beside, contribution))
    without_coin = np.logaddexp(out, np.log(rate) + heard(beside, np.zeros(1)))
    return clues.where_simulated(with_coin - without_coin)


def fixed_draw(
    trials: Sequence[Trial], name: str, *, size: int, clients: int, opposed: bool
) -> Array:
    """Return scores if a set of known size was drawn from this many clients, and the draw is secret. With `opposed`
    each other member contributes the opposite, so that whoever is in the canary's place counts twice."""
    total = np.zeros((len(trials), len(trials[0].coins)))
    for current in range(len(trials[0].seen[name])):
        clues = _Clues([trial.seen[name][current] for trial in trials])
        if not clues.sizes:
            continue
        length, variance = clues.length, float(clues.variances.mean())
        push = length if opposed else np.zeros(1)

        def density(mean: Array, x: Array = clues.x, v: float = variance) -> Array:
            return -0.5 * np.square(x - mean) / v

        out = np.log1p(-size / clients) + density(-push * size)
        inside = np.log(size / clients)
        with_coin = np.logaddexp(out, inside + density(length - push * (size - 1)))
        without_coin = np.logaddexp(out, inside + density(-push * (size - 1)))
        total += clues.where_simulated(with_coin - without_coin)
    return total


class _Clues:
    """One round of all trials: what is seen of every canary, and what reveals the size of the cohort.

    `weights` (trials, sizes) is the log-likelihood of all that was told, and of the energy outside of canaries'
    directions.
    """

    def __init__(self, seen: Sequence[Seen]) -> None:
        energy = np.array([one.energy for one in seen])
        freedom = np.array([one.freedom for one in seen])
        self.size = np.array([one.size for one in seen])
        self.sizes = sorted({one.size for one in seen if one.freedom})
        self._simulated = freedom > 0
        self.x = np.nan_to_num([one.x for one in seen])
        if not self.sizes:
            return
        self.asked = np.full(int(self.size.max()) + 3, False)
        for one in seen:
            self.asked[one.size] |= one.asked
        self.length = np.nanmedian([one.length for one in seen if one.freedom], axis=0)
        chosen = [(self.size == c) & self._simulated for c in self.sizes]
        self.variances = np.array([energy[c].sum() / freedom[c].sum() for c in chosen])
        likelihoods = _likelihoods([one.announcement for one in seen], self.size, self.sizes)
        least = np.maximum(self.variances, 1e-300)
        clues = freedom[:, None] * np.log(least) + energy[:, None] / least
        with np.errstate(divide="ignore"):
            self.weights = np.maximum(np.log(likelihoods), -_LARGEST) - 0.5 * clues

    def where_simulated(self, scores: Array) -> Array:
        return np.where(self._simulated[:, None] & np.isfinite(scores), scores, 0.0)


def _likelihoods(
    announcements: Sequence[Hashable], size: NDArray[np.int64], sizes: Sequence[int]
) -> Array:
    """Return how likely what each trial was told is for every size: its fraction among the other trials of that size.
    What no other trial was told says nothing."""
    counts = {
        c: Counter(word for word, one in zip(announcements, size, strict=True) if one == c)
        for c in sizes
    }
    result = np.ones((len(announcements), len(sizes)))
    for i, word in enumerate(announcements):
        heard = np.array([counts[c][word] - (c == size[i]) for c in sizes], dtype=float)
        others = np.array([counts[c].total() - (c == size[i]) for c in sizes], dtype=float)
        if heard.any():
            result[i] = heard / np.maximum(others, 1)
    return result


def _stacked(trials: Sequence[Trial], name: str, what: str) -> Array:
    """Return a quantity of all trials, as an array (trials, rounds, canaries)."""
    return np.array([[getattr(seen, what) for seen in trial.seen[name]] for trial in trials])


def _variance(trials: Sequence[Trial], name: str) -> Array:
    """Return the variance of the noise in each round."""
    energy = np.array([[seen.energy for seen in trial.seen[name]] for trial in trials])
    freedom = np.array([[seen.freedom for seen in trial.seen[name]] for trial in trials])
    return np.asarray(energy.sum(axis=0) / np.maximum(freedom.sum(axis=0), 1))
