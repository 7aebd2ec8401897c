"""Leaks that the project once had, put back: the audit finds each, and finds nothing without them.

The draw of a cohort hides a client only as long as nothing tells its size. Every client is a canary here, so a trial
has many scores; it has many rounds because a draw of one in ten is seldom.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fedsketch.attacks.audit import audit
from fedsketch.conf import compose
from fedsketch.privacy.accounting.releases import Release
from fedsketch.privacy.mechanisms.mechanism import Mechanism
from fedsketch.strategies.algorithm import Aggregate
from fedsketch.strategies.noise import device_mechanism
from fedsketch.strategies.noise.device import DeviceNoise
from fedsketch.strategies.rounds.coordinator import Coordinator

Patch = Callable[[pytest.MonkeyPatch], None]
BASE = (
    "strategy=dp_fedavg clients.total=40 clients.per_round=4 clients.sampling=poisson privacy.against=model "
    "privacy.epsilon=null privacy.noise_multiplier=1.5"
)
UNMASKED = f"{BASE} secagg=none"


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is."""


def aggregates(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Aggregate]) -> None:
    made = Coordinator.aggregate

    def changed(self: Coordinator, round: int, mechanism: Mechanism, *rest: Any) -> Aggregate:
        return change(made(self, round, mechanism, *rest), mechanism)

    monkeypatch.setattr(Coordinator, "aggregate", changed)


def variance_of_the_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices share the noise among those of whom some may collude, and the server adds nothing: sums of odd and even
    cohorts differ."""
    monkeypatch.setattr(DeviceNoise, "known", lambda self, cohort: cohort // 2)
    monkeypatch.setattr(DeviceNoise, "contributing_fraction", property(lambda self: 0.5))
    made = Coordinator.aggregate

    def without(
        self: Coordinator, round: int, mechanism: Mechanism, cohort: int, parts: Any
    ) -> Aggregate:
        nominal = self.strategy.noise_of(round).variance(cohort, cohort)
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(
                DeviceNoise,
                "variance",
                lambda noise, size, clients: clients * mechanism.variance_per_device,
            )
            made_up = made(self, round, mechanism, cohort, parts)
        return replace(made_up, noise_std=mechanism.noise_std(nominal))

    monkeypatch.setattr(Coordinator, "aggregate", without)


def scale_of_the_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small rings with a scale for each cohort: the lattice of the sum shows its size. The noise is as nominal as
    ever."""
    made = device_mechanism.of_plan

    def own(noise: DeviceNoise, cohort: int, dim: int) -> Mechanism:
        common = made(noise, cohort, dim)
        factor = 1.0 + cohort / 100.0
        share = math.ceil(common.variance_per_device * factor**2)
        scale = common.scale / factor  # type: ignore[attr-defined]
        return replace(common, scale=scale, local_variance=int(share))  # type: ignore[call-arg]

    monkeypatch.setattr(device_mechanism, "of_plan", own)


def deviation_of_the_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said about the noise is what devices brought, not the nominal number: replayed devices are told it."""
    aggregates(
        monkeypatch,
        lambda made, mechanism: replace(
            made, noise_std=mechanism.noise_std((1 + made.clients) * mechanism.variance_per_device)
        ),
    )


def model_for_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds for those who see models is claimed for fellow clients too, who see the list of the cohort."""
    made = DeviceNoise.releases

    def claimed(self: DeviceNoise, cohort: int, clients: int) -> dict[str, Release]:
        told = made(self, cohort, clients)
        return {**told, "client": replace(told["model"], adversary=told["client"].adversary)}

    monkeypatch.setattr(DeviceNoise, "releases", claimed)


MASKED = (
    "strategy=dp_fedavg clients.total=64 clients.per_round=12 clients.sampling=poisson privacy.against=model "
    "privacy.epsilon=null privacy.noise_multiplier=1.5 privacy.delta=1e-3"
)
CASES: dict[str, tuple[str, str, Patch, bool]] = {
    "as it is": (UNMASKED, "model", nothing, False),
    "as it is, masked": (MASKED, "client", nothing, False),
    "variance": (UNMASKED, "model", variance_of_the_cohort, True),
    "scale": (
        f"{UNMASKED} secagg.noise=skellam secagg.bits=18",
        "model",
        scale_of_the_cohort,
        True,
    ),
    "deviation": (UNMASKED, "model", deviation_of_the_cohort, True),
    "deviation, replayed": (
        UNMASKED.replace("dp_fedavg", "dome") + " strategy.sketch=flat strategy.sketch_dim=200",
        "model",
        deviation_of_the_cohort,
        True,
    ),
    "fellow clients": (MASKED, "client", model_for_client, True),
}


@pytest.mark.slow
@pytest.mark.parametrize(("overrides", "who", "plant", "found"), CASES.values(), ids=CASES)
def test_a_leak_is_found(
    overrides: str, who: str, plant: Patch, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device_mechanism.of_plan.cache_clear()
    plant(monkeypatch)
    # The variance tells less than the others: the more trials, the surer.
    trials = 8000 if plant is variance_of_the_cohort else 2400
    report = audit(compose(overrides.split()), trials, 24, adversaries=[who])
    assert bool(report.exceeded()) == found, [(one.claimed, one.fitted) for one in report.findings]
