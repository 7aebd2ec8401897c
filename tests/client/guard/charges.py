"""What tests of the ledger charge to it."""

import math

from fedsketch.client.guard.ledger import Ledger
from fedsketch.client.guard.ledger_state import Budget, RoundId
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import (
    Adjacency,
    Adversary,
    NoSampling,
    Release,
    Skellam,
    Unit,
)

DELTA = 1e-5
ENDLESS = Budget(math.inf, DELTA, 10**9)


def release(honest: int = 10, unit: Unit = Unit.CLIENT) -> Release:
    mechanism = Skellam(honest * 1e7, 4096.0, 4096.0 * 20)
    return Release(mechanism, NoSampling(), Adjacency.ZERO_OUT, unit, Adversary.SERVER)


def epsilon(*releases: Release) -> float:
    accountant = Accountant(DELTA)
    for one in releases:
        accountant.record(one)
    return accountant.epsilon(tight=False).epsilon


def this(round: int, run: int = 7, digest: str = "d") -> RoundId:
    return RoundId(run, round, digest)


def charged(ledger: Ledger, round: int, budget: Budget = ENDLESS, run: int = 7) -> None:
    ledger.admit(this(round, run), release(), budget)
    ledger.charge(this(round, run), release(), budget)
