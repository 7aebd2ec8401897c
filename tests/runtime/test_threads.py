"""Small models are trained with one thread, large ones with torch's choice, and the user's choice goes first."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedsketch.conf.schema import SimulationRuntimeConfig
from fedsketch.runtime import local, simulation
from fedsketch.runtime.threads import LARGE_MODEL, VARIABLE, client_variables, fitting_threads


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("parameters", "threads"), [(LARGE_MODEL - 1, 1), (LARGE_MODEL, 2)])
def test_a_small_model_gets_one_thread(parameters: int, threads: int) -> None:
    with fitting_threads(parameters):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 2


def test_the_threads_come_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), fitting_threads(1):
        _ = 1 / 0
    assert torch.get_num_threads() == 2


def test_a_number_that_the_user_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    with fitting_threads(1):
        assert torch.get_num_threads() == 2


def test_the_local_runtime_trains_with_one_thread_and_gives_the_others_back(
    fedsketch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    answer = local.LocalGrid._answer

    def watched(grid: local.LocalGrid, message: Message) -> Message:
        seen.append(torch.get_num_threads())
        return answer(grid, message)

    monkeypatch.setattr(local.LocalGrid, "_answer", watched)
    assert fedsketch("rounds=1").code == 0
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, "1"), (1.0, "1"), (1.9, "1"), (4.0, "4")])
def test_a_simulated_client_has_as_many_threads_as_cpus(cpus: float, threads: str) -> None:
    assert client_variables(cpus) == {VARIABLE: threads}


def test_a_simulated_client_has_the_threads_that_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    assert client_variables(1.0) == {VARIABLE: "3"}


@pytest.mark.slow
def test_the_processes_of_ray_have_these_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    client_app, server_app, seen = ClientApp(), ServerApp(), []

    @client_app.query()
    def query(message: Message, context: Context) -> Message:
        threads = ConfigRecord({"threads": torch.get_num_threads()})
        return Message(RecordDict({"torch": threads}), reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        deadline = time.monotonic() + 60
        while not (nodes := list(grid.get_node_ids())) and time.monotonic() < deadline:
            time.sleep(0.1)  # on a busy machine the server starts before its node is known
        (node,) = nodes
        (reply,) = grid.send_and_receive([Message(RecordDict(), node, "query")])
        seen.append(reply.content.config_records["torch"]["threads"])

    settings = SimulationRuntimeConfig("simulation", None, 2.0, 0.0)
    monkeypatch.setattr(simulation, "AppByName", lambda: client_app)
    simulation.run_simulation(server_app, 1, settings, {})
    assert seen == [2]
