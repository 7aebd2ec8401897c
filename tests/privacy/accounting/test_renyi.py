from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as reference

from fedsketch.privacy.accounting import renyi

DESIGN_ORDERS = np.concatenate([np.arange(2.0, 257.0), np.arange(288.0, 1025.0, 32.0)])


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 11.577693, 80.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_gaussian_agrees_with_dp_accounting(noise_multiplier: float, delta: float) -> None:
    orders = np.array(reference.DEFAULT_RDP_ORDERS, dtype=float)
    accountant = dp_accounting.rdp.RdpAccountant(list(orders))
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), 100)
    ours = renyi.epsilon(100 * renyi.gaussian(noise_multiplier, orders), delta, orders)
    assert ours == pytest.approx(accountant.get_epsilon(delta), abs=1e-9)


def test_conversion_agrees_with_dp_accounting_on_random_curves() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        curve = np.sort(rng.exponential(10 ** rng.uniform(-12, 1), renyi.ORDERS.size))
        theirs, _ = reference.compute_epsilon(renyi.ORDERS, curve, 1e-6)
        assert renyi.epsilon(curve, 1e-6) == pytest.approx(theirs, abs=1e-9)


def test_orders_include_dp_accountings() -> None:
    assert set(reference.DEFAULT_RDP_ORDERS) <= set(renyi.ORDERS.tolist())


def test_design_number_of_the_renyi_gaussian() -> None:
    """A noise multiplier of 11.577693 over 100 rounds is epsilon 4 at delta 1e-5 with these orders."""
    spent = renyi.epsilon(100 * renyi.gaussian(11.577693, DESIGN_ORDERS), 1e-5, DESIGN_ORDERS)
    assert spent == pytest.approx(4.0, abs=5e-7)
    less = renyi.epsilon(100 * renyi.gaussian(11.577692, DESIGN_ORDERS), 1e-5, DESIGN_ORDERS)
    assert less > 4.0
