"""Refusals whose text is for the owner of a device. The server gets a fixed sentence instead (`public_text`), because
the text says what the device has revealed to others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from typing import ClassVar

from fedsketch.secagg import Refusal

log = getLogger(__name__)


class OwnersRefusal(Refusal):
    """A refusal with a reason that stays on the device."""

    public_text: ClassVar[str]


class BudgetSpent(OwnersRefusal):
    """The budget over the device's life does not cover a round."""

    public_text = "The privacy budget of this device does not cover this round: the log of its node says more."


class LedgerProblem(OwnersRefusal):
    """The ledger or its witness is missing, damaged or older than it was."""

    public_text = "This device's ledger cannot be used: the log of its node says why."


@contextmanager
def reason_kept() -> Iterator[None]:
    """Write the reason of such a refusal to the node's log, and raise one with the fixed sentence."""
    try:
        yield
    except OwnersRefusal as refusal:
        log.error("%s", refusal)
        raise Refusal(refusal.public_text) from None
