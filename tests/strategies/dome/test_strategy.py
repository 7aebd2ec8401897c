"""DOME without noise is Adam on the mean gradient; with noise it pays for k numbers, not for d; both halves agree on
the sketch."""

import copy

import pytest
import torch

from fedsketch.client.app import app
from fedsketch.runtime.local import LocalGrid
from fedsketch.sketching.layerwise_sketch import probes
from fedsketch.strategies.algorithm import Aggregate, LocalWork
from fedsketch.strategies.dome import strategy as dome
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.workload import Workload
from tests.rounds import rows_of
from tests.small import LARGER
from tests.strategies.dome.asked import DOME, NOISELESS, MakeStrategy, ask, make_dome, play


def _centralised(
    workload: Workload,
    optimizer: type[torch.optim.Optimizer],
    rates: list[float],
    **settings: object,
) -> torch.Tensor:
    """Full-batch training on the whole set by torch alone, with these rates."""
    model, data = workload.model(), workload.dataset.train
    vector = torch.nn.Parameter(model.vector.clone())
    step = optimizer([vector], lr=rates[0], **settings)  # type: ignore[call-arg]
    for rate in rates:
        step.param_groups[0]["lr"] = rate
        model.load(vector.detach())
        _, gradient = model.loss_and_gradient(data.inputs, data.targets)
        vector.grad = gradient.clone()
        step.step()
    return vector.detach()


# ---------------------------------------------------------------------- exactness
@pytest.mark.parametrize("dim", [21, 0.99999])
@pytest.mark.parametrize("sketch", ["layerwise", "flat", "blocks"])
def test_with_all_numbers_and_no_noise_it_is_adam_on_the_mean_gradient(
    make_strategy: MakeStrategy, sketch: str, dim: float
) -> None:
    strategy = make_strategy(
        *NOISELESS,
        f"strategy.sketch={sketch}",
        f"strategy.sketch_dim={dim}",
    )
    assert strategy.upload_length(1) == strategy.model.size == 21
    play(strategy, range(1, 21))
    workload = Workload(strategy.config)
    assert {len(workload.shard(client)) for client in range(6)} == {10}  # equal shards
    expected = _centralised(workload, torch.optim.Adam, [0.04] * 20)
    torch.testing.assert_close(strategy.model.vector, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, workload.model().vector, atol=0.1)  # it did move


def test_with_all_numbers_sgd_is_torchs_with_the_velocity_divided_by_its_weights(
    make_strategy: MakeStrategy,
) -> None:
    strategy = make_strategy(
        *NOISELESS,
        "strategy.sketch_dim=21",
        "strategy.server.optimizer=sgd",
        "strategy.server.lr=1",
    )
    play(strategy, range(1, 21))
    rates = [(1 - 0.9) / (1 - 0.9**t) for t in range(1, 21)]
    expected = _centralised(Workload(strategy.config), torch.optim.SGD, rates, momentum=0.9)
    torch.testing.assert_close(strategy.model.vector, expected, rtol=1e-4, atol=1e-5)


