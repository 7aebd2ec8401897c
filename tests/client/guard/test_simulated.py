"""Who is simulated: an actor of Flower's simulation engine, and no device, whatever runs on it."""

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from flwr.app import Context, RecordDict

from fedsketch.client.app import AppByName, by_name
from fedsketch.client.guard.guard import DEVICE_VARIABLE, DeviceGuard, SimulatedGuard, guard_of
from fedsketch.privacy.simulation import SIMULATION_VARIABLE
from fedsketch.secagg import Refusal


def _context() -> Context:
    return Context(1, 2, {"partition-id": 0}, RecordDict(), {})


class _Ray(ModuleType):
    """Stands in for Ray in a process of this kind: an actor of a worker, or a driver, which a device's process could be
    made to be."""

    WORKER_MODE = 1

    def __init__(self, mode: int, actor: str | None, initialized: bool = True) -> None:
        super().__init__("ray")
        self.is_initialized = lambda: initialized
        context = SimpleNamespace(worker=SimpleNamespace(mode=mode), get_actor_id=lambda: actor)
        self.get_runtime_context = lambda: context


def test_an_actor_of_flowers_simulation_engine_is_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in (SIMULATION_VARIABLE, DEVICE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setitem(sys.modules, "ray", _Ray(mode=1, actor="01"))
    assert isinstance(guard_of(_context()), SimulatedGuard)


@pytest.mark.parametrize(
    "ray",
    [
        _Ray(mode=0, actor=None),
        _Ray(mode=1, actor=None),
        _Ray(mode=1, actor="01", initialized=False),
    ],
)
def test_a_device_on_which_ray_runs_is_still_a_device(
    ray: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (SIMULATION_VARIABLE, DEVICE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(Refusal, match="no policy yet"):
        guard_of(_context())


def test_a_device_with_a_folder_is_never_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even in an actor: its owner has said what it is."""
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    monkeypatch.setenv(DEVICE_VARIABLE, str(tmp_path))
    monkeypatch.setitem(sys.modules, "ray", _Ray(mode=1, actor="01"))
    assert isinstance(guard_of(_context()), DeviceGuard)


def test_the_app_travels_as_a_name() -> None:
    """Ray unpickles it for every message: what it then calls has kept its data and models."""
    travelled = pickle.dumps(by_name)
    assert len(travelled) < 500
    assert isinstance(pickle.loads(travelled), AppByName)
