"""The state that devices follow: the same wherever it is made, what torch's optimiser makes, and whole when loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedsketch.conf import compose
from fedsketch.delivery.steps import Step
from fedsketch.strategies.csgm import Csgm
from fedsketch.strategies.fed_sgm import FedSgm
from fedsketch.strategies.registry import make_replica
from fedsketch.strategies.rounds.optimized_state import OptimizedState
from fedsketch.strategies.rounds.optimizer import ServerOptimizer
from fedsketch.tasks.workload import Workload
from tests.small import LARGER, plain

SMALL = plain("rounds=40", *LARGER)
SGM = ("strategy=fed_sgm", "strategy.sketch_dim=120")
COMMON = ("strategy=csgm", "strategy.mask=common", "privacy=client", "strategy.rate=0.2")
OPTIMIZERS = [
    ("strategy.server.optimizer=sgd", "strategy.server.momentum=0"),
    ("strategy.server.optimizer=sgd", "strategy.server.momentum=0.9"),
    ("strategy.server.optimizer=adam",),
    ("strategy.server.optimizer=amsgrad",),
]
# Thirty steps, each from the state that the leader came to: a device that went astray would get the whole.
FOLLOWS = """
import sys, torch
from fedsketch.conf import compose
from fedsketch.delivery.steps import Step
from fedsketch.strategies.registry import make_replica
from fedsketch.tasks.workload import Workload
role, path, *overrides = sys.argv[1:]
config = compose(overrides)
state = make_replica(config, Workload(config).model())
states = [] if role == "lead" else torch.load(path)
generator = torch.Generator().manual_seed(5)
for round in range(1, 31):
    if role == "follow" and round > 1:
        state.load_state_dict(states[round - 2])
    state.apply(Step(round, torch.rand(120, generator=generator) - 0.5, 0.0))
    print(state.fingerprint())
    if role == "lead":
        states.append({name: x.clone() for name, x in state.state_dict().items()})
if role == "lead":
    torch.save(states, path)
"""


def _fingerprints(role: str, path: Path, overrides: list[str], **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWS, role, str(path), *overrides],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def _state(*overrides: str) -> OptimizedState:
    config = compose([*SMALL, *SGM, *overrides])
    state = make_replica(config, Workload(config).model())
    assert isinstance(state, OptimizedState)
    return state


def _steps(count: int) -> list[Step]:
    generator = torch.Generator().manual_seed(1)
    return [Step(r, torch.rand(120, generator=generator) - 0.5, 0.0) for r in range(1, count + 1)]


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy.sketch=gaussian", "strategy.server.optimizer=amsgrad"),
        pytest.param(("strategy.sketch=hadamard",), marks=pytest.mark.slow),
        pytest.param(("strategy.sketch=count_sketch",), marks=pytest.mark.slow),
    ],
)
def test_another_machine_makes_the_same_state(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """As near as one machine can be to another: another number of threads, and other vector instructions. A step ends
    in other bits where a last bit of float64 decides how a number rounds to float32: 610 numbers and three moments,
    each with a chance of about 1e-7. Float32 products would change all 30 steps."""
    path, run = tmp_path / "states", [*SMALL, *SGM, *overrides]
    told = _fingerprints("lead", path, run, OMP_NUM_THREADS="1")
    assert len(set(told)) == 30
    other = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "2"}
    followed = _fingerprints("follow", path, run, **other)
    assert sum(map(str.__eq__, followed, told)) >= 28


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_steps_are_those_of_the_servers_optimiser_up_to_rounding(
    optimizer: tuple[str, ...],
) -> None:
    """Twenty steps in float32, each rounded by at most some units in the last place of numbers below 10."""
    config = compose([*SMALL, *SGM, *optimizer])
    state = _state(*optimizer)
    vector = state.vector.clone()
    plain_steps = ServerOptimizer(vector, config.strategy.server)
    for step in _steps(20):
        state.apply(step)
        plain_steps.step(FedSgm.expand(config, vector.numel(), step))
    torch.testing.assert_close(state.vector, vector, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loaded_state_goes_on_identically_and_every_part_counts(
    optimizer: tuple[str, ...],
) -> None:
    first, second = _state(*optimizer), _state(*optimizer, "seed=1")
    for step in _steps(5)[:3]:
        first.apply(step)
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    for name, tensor in state.items():
        changed = _state(*optimizer)
        changed.load_state_dict({**state, name: tensor + 1})
        assert changed.fingerprint() != first.fingerprint(), name
    second = _state(*optimizer)
    second.load_state_dict(state)
    assert second.version == 3
    for step in _steps(5)[3:]:
        assert second.fingerprint() == first.fingerprint()
        first.apply(step)
        second.apply(step)
    assert second.fingerprint() == first.fingerprint()


def test_a_common_mask_is_made_anew_from_the_round_of_the_step() -> None:
    config = compose([*SMALL, *COMMON])
    state = make_replica(config, Workload(config).model())
    start = state.broadcast_arrays(1)["model"].clone()
    mean = torch.ones(122)
    state.apply(Step(3, mean, 0.0))
    wanted = start - config.strategy.server.lr * Csgm.expand(config, 610, Step(3, mean, 0.0))
    torch.testing.assert_close(state.broadcast_arrays(4)["model"], wanted)
    other = Csgm.expand(config, 610, Step(4, mean, 0.0))
    assert not torch.allclose(other, Csgm.expand(config, 610, Step(3, mean, 0.0)))


def test_a_secret_sketch_comes_with_its_step() -> None:
    config = compose([*SMALL, *SGM])
    seed = {"sketch-seed": torch.arange(16, dtype=torch.uint8)}
    told = FedSgm.expand(config, 610, Step(1, torch.ones(120), 0.0, seed))
    known = FedSgm.expand(config, 610, Step(1, torch.ones(120), 0.0))
    assert not torch.allclose(told, known)
