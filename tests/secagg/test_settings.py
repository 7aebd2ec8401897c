"""Settings have one encoding, and every rule is checked wherever they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedsketch.secagg.codec import VectorFormat
from fedsketch.secagg.errors import SecAggError, SettingsError
from fedsketch.secagg.options import SecAggOptions
from fedsketch.secagg.pairwise.settings import PairwiseSettings

Make = Callable[..., PairwiseSettings]


@pytest.mark.parametrize("n", [2, 3, 10, 128, 129, 300, 1024])
@pytest.mark.parametrize("consistency", [True, False])
def test_encoding_round_trips(n: int, consistency: bool, settings_of: Make) -> None:
    settings = settings_of(n, bits=20, consistency=consistency)
    again = PairwiseSettings.decode(settings.encoded)
    assert again == settings
    assert again.digest == settings.digest


def test_every_field_is_in_the_hash(settings_of: Make) -> None:
    settings = replace(settings_of(9, drops=0), threshold=6, quorum=6)
    changes: list[dict[str, Any]] = [
        {"run": 8}, {"round": 2}, {"nonce": b"\1" * 16}, {"threshold": 7}, {"quorum": 7},
        {"drops": 1}, {"colluders": 1}, {"consistency": False}, {"dim": 6}, {"bits": 31},
        {"broadcast": b""}, {"application": {}}, {"application": {"clip": 1}},
        {"cohort": (*settings.cohort[:-1], 10**9)},
    ]  # fmt: skip
    digests = {settings.digest}
    for change in changes:
        changed = replace(settings, **change)
        assert PairwiseSettings.decode(changed.encoded) == changed
        digests.add(changed.digest)
    assert len(digests) == len(changes) + 1


@pytest.mark.parametrize(
    "change",
    [
        {"threshold": 0}, {"threshold": 1}, {"threshold": 5}, {"quorum": 5}, {"quorum": 0},
        {"threshold": 10}, {"quorum": 10}, {"drops": 5}, {"colluders": 8}, {"degree": 4},
        {"bits": 8}, {"bits": 65}, {"dim": 0}, {"dim": 2**31}, {"groups": 0}, {"groups": 6},
        {"cohort": (1, 1, 2, 3, 4, 5, 6, 7, 8, 9)}, {"cohort": (2, 1, 3, 4, 5, 6, 7, 8, 9, 10)},
        {"cohort": (1,)}, {"cohort": ()}, {"nonce": b""}, {"broadcast": b"x"}, {"run": -1},
        {"round": 2**64}, {"drops": -1},
    ],
)  # fmt: skip
def test_broken_rules_are_refused(change: dict[str, Any], settings_of: Make) -> None:
    with pytest.raises(SettingsError):
        replace(settings_of(10, drops=1), **change)


def test_the_rules_of_a_ring(settings_of: Make) -> None:
    settings = settings_of(300, drops=0.05, colluders=0.2, consistency=False)
    assert settings.degree < 299
    for change in ({"degree": settings.degree - 2}, {"threshold": settings.threshold - 1}):
        with pytest.raises(SettingsError, match="below"):
            replace(settings, **change)


@pytest.mark.parametrize("n", [2, 128, 129, 300, 1024])
def test_with_signed_survivor_lists_the_graph_is_complete_at_every_size(
    n: int, settings_of: Make
) -> None:
    settings = settings_of(n, colluders=0.1)
    assert settings.complete
    assert (settings.degree, settings.threshold) == (n - 1, (n + settings.colluders) // 2 + 1)


@pytest.mark.parametrize("n", [1025, 2000, 100_000])
def test_more_clients_than_can_all_exchange_masks_are_refused_with_what_to_do(
    n: int, settings_of: Make
) -> None:
    with pytest.raises(
        SettingsError, match=r"fewer clients per round, or set consistency to False"
    ):
        settings_of(n)
    assert not settings_of(n, consistency=False).complete


def test_other_complete_graphs_have_the_same_limit(settings_of: Make) -> None:
    assert settings_of(2048, groups=2).degree == 1023
    with pytest.raises(SettingsError, match="make more groups"):
        settings_of(2050, groups=2)
    with pytest.raises(SettingsError, match="tolerate fewer drops or colluders"):
        settings_of(3000, consistency=False, drops=0.01, colluders=0.9)


def test_up_to_128_clients_the_graph_is_complete_without_signatures_too(settings_of: Make) -> None:
    settings = settings_of(128, consistency=False)
    assert settings.degree == 127
    with pytest.raises(SettingsError, match="complete"):
        replace(settings, degree=40)


@pytest.mark.parametrize("drops", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("colluders", [0, 1, 2, 3])
def test_two_secrets_and_two_quorums_never_fit(drops: int, colluders: int) -> None:
    """Twice the threshold needs more answers than honest holders once and colluders twice give."""
    for n in range(2, 40):
        plan = SecAggOptions(drops=drops, colluders=colluders)
        try:
            settings = PairwiseSettings.proposed(plan, 1, 1, range(n), VectorFormat(1, 32), b"")
        except SettingsError:
            continue
        answers = (n - colluders) + 2 * colluders
        assert 2 * settings.threshold > answers
        assert 2 * settings.quorum > answers
        assert settings.sizes.least >= max(settings.threshold, settings.quorum)


def test_groups_count_all_colluders_in_each(settings_of: Make) -> None:
    settings = settings_of(60, groups=3, drops=1, colluders=4)
    assert settings.threshold_of(20) == 13
    assert settings.sizes.least == 19
    with pytest.raises(SettingsError, match="cannot finish"):
        settings_of(60, groups=3, drops=1, colluders=20)


@hypothesis_settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_encodings_never_crash(data: st.DataObject, settings_of: Make) -> None:
    n, consistency = data.draw(st.sampled_from([2, 10, 140])), data.draw(st.booleans())
    encoded = bytearray(settings_of(n, consistency=consistency).encoded)
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    for candidate in (bytes(encoded), bytes(encoded[:cut]), bytes(encoded) + b"\0"):
        try:
            decoded = PairwiseSettings.decode(candidate)
        except SecAggError:
            continue
        assert decoded.encoded == candidate  # canonical: one meaning, one encoding


def test_plan_rejects_nonsense() -> None:
    for wrong in ({"drops": -1}, {"colluders": 1.0}, {"groups": 0}, {"poll_interval": 0.0}):
        with pytest.raises(SettingsError):
            SecAggOptions(**wrong)  # type: ignore[arg-type]
