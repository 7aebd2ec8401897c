"""The sentence of a round that failed."""

from fedsketch.secagg import Aborted


def test_equal_reasons_are_said_once() -> None:
    missing = dict.fromkeys(range(10, 18), "mask: too old.") | {3: "no answer in time"}
    aborted = Aborted("mask", "0 clients are left", missing, "Look at the reasons.")
    assert str(aborted) == (
        "Secure aggregation stopped at stage 'mask': 0 clients are left. Missing: nodes 10, 11, 12, 13, 14 and 3 more: "
        "mask: too old; node 3: no answer in time. Look at the reasons."
    )
    assert aborted.missing == missing


def test_of_many_reasons_the_first_are_said() -> None:
    aborted = Aborted("mask", "gone", {node: f"reason {node}" for node in range(9)}, "Look.")
    assert "node 4: reason 4; and 4 more. Look." in str(aborted)


def test_nobody_missing_is_nothing_said() -> None:
    assert str(Aborted("mask", "gone", {}, "Look.")).endswith("gone. Look.")
