"""A strategy over small data, without secure aggregation unless asked for, as the round loop builds it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from fedsketch.conf import compose
from fedsketch.runtime.environment import simulated_devices
from fedsketch.strategies import plan_noise, server_half
from fedsketch.strategies.shared.base import FederatedStrategy
from fedsketch.strategies.shared.cohort import Cohorts
from fedsketch.tasks.job import Job

SMALL = [
    "strategy=dp_fedavg",
    "data=synthetic",
    "data.examples=60",
    "data.test_examples=20",
    "data.shape=[1,2,3]",
    "data.classes=3",
    "model=logistic",
    "device=cpu",
    "clients.total=6",
    "clients.per_round=6",
    "clients.timeout=1",
    "secagg=none",
    "privacy.against=model",
]


@pytest.fixture
def make_strategy() -> Iterator[Callable[..., FederatedStrategy]]:
    """Also marks this process as one that simulates devices, until the test ends."""
    with ExitStack() as stack:

        def build(*overrides: str, key: int = 1) -> FederatedStrategy:
            config = compose([*SMALL, *overrides])
            stack.enter_context(simulated_devices(config))
            job = Job(config)
            model = job.model()
            return server_half(config.strategy.name)(
                config,
                model,
                plan_noise(config, job, model),
                Cohorts(config.clients, key),
                len(job.dataset.train),
            )

        yield build
