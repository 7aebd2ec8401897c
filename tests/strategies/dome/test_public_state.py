"""The step is taken in the sketch's coordinates; directions can be exchanged without losing the momentum."""

from collections.abc import Callable

import pytest
import torch

from fedsketch.conf import compose
from fedsketch.delivery.steps import Step
from fedsketch.errors import ConfigError, DataError
from fedsketch.strategies.algorithm import Aggregate, Strategy
from fedsketch.strategies.dome.public_state import PublicState
from fedsketch.strategies.dome.strategy import Dome
from fedsketch.tasks.workload import Workload
from tests.small import LARGER, small

MakeStrategy = Callable[..., Strategy]
PUBLIC = ["strategy=dome", "strategy.directions=public"]
SMALL = small(*PUBLIC, "strategy.server.debias=false rounds=40", *LARGER)
RANK = 11  # of the 10 x 60 weights; 120 numbers with the biases


def _state(*overrides: str) -> PublicState:
    config = compose([*SMALL, "strategy.sketch_dim=120", *overrides])
    model = Workload(config).model()
    return PublicState(config, model, model.vector)


def _directions(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(60, RANK, generator=generator, dtype=torch.float64)).Q
    return {"0": (basis * torch.linspace(1, 3, RANK)).float()}


def _step(round: int) -> Step:
    generator = torch.Generator().manual_seed(round)
    return Step(round, torch.randn(120, generator=generator), 0.1)


def test_the_step_is_adam_on_the_numbers_that_clients_send() -> None:
    state, directions = _state(), _directions(1)
    state.give(directions)
    start = state.vector.clone()
    coordinates = torch.nn.Parameter(torch.zeros(120))
    adam = torch.optim.Adam([coordinates], lr=0.04)
    for round in range(1, 6):
        state.apply(_step(round))
        coordinates.grad = _step(round).mean
        adam.step()
    moved = coordinates.detach()[:110].view(10, RANK) @ directions["0"].T
    expected = start + torch.cat([moved.flatten(), coordinates.detach()[110:]])
    torch.testing.assert_close(state.vector, expected, rtol=1e-4, atol=1e-5)


def test_the_same_directions_again_change_nothing() -> None:
    state = _state()
    assert state.version == 0
    assert state.give(_directions(1))
    assert state.version == 1
    state.apply(_step(1))
    before = state.fingerprint()
    assert not state.give(_directions(1))
    assert state.fingerprint() == before
    assert (state.steps, state.version) == (1, 2)


def test_the_momentum_of_a_gradient_in_the_span_survives_an_exchange() -> None:
    """The same span with other signs, order and lengths: the sketch of the gradient in the new directions, from the one
    in the old."""
    state, old = _state(), _directions(1)
    state.give(old)
    gradient = torch.randn(10, RANK, generator=torch.Generator().manual_seed(4)) @ old["0"].T
    biases = torch.ones(10)
    state.apply(Step(1, torch.cat([(gradient @ old["0"]).flatten(), biases]), 0.0))
    new = {"0": (-2 * old["0"].flip(1)).contiguous()}
    state.give(new)
    moment = state.state_dict()["optimizer.first"]
    expected = 0.1 * torch.cat([(gradient @ new["0"]).flatten(), biases])
    torch.testing.assert_close(moment, expected, rtol=1e-4, atol=1e-4)


def test_a_loaded_state_goes_on_identically_and_every_part_counts() -> None:
    first = _state()
    first.give(_directions(1))
    for round in (1, 2, 3):
        first.apply(_step(round))
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    for name, tensor in state.items():
        if name != "given":  # one or zero
            changed = _state()
            changed.load_state_dict({**state, name: tensor + 1})
            assert changed.fingerprint() != first.fingerprint(), name
    second = _state()
    second.load_state_dict(state)
    assert second.version == first.version == 4
    for round in (4, 5):
        first.apply(_step(round))
        second.apply(_step(round))
    assert first.fingerprint() == second.fingerprint()


# ---------------------------------------------------------------------- the strategy around it
def test_an_eighteenth_of_the_numbers_is_sent(make_strategy: MakeStrategy) -> None:
    """The model of the preset: an mlp of width 32 on images of 28 x 28."""
    strategy = make_strategy(
        *(*PUBLIC, "strategy.sketch_dim=1413", "model=mlp", "model.width=32"),
        *("data.shape=[1,28,28]", "data.classes=10", "data.public=40"),
    )
    assert strategy.model.size == 25_450
    assert strategy.upload_length(1) <= 25_450 / 18


def test_directions_are_renewed_on_time_and_only_where_they_change(
    make_strategy: MakeStrategy,
) -> None:
    """The logistic model has one layer, whose inputs never change; the mlp's second layer sees another thing after each
    step."""
    for model, changes in (("model=logistic", 0), ("model=mlp", 2)):
        strategy = make_strategy(
            *(*PUBLIC, "strategy.refresh=2", "strategy.sketch_dim=0.3", model),
            *(["model.width=60"] if changes else []),
            *("data.shape=[1,2,30]", "data.classes=10", "data.public=20"),
        )
        assert isinstance(strategy, Dome)
        seen = [strategy.state.sketch(1).fingerprint()]
        for round in range(1, 6):
            _move(strategy, round)
            seen.append(strategy.state.sketch(round + 1).fingerprint())
        assert seen[0] == seen[1]
        assert seen[2] == seen[3]
        assert seen[4] == seen[5]
        assert len(set(seen)) == 1 + changes


def _move(strategy: Dome, round: int) -> None:
    numbers = strategy.upload_length(round)
    generator = torch.Generator().manual_seed(round)
    strategy.update(round, Aggregate(torch.randn(numbers, generator=generator), 6, 0.1))


def test_where_everything_is_sent_whole_there_is_nothing_to_give() -> None:
    state = _state("strategy.sketch_dim=610")
    assert (state.version, state.sketch(1).shape) == (0, (610, 610))
    assert not state.give({})
    state.apply(Step(1, torch.ones(610), 0.0))
    assert state.version == 1


def test_without_public_data_the_run_does_not_start(make_strategy: MakeStrategy) -> None:
    with pytest.raises(DataError, match=r"set data\.public to"):
        make_strategy(*PUBLIC)


@pytest.mark.parametrize(
    "override",
    [
        "strategy.sketch=flat",
        "strategy.warm_up=1",
        "strategy.error_feedback=0.5",
        "strategy.mean_removal=0.5",
        "strategy.variant=paper",
    ],
)
def test_options_that_make_no_sense_with_public_directions_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=r"strategy\.directions=public|strategy\.variant=paper"):
        compose([*SMALL, override])
