"""Correlated noise has exactly the rows of C^-1 Z, needs no more memory than its band, and survives a restart."""

import numpy as np
import pytest

from fedsketch.privacy.accounting.factorisation import FactorisationKind, factorise
from fedsketch.privacy.mechanisms.correlated_noise import CorrelatedRows
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key

DIM = 5


def _stream(row: int) -> Stream:
    return Stream(derived_key(7, "row", row))


def _fresh(rows: range) -> np.ndarray:
    return np.array([_stream(row).gaussian(DIM) for row in rows])


def _rows(noise: CorrelatedRows, rows: range) -> np.ndarray:
    return np.array([noise.row(row, _stream) for row in rows])


@pytest.mark.parametrize("kind", ["optimal", "banded", "square_root", "tree", "identity"])
def test_rows_are_those_of_the_inverse_times_fresh_noise(kind: FactorisationKind) -> None:
    strategy = factorise(kind, 9, 0.5, 4)
    made = _rows(CorrelatedRows(strategy, DIM), range(9))
    np.testing.assert_allclose(made, np.linalg.solve(strategy, _fresh(range(9))), atol=1e-9)


def test_a_new_pass_begins_with_new_noise() -> None:
    strategy = factorise("optimal", 4)
    made = _rows(CorrelatedRows(strategy, DIM), range(8))
    np.testing.assert_allclose(made[4:], np.linalg.solve(strategy, _fresh(range(4, 8))), atol=1e-9)


@pytest.mark.parametrize(("kind", "kept"), [("banded", 3), ("identity", 0), ("optimal", 8)])
def test_only_a_band_of_rows_is_kept(kind: FactorisationKind, kept: int) -> None:
    noise = CorrelatedRows(factorise(kind, 9, 0.0, 4), DIM)
    _rows(noise, range(9))
    assert noise.state_dict()["rows"].shape == (kept, DIM)


@pytest.mark.parametrize("done", [0, 1, 3, 4, 6])
def test_it_goes_on_from_its_state(done: int) -> None:
    strategy = factorise("banded", 4, 0.0, 3)
    whole, first, second = (CorrelatedRows(strategy, DIM) for _ in range(3))
    expected = _rows(whole, range(8))
    _rows(first, range(done))
    state = first.state_dict()
    _rows(first, range(done, 8))  # what is done after a checkpoint changes nothing in it
    second.load_state_dict(state)
    np.testing.assert_array_equal(_rows(second, range(done, 8)), expected[done:])


def test_no_row_is_given_twice() -> None:
    noise = CorrelatedRows(factorise("optimal", 4), DIM)
    _rows(noise, range(3))
    with pytest.raises(ValueError, match="has been used"):
        noise.row(2, _stream)


def test_rows_that_are_passed_over_are_made_all_the_same() -> None:
    strategy = factorise("optimal", 6)
    noise = CorrelatedRows(strategy, DIM)
    made = [noise.row(row, _stream) for row in (0, 1, 4, 5)]
    expected = np.linalg.solve(strategy, _fresh(range(6)))
    np.testing.assert_allclose(made, expected[[0, 1, 4, 5]], atol=1e-9)


def test_who_changes_a_row_changes_no_other() -> None:
    noise = CorrelatedRows(factorise("optimal", 4), DIM)
    noise.row(0, _stream)[:] = 1e9
    assert np.abs(noise.row(1, _stream)).max() < 1e3
