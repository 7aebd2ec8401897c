"""Plays a real round, and writes down what really happened in it: who took part, and which noise was drawn where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from flwr.app import Context, Message
from numpy.typing import NDArray

from fedsketch.client.app import make_app
from fedsketch.conf import Config
from fedsketch.privacy.mechanisms import gaussian, noisy_training, skellam_ring
from fedsketch.runtime.environment import simulated_devices
from fedsketch.runtime.local import LocalGrid
from fedsketch.server.grids.stack import wrap_grid
from fedsketch.strategies.algorithm import Aggregate, Strategy
from fedsketch.strategies.registry import make_strategy
from fedsketch.tasks.workload import Workload
from tests.rounds import ask, coordinator_of

SERVER = -1


@dataclass(frozen=True)
class Witnessed:
    """One round. `draws` are the variances of the noise that a client (or the server) drew, in the order in which it
    drew them, per number:
    of real numbers for Gaussian noise, of integers for Skellam noise. `record` is what the devices were told to do."""

    strategy: Strategy
    record: Mapping[str, Any]
    cohort: int
    draws: Mapping[int, tuple[float, ...]]
    aggregate: Aggregate

    @property
    def arrived(self) -> tuple[int, ...]:
        return self.aggregate.members

    @property
    def share(self) -> float:
        """What one device drew; all draw the same."""
        shares = {self.draws[client] for client in self.arrived}
        assert len(shares) == 1
        return sum(*shares)

    @property
    def noise(self) -> float:
        """All noise in the sum."""
        return len(self.arrived) * self.share + sum(self.draws.get(SERVER, ()))


def witnessed(
    config: Config,
    *,
    rounds: int = 1,
    key: int = 1,
    lost: Callable[[int], bool] = lambda client: False,
) -> list[Witnessed]:
    """Play the first rounds of a run. Some of the devices train and are then lost. The model stays as it is at
    first."""
    app, where = make_app(), [SERVER]
    draws: dict[int, list[float]] = {}

    def device(message: Message, context: Context) -> Message:
        where[0] = int(context.node_config["partition-id"])
        try:
            reply = app(message, context)
            if message.metadata.message_type == "train" and lost(where[0]):
                raise ConnectionError("lost after training")
            return reply
        finally:
            where[0] = SERVER

    def heard(variance: float) -> None:
        draws.setdefault(where[0], []).append(variance)

    seen = []
    with simulated_devices(config), _listening(heard):
        workload = Workload(config)
        strategy = make_strategy(config, workload, workload.model())
        coordinator = coordinator_of(strategy, key)
        grid = wrap_grid(
            LocalGrid(device, config.clients.total),  # type: ignore[arg-type]
            config,
            strategy.parcels,
        )
        for current in range(1, rounds + 1):
            draws.clear()
            messages = ask(strategy, current, grid)
            with mock.patch.object(strategy, "update") as update:
                coordinator.aggregate_train(
                    current, grid.send_and_receive(messages, timeout=config.clients.timeout)
                )
            assert coordinator._expected is not None
            told, cohort = (
                coordinator._expected[0].to_record(),
                coordinator.cohort_size,
            )
            drawn = {client: tuple(variances) for client, variances in draws.items()}
            seen.append(Witnessed(strategy, told, cohort, drawn, update.call_args.args[1]))
    return seen


@contextmanager
def _listening(heard: Callable[[float], None]) -> Iterator[None]:
    """Calls `heard` with the variance of all noise that the mechanisms draw."""
    add_gaussian, sample_skellam = gaussian.add_gaussian, skellam_ring.sample_skellam

    def gaussian_noise(vector: NDArray[Any], std: float, stream: Any) -> NDArray[Any]:
        heard(std**2)
        return add_gaussian(vector, std, stream)

    def skellam_noise(mu: int, size: int, stream: Any) -> NDArray[Any]:
        heard(float(mu))
        return sample_skellam(mu, size, stream)

    with (
        mock.patch.object(gaussian, "add_gaussian", gaussian_noise),
        mock.patch.object(noisy_training, "add_gaussian", gaussian_noise),
        mock.patch.object(skellam_ring, "sample_skellam", skellam_noise),
    ):
        yield
