"""A device starts a process per message: what the protocol stages import must stay cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIGHT = [
    "accounting.accountant",
    "accounting.calibration",
    "accounting.dome_theorem",
    "accounting.release_json",
    "accounting.releases",
    "mechanisms.encoding",
    "mechanisms.gaussian",
    "mechanisms.randomness",
    "mechanisms.records",
    "mechanisms.ring_choice",
    "mechanisms.skellam_sampler",
]


def _heavy_after(code: str) -> str:
    script = f"{code}\nimport sys\nprint([m for m in ('torch', 'scipy', 'dp_accounting') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_importing_the_device_modules_imports_nothing_heavy() -> None:
    assert _heavy_after("\n".join(f"import fedsketch.privacy.{name}" for name in LIGHT)) == "[]"


@pytest.mark.parametrize(("sampling", "tight"), [("NoSampling()", True), ("Poisson(0.1)", False)])
def test_accounting_on_a_device_imports_nothing_heavy(sampling: str, tight: bool) -> None:
    code = f"""
from fedsketch.privacy.accounting.accountant import Accountant
from fedsketch.privacy.accounting.releases import *
accountant = Accountant(1e-5)
accountant.record(Release(Skellam(1e9, 1e3, 1e4), {sampling}, Adjacency.ZERO_OUT, Unit.CLIENT, Adversary.MODEL), 10)
assert 0 < accountant.epsilon(tight={tight}).epsilon < 10
"""
    assert _heavy_after(code) == "[]"
