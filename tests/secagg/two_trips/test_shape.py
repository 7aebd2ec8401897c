"""The rule of a sharing, at equality and one step beyond, and the numbers that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from itertools import product

import pytest

from fedsketch.secagg.errors import SettingsError
from fedsketch.secagg.two_trips.shape import Shape

BORDER = Shape(n=41, drops=5, losses=5, colluders=10, dim=1, bits=16)  # n = 2 A + 2 (D + E + 1) - 1
MANY_DROPS = Shape(n=23, drops=5, losses=0, colluders=3, dim=4, bits=16)  # n = A + 4 D
OFF_BY_ONE = [{"n": -1}, {"drops": 1}, {"losses": 1}, {"colluders": 1}]


def _moved(shape: Shape, step: dict[str, int]) -> Shape:
    return replace(shape, **{name: getattr(shape, name) + by for name, by in step.items()})


@pytest.mark.parametrize("step", OFF_BY_ONE, ids=str)
def test_one_step_beyond_the_border_is_refused(step: dict[str, int]) -> None:
    assert BORDER.secrets == 1
    with pytest.raises(SettingsError, match="too few for a sum"):
        _moved(BORDER, step)
    assert _moved(BORDER, {name: -by for name, by in step.items()}).secrets == 1


@pytest.mark.parametrize("step", [{"n": -1}, {"drops": 1}, {"colluders": 1}], ids=str)
def test_fewer_honest_devices_than_four_times_the_drops_are_refused(step: dict[str, int]) -> None:
    """Although there are enough for the other rule."""
    assert MANY_DROPS.n - 2 * MANY_DROPS.colluders + 1 > 2 * (MANY_DROPS.publics + 2)
    with pytest.raises(SettingsError, match="too few for a sum"):
        _moved(MANY_DROPS, step)


def _shapes(most: int) -> Iterator[Shape]:
    for numbers in product(range(1, most), range(5), range(4), range(5), (1, 7, 40)):
        try:
            yield Shape(*numbers, bits=16)
        except SettingsError:
            continue


def test_what_is_accepted_keeps_the_rule_of_the_theorem() -> None:
    """With as many devices that answer twice as colluders."""
    shapes = list(_shapes(30))
    assert len(shapes) > 1000
    for shape in shapes:
        n, drops, losses, colluders, dim, _ = astuple(shape)
        assert n - 2 * colluders >= 2 * (drops + losses + shape.secrets) - 1
        assert n - colluders >= 4 * drops
        assert shape.secrets * shape.polynomials >= dim
        assert (shape.holders, shape.least) == (n - drops - losses, n - drops)


def test_what_is_refused_breaks_it_with_one_secret() -> None:
    accepted = {astuple(shape)[:4] for shape in _shapes(30)}
    for n, drops, losses, colluders in product(range(1, 30), range(5), range(4), range(5)):
        fits = n - 2 * colluders >= 2 * (drops + losses) + 1 and n - colluders >= 4 * drops
        assert fits == ((n, drops, losses, colluders) in accepted)


def test_the_fewest_secrets_with_the_same_number_of_polynomials() -> None:
    """30 at most for 100 clients, and fewer if the last polynomial would not be full."""
    most = Shape(100, 5, 5, 10, 30, 20)
    assert (most.secrets, most.polynomials) == (30, 1)
    assert (replace(most, dim=31).secrets, replace(most, dim=31).polynomials) == (16, 2)
    for dim in range(1, 500):
        shape = replace(most, dim=dim)
        assert shape.polynomials == -(-dim // 30)
        assert (shape.secrets - 1) * shape.polynomials < dim <= shape.secrets * shape.polynomials


@pytest.mark.parametrize("bits", [15, 33])
def test_rings_without_a_modulus_are_refused(bits: int) -> None:
    with pytest.raises(SettingsError, match="16 to 32 bits"):
        replace(BORDER, bits=bits)


def test_more_points_than_numbers_are_refused() -> None:
    """Holders, what is published and secrets have different points, of 65,521."""
    largest = Shape(n=65520, drops=0, losses=0, colluders=0, dim=1, bits=16)
    assert largest.n + largest.publics + largest.secrets == largest.modulus
    for step in ({"n": 1}, {"losses": 1}, {"dim": 1}):
        with pytest.raises(SettingsError, match="too small for"):
            _moved(largest, step)
    assert _moved(replace(largest, bits=17), {"n": 1}).secrets == 1
