"""Where the randomness of a device's noise comes from, and in which form its examples are."""

from pathlib import Path

import pytest
import torch

from fedsketch.client.guard.guard import DeviceGuard, SimulatedGuard
from fedsketch.client.workspace import _in_places, noise_stream
from fedsketch.conf import compose
from fedsketch.privacy.simulation import SEED_VARIABLE
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.workload import Assignment


def test_a_devices_stream_is_secret_unless_its_process_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    assert noise_stream(1, 1).bytes(16) != noise_stream(1, 1).bytes(16)
    monkeypatch.setenv(SEED_VARIABLE, "7")
    assert noise_stream(1, 1).bytes(16) == noise_stream(1, 1).bytes(16)
    streams = {noise_stream(client, round).bytes(16) for client in (1, 2) for round in (1, 2)}
    assert len(streams) == 4
    monkeypatch.setenv(SEED_VARIABLE, "8")
    assert noise_stream(1, 1).bytes(16) not in streams


@pytest.mark.parametrize("unit", ["example", "client"])
def test_a_real_device_that_protects_examples_has_them_in_places_whatever_its_data(
    unit: str, tmp_path: Path
) -> None:
    """Data that are no files too: how many there are decides how a product is rounded."""
    task = Assignment(compose(["strategy=dp_fedavg", "data=digits", f"privacy={unit}"]))
    own = Examples(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64))
    placed = _in_places(own, task, DeviceGuard(tmp_path))
    assert (placed.present is not None) == (unit == "example")
    assert _in_places(own, task, SimulatedGuard(1)) is own