def test_with_all_numbers_it_is_amsgrad(make_strategy: MakeStrategy) -> None:
    """Of corrected moments: see tests/strategies/test_debiased_step.py for how torch's differs."""
    strategy = make_strategy(
        *NOISELESS, "strategy.sketch_dim=21", "strategy.server.optimizer=amsgrad"
    )
    play(strategy, range(1, 21))
    workload = Workload(strategy.config)
    model, data = workload.model(), workload.dataset.train
    first, second, largest = (torch.zeros(21) for _ in range(3))
    for t in range(1, 21):
        _, gradient = model.loss_and_gradient(data.inputs, data.targets)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient.square()
        largest = torch.maximum(largest, second / (1 - 0.999**t))
        model.vector.sub_(0.04 * first / (1 - 0.9**t) / (largest.sqrt() + 1e-8))
    torch.testing.assert_close(strategy.model.vector, model.vector, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sketch", ["layerwise", "flat", "blocks"])
def test_examples_as_units_are_summed_over_unequal_shards(
    make_strategy: MakeStrategy, sketch: str
) -> None:
    strategy = make_strategy(
        *NOISELESS,
        "privacy.unit=example",
        "data/partition=by_size",
        f"strategy.sketch={sketch}",
        "strategy.sketch_dim=21",
    )
    play(strategy, range(1, 21))
    expected = _centralised(Workload(strategy.config), torch.optim.Adam, [0.04] * 20)
    torch.testing.assert_close(strategy.model.vector, expected, rtol=1e-4, atol=1e-5)


def test_a_warm_up_is_adam_until_it_ends(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy(
        *NOISELESS, *LARGER, "strategy.warm_up=3", "strategy.sketch_dim=30", "strategy.sketch=flat"
    )
    play(strategy, range(1, 4))
    workload = Workload(strategy.config)
    expected = _centralised(workload, torch.optim.Adam, [0.04] * 4)
    before = _centralised(workload, torch.optim.Adam, [0.04] * 3)
    torch.testing.assert_close(strategy.model.vector, before, rtol=1e-4, atol=1e-5)
    play(strategy, range(4, 5))
    assert not torch.allclose(strategy.model.vector, expected, atol=1e-3)


# ---------------------------------------------------------------------- Lemma 3.1
def test_noise_costs_k_and_not_d(make_strategy: MakeStrategy) -> None:
    """Inputs in a known plane of 6 of 60 dimensions, so that all gradients lie in the 6 * 10 + 10 = 70 directions that
    the sketch spans: the squared error of the released mean is sigma^2 70, not sigma^2 610. 350 rounds: 24,500 squared
    normals, a standard error of 0.9 %; beyond 5 % with probability below 1e-7."""
    sigma, k, rounds = 0.3, 70, 350
    strategy = make_dome(
        make_strategy,
        *(*NOISELESS, *LARGER, f"strategy.sketch_dim={k}", "strategy.keep=all"),
        *("strategy.learned_share=1", "strategy.server.optimizer=sgd", "strategy.server.lr=1"),
        "strategy.server.momentum=0",
    )
    generator = torch.Generator().manual_seed(4)
    plane = probes(9, 6, torch.empty(60, 0))
    inputs = (torch.randn(40, 6, generator=generator) @ plane.T).view(40, 1, 2, 30)
    shard = Examples(inputs, torch.randint(10, (40,), generator=generator))
    # What it would have learned from gradients of this plane.
    state = strategy.state_dict()
    state["learner.0.directions"] = plane.T
    state["learner.0.eigenvalues"] = torch.ones(6)
    strategy.load_state_dict(state)
    grid, error = LocalGrid(app, 6), 0.0
    start = strategy.model.vector.clone()
    for round in range(1, rounds + 1):
        strategy.model.load(start)
        _, gradient = strategy.model.loss_and_gradient(shard.inputs, shard.targets)
        truth = gradient.clone()
        broadcast = ask(strategy, grid, round)
        (sent,) = rows_of(
            dome.DomeDevice(), LocalWork(broadcast, shard, strategy.model, generator, {})
        )
        noisy = sent + sigma * torch.randn(k, generator=generator)
        strategy.update(round, Aggregate(6 * noisy, 6, 6 * sigma))
        released = start - strategy.model.vector
        error += float((released - truth).double().square().sum())
    assert sent.shape == (k,)
    assert error / rounds == pytest.approx(sigma**2 * k, rel=0.05)


@pytest.mark.parametrize(("unit", "units"), [("client", 6), ("example", 60)])
@pytest.mark.parametrize(("sketch", "width"), [("layerwise", 10), ("flat", 110)])
def test_step_and_noise_floor_are_told_the_noise_of_the_mean(
    make_strategy: MakeStrategy, sketch: str, width: int, unit: str, units: int
) -> None:
    """Lemma 3.2: per coordinate its variance times the squared row norm of the S that made g."""
    strategy = make_dome(
        make_strategy,
        *(*DOME, *LARGER, f"privacy={unit}"),
        *(f"strategy.sketch={sketch}", "strategy.sketch_dim=110"),
    )
    sketch_then = strategy.state.sketch(1)
    strategy.update(1, Aggregate(torch.ones(110), 6, 3.0))
    dense = sketch_then.adjoint(torch.eye(110))  # S^T
    variance = (3.0 / units) ** 2 * dense.square().sum(dim=0)
    state = strategy.state_dict()
    torch.testing.assert_close(state["optimizer.noise"], (1 - 0.999) * variance)
    length = ((60 if sketch == "layerwise" else 610) / width) ** 0.5  # of the probes
    assert state["learner.0.noise"].tolist() == [pytest.approx([3.0 / units * length, width])]


# ---------------------------------------------------------------------- what is sent
def test_what_a_sketch_did_not_see_comes_again(make_strategy: MakeStrategy) -> None:
    """Error feedback: without noise and clip, what was sent in all rounds and what is left add up to all gradients."""
    strategy = make_strategy(*NOISELESS, *LARGER, "strategy.error_feedback=0.99999999")
    shard, memory = Workload(strategy.config).shard(0), dict[str, torch.Tensor]()
    gradients, seen = torch.zeros(610), torch.zeros(610)
    for round in range(1, 6):
        broadcast = ask(strategy, LocalGrid(app, 6), round)
        _, gradient = strategy.model.loss_and_gradient(shard.inputs, shard.targets)
        gradients += gradient
        (sent,) = rows_of(
            dome.DomeDevice(),
            LocalWork(broadcast, shard, strategy.model, torch.Generator(), memory),
        )
        seen += strategy.state.sketch(round).adjoint(sent)  # type: ignore[attr-defined]
        strategy.update(round, Aggregate(6 * sent, 6, 0.0))
    torch.testing.assert_close(seen + memory["residual"][0], gradients, rtol=1e-4, atol=1e-5)
    assert float(memory["residual"].norm()) > 0.1 * float(gradients.norm())


def test_a_removed_mean_comes_back(make_strategy: MakeStrategy) -> None:
    """With all numbers, no noise and no clip the model does not depend on it; what devices send does."""
    options = (*NOISELESS, "strategy.sketch_dim=21", "strategy.feed=gradient")
    plain, centred = (make_strategy(*options, f"strategy.mean_removal={c}") for c in (0.0, 0.9))
    for strategy in (plain, centred):
        play(strategy, range(1, 11))
    torch.testing.assert_close(plain.model.vector, centred.model.vector, rtol=1e-4, atol=1e-5)
    broadcast = ask(centred, LocalGrid(app, 6), 11)
    shard, model = Workload(centred.config).shard(0), centred.model
    (sent,) = rows_of(dome.DomeDevice(), LocalWork(broadcast, shard, model, torch.Generator(), {}))
    _, gradient = model.loss_and_gradient(shard.inputs, shard.targets)
    reference = broadcast.arrays["reference"]
    assert float(reference.norm()) > 0.1
    torch.testing.assert_close(sent, gradient - reference)


@pytest.mark.parametrize(
    ("sketch", "dim", "numbers"),
    [
        *(("flat", 30, 30), ("flat", 0.1, 61)),
        *(("layerwise", 119, 110), ("layerwise", 0.2, 120)),
        *(("blocks", 100, 88), ("blocks", 0.1, 61)),
    ],
)
def test_uploads_have_the_planned_size(
    make_strategy: MakeStrategy, sketch: str, dim: float, numbers: int
) -> None:
    strategy = make_strategy(
        *DOME,
        *LARGER,
        f"strategy.sketch={sketch}",
        f"strategy.sketch_dim={dim}",
        "strategy.warm_up=2",
    )
    sizes = [strategy.upload_length(r) for r in (1, 2, 3, 30)]
    assert sizes == [610, 610, numbers, numbers]
    assert strategy.noise.dim == 610
    grid, shard = LocalGrid(app, 6), Workload(strategy.config).shard(0)
    for round in (2, 3):
        rows = rows_of(
            dome.DomeDevice(),
            LocalWork(ask(strategy, grid, round), shard, strategy.model, torch.Generator(), {}),
        )
        assert rows.shape == (1, sizes[round - 1])


@pytest.mark.parametrize("sketch", ["layerwise", "flat", "blocks"])
def test_a_device_makes_the_servers_sketch_from_what_travelled(
    make_strategy: MakeStrategy, sketch: str
) -> None:
    """Bit by bit, with learned directions and probes; and it changes from round to round."""
    strategy = make_dome(
        make_strategy,
        *(*NOISELESS, *LARGER, "strategy.sketch_dim=120", f"strategy.sketch={sketch}"),
        "strategy.keep=all",
    )
    play(strategy, range(1, 8))
    grid, seen = LocalGrid(app, 6), set()
    for round in (8, 9):
        broadcast = ask(strategy, grid, round)
        if sketch == "blocks":  # which learn nothing
            assert not any(name.startswith("basis") for name in broadcast.arrays)
        else:
            directions = broadcast.arrays["basis-0"].shape[1]
            assert 0 < directions < (120 if sketch == "flat" else 11)  # and so there are probes
        device = dome.DomeDevice().prepare(broadcast, strategy.model).sketch
        assert device.fingerprint() == strategy.state.sketch(round).fingerprint()
        seen.add(device.fingerprint())
    assert len(seen) == 2


# ---------------------------------------------------------------------- going on
@pytest.mark.parametrize("choice", ["layerwise", "flat", "blocks"])
def test_a_resumed_run_goes_on_bit_by_bit(make_strategy: MakeStrategy, choice: str) -> None:
    overrides = (
        *(*DOME, *LARGER, f"strategy.sketch={choice}", "strategy.sketch_dim=120"),
        *("strategy.keep=energy", "strategy.warm_up=1"),
        *("privacy.randomness=seeded", "strategy.server.optimizer=amsgrad"),
    )
    unbroken, resumed = make_strategy(*overrides), make_strategy(*overrides)
    play(unbroken, range(1, 4))
    resumed.model.load(unbroken.model.vector)
    resumed.load_state_dict(copy.deepcopy(unbroken.state_dict()))
    for round in range(4, 7):
        for strategy in (unbroken, resumed):
            play(strategy, range(round, round + 1))
        assert torch.equal(unbroken.model.vector, resumed.model.vector)
        assert unbroken.metrics() == resumed.metrics()
    assert (unbroken.metrics()["sketch_rank"] != 0) == (choice != "blocks")
