"""FedPCDP: signal and noise stay in the public subspace, full rank is DP-SGD, and what is sent is short."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsketch.client.app import app
from fedsketch.conf import compose
from fedsketch.conf.schema import Against
from fedsketch.errors import ConfigError, DataError
from fedsketch.privacy.accounting.releases import DrawnBy, Poisson, Unit
from fedsketch.privacy.mechanisms.noisy_training import NoisyTraining
from fedsketch.privacy.mechanisms.randomness import Stream, derived_key
from fedsketch.runtime.local import LocalGrid
from fedsketch.secagg import WrappedGrid
from fedsketch.server.grids.stack import wrap_grid
from fedsketch.server.guarantee import guarantee
from fedsketch.sketching.subspace import SubspaceSketch
from fedsketch.strategies.algorithm import Strategy
from fedsketch.strategies.fedpcdp.strategy import FedPcdp, Training, scaled
from fedsketch.strategies.registry import make_strategy as built
from fedsketch.tasks.gradients.per_example import PerExample
from fedsketch.tasks.workload import Workload
from tests.rounds import ask, coordinator_of
from tests.small import small

MakeStrategy = Callable[..., Strategy]
# 54 examples of clients, 9 each; logistic, so tensors of 18 and 3 numbers.
NOISY = (
    "strategy.broadcast=full",  # these rounds are played without a Grid that delivers parcels
    "strategy=fedpcdp",
    "data.examples=90",
    "data.public=36",
    "strategy.rank=5",
    "strategy.public_examples=8",
    "strategy.local.steps=4",
    "strategy.local.batch=3",
    "privacy.clip=0.1",
    "privacy.noise_multiplier=1",
    "privacy.epsilon=null",
    "privacy.randomness=seeded",
)
FULL_RANK = ("strategy.rank=18", "strategy.public_examples=18")


@pytest.fixture
def make(make_strategy: MakeStrategy) -> Callable[..., FedPcdp]:
    def build(*overrides: str) -> FedPcdp:
        made = make_strategy(*NOISY, *overrides)
        assert isinstance(made, FedPcdp)
        return made

    return build


def _play(strategy: FedPcdp, rounds: int = 1) -> torch.Tensor:
    """The model after some rounds less the initial one."""
    local, start = LocalGrid(app, strategy.config.clients.total), strategy.model.vector.clone()
    grid = wrap_grid(WrappedGrid(local), strategy.config, None)
    for round in range(1, rounds + 1):
        messages = ask(strategy, round, grid)
        coordinator_of(strategy).aggregate_train(round, grid.send_and_receive(messages))
    return strategy.model.vector - start


def _directions(strategy: FedPcdp, round: int = 1) -> SubspaceSketch:
    strategy.broadcast(round)
    assert strategy._sketch is not None
    return strategy._sketch


@pytest.mark.parametrize("projection", ["before", "after"])
@pytest.mark.parametrize("basis", ["tensor", "whole"])
def test_signal_and_noise_stay_in_the_public_subspace(
    make: Callable[..., FedPcdp], projection: str, basis: str
) -> None:
    strategy = make(f"strategy.projection={projection}", f"strategy.basis={basis}")
    sketch = _directions(strategy)
    moved = _play(strategy)
    assert float(moved.norm()) > 0
    inside = sketch.adjoint(sketch.forward(moved))
    assert float((moved - inside).norm()) < 1e-5 * float(moved.norm())  # float32


def test_directions_are_those_of_public_gradients(make: Callable[..., FedPcdp]) -> None:
    strategy = make("strategy.rank=8")
    sketch, public = _directions(strategy), strategy._public_block(0)
    rows = PerExample(strategy.model).gradients(public.inputs, public.targets)
    # As many directions as examples: nothing of their gradients is lost, up to float16 on the way.
    kept = sketch.adjoint(sketch.forward(rows))
    torch.testing.assert_close(kept, rows, atol=2e-3 * float(rows.abs().max()), rtol=0)
    identity = torch.eye(sketch.shape[0])
    torch.testing.assert_close(
        sketch.forward(sketch.adjoint(identity)), identity, atol=1e-5, rtol=0
    )


def test_with_full_rank_it_is_dp_sgd(make: Callable[..., FedPcdp]) -> None:
    """The same draws, the same noise, the same steps: tensors with no more numbers than directions are sent whole."""
    projected = make(*FULL_RANK, "strategy.server.lr=0.5")
    plain = make("strategy.projection=none", "strategy.server.lr=0.5")
    assert projected.upload_length(1) == plain.upload_length(1) == projected.model.size
    # Rows come from two ways to the same gradients, which differ by rounding.
    torch.testing.assert_close(_play(projected, 2), _play(plain, 2), atol=1e-6, rtol=1e-5)


def test_without_noise_clip_and_draw_it_is_gradient_descent(
    make: Callable[..., FedPcdp],
) -> None:
    one = ("clients.total=1", "clients.per_round=1", "privacy.clip=1e6")
    strategy = make(
        *(*FULL_RANK, *one, "privacy.noise_multiplier=0"),
        *("strategy.local.batch=1000", "strategy.local.lr=0.5", "strategy.local.momentum=0.9"),
    )
    workload = Workload(strategy.config)
    model, shard = workload.model(), workload.shard(0)
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.5, momentum=0.9)
    start = model.vector.clone()
    for _ in range(4):
        model.loss_and_gradient(shard.inputs, shard.targets)
        optimizer.step()
    torch.testing.assert_close(_play(strategy), model.vector - start, atol=1e-5, rtol=1e-4)


def test_one_client_is_centralised_pcdp_sgd(make: Callable[..., FedPcdp]) -> None:
    """Algorithm 1 written out, with the same randomness."""
    one = ("clients.total=1", "clients.per_round=1", "strategy.local.steps=1")
    strategy = make(*one, "strategy.local.batch=27", "strategy.local.lr=0.3")
    workload, sketch = Workload(strategy.config), _directions(strategy)
    shard, model = workload.shard(0), workload.model()
    with Stream(derived_key(strategy.config.seed, "noise", 0, 1)) as stream:
        drawn = torch.from_numpy(np.flatnonzero(stream.uniform(54) < 0.5))
        noise = torch.from_numpy(0.1 * stream.gaussian(sketch.shape[0]))
    batch = shard.take(drawn)
    rows = sketch.forward(PerExample(model).gradients(batch.inputs, batch.targets)).double()
    clipped = rows * (0.1 / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)
    expected = -0.3 * sketch.adjoint((clipped.sum(dim=0) + noise) / 27)
    torch.testing.assert_close(_play(strategy).double(), expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("projection", ["before", "after", "none"])
def test_secure_aggregation_gives_the_plain_sum(
    make: Callable[..., FedPcdp], projection: str
) -> None:
    asked = (f"strategy.projection={projection}", "strategy.local.steps=2")
    plain = _play(make(*asked))
    masked = _play(make(*asked, "secagg=pairwise", "secagg.bits=32"))
    # Up to the rounding to the ring of 32 bits, and of the plain upload to float32.
    torch.testing.assert_close(masked, plain, atol=1e-6, rtol=1e-4)


def test_the_cnn_sends_490_numbers_and_a_fortieth_of_the_bytes() -> None:
    sizes = {}
    for name in ("fedpcdp", "dp_fedavg"):
        config = compose(
            small(
                f"strategy={name} model=cnn data.shape=[1,28,28] data.classes=10",
                "data.examples=1200 data.public=200",
                "privacy.clip=0.1 privacy.epsilon=null privacy.noise_multiplier=4",
                clients=10,
            )
        )
        workload = Workload(config)
        strategy = built(config, workload, workload.model())
        shape = strategy.mechanism(1, 10).ring
        assert shape is not None
        sizes[name] = shape.dim * shape.bits
        assert strategy.upload_length(1) == (490 if name == "fedpcdp" else 26_010)
    assert sizes["fedpcdp"] <= sizes["dp_fedavg"] / 40


@pytest.mark.parametrize("clipping", ["automatic", "normalised", "adaptive"])
def test_clipping_functions_bound_every_row(make: Callable[..., FedPcdp], clipping: str) -> None:
    settings = make(f"strategy.clipping={clipping}").settings
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(200, 21, generator=generator) * torch.logspace(-12, 6, 200)[:, None]
    rows[0] = 0
    norms = scaled(rows, settings, 0.1).norm(dim=1)
    assert float(norms.max()) <= 0.1 * (1 + 1e-6)
    assert norms[0] == 0
    assert float(norms[-1]) == pytest.approx(0.1, rel=1e-4)  # large rows keep the whole clip
    norm, r = 0.03, settings.stabiliser
    row = torch.full((1, 9), norm / 3)
    expected = {
        "automatic": norm / (norm + r),
        "normalised": 1.0,
        "adaptive": norm / (norm + r / (norm + r)),
    }[clipping]
    assert float(scaled(row, settings, 0.1).norm()) == pytest.approx(0.1 * expected, rel=1e-5)


def test_directions_are_kept_between_refreshes_and_through_a_resume(
    make: Callable[..., FedPcdp],
) -> None:
    strategy = make("strategy.refresh=2")
    prints = []
    for round in (1, 2, 3):
        _play(strategy)  # the model moves on
        prints.append(_directions(strategy, round).fingerprint())
    assert prints[0] == prints[1] != prints[2]
    other = make("strategy.refresh=2")
    other.load_state_dict(strategy.state_dict())
    other.model.load(strategy.model.vector + 1)
    assert _directions(other, 4).fingerprint() == prints[2]


@pytest.mark.parametrize(
    ("blocks", "different"), [("independent", True), ("random", True), ("fixed", False)]
)
def test_public_blocks(make: Callable[..., FedPcdp], blocks: str, different: bool) -> None:
    strategy = make(f"strategy.blocks={blocks}")
    taken = [strategy._public_block(refresh).inputs for refresh in range(5)]
    assert {len(block) for block in taken} == {8}
    assert torch.equal(taken[0], taken[1]) is not different
    if blocks == "independent":  # four disjoint blocks of 36, then from the start again
        assert len(torch.cat(taken[:4]).flatten(1).unique(dim=0)) == 32
        assert torch.equal(taken[4], taken[0])


def test_rate_and_expected_batch_are_the_same_for_unequal_clients(
    make: Callable[..., FedPcdp],
) -> None:
    strategy = make("data/partition=by_size", "strategy.local.batch=3")
    mechanism = strategy.mechanism(1, 6)
    assert isinstance(mechanism, NoisyTraining)
    assert mechanism.rate == pytest.approx(3 / 9)
    assert mechanism.batch == pytest.approx(3)
    assert mechanism.rows == strategy.workload.largest_shard > 9


def test_every_adversary_sees_the_steps_of_one_device(make: Callable[..., FedPcdp]) -> None:
    strategy = make("clients.per_round=4")
    shown = strategy.releases(1, 4, 3)
    assert set(shown) == set(Against)
    for release in shown.values():
        assert release.sampling == Poisson(3 / 9, Unit.EXAMPLE, DrawnBy.DEVICE)
        assert (release.times, release.unit) == (4, Unit.EXAMPLE)
    assert (
        len({replace(one, adversary=shown[Against.MODEL].adversary) for one in shown.values()}) == 1
    )
    sentence = guarantee(strategy)
    assert "A round has 4 steps" in sentence
    assert "whatever the other clients do" in sentence


def test_the_papers_accounting_gives_more_noise_and_says_its_epsilon(
    make: Callable[..., FedPcdp],
) -> None:
    asked = ("privacy.noise_multiplier=null", "privacy.epsilon=2")
    exact, paper = make(*asked), make(*asked, "privacy.accounting=paper")
    assert 1.01 < paper.noise.noise_multiplier / exact.noise.noise_multiplier < 1.5
    assert "The paper's conversion gives epsilon 2." in paper.remarks()
    assert "conversion" not in exact.remarks()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("privacy.unit=client",), "privacy.unit=example"),
        (("strategy.local.batch=0",), "strategy.local.batch"),
        (("strategy.local.epochs=1",), "strategy.local.epochs=null"),
        (("strategy.rank=9",), "lower strategy.rank"),
    ],
)
def test_settings_that_do_not_fit_are_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(small(*NOISY, *overrides))


def test_public_data_is_asked_for_where_it_is_needed(make: Callable[..., FedPcdp]) -> None:
    with pytest.raises(DataError, match=r"data\.public"):
        make("data.public=0")
    with pytest.raises(DataError, match=r"raise data\.public"):
        make("data.public=7")
    make("data.public=0", "strategy.projection=none")


def test_other_strategies_do_not_train_with_this_mechanism_nor_this_one_with_theirs(
    make: Callable[..., FedPcdp], make_strategy: MakeStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, other = make(), make_strategy("strategy=dp_fedavg", "privacy=example")
    pairs: list[tuple[Any, Any]] = [
        (strategy, other.mechanism(1, 6)),
        (other, strategy.mechanism(1, 6)),
    ]
    for asked, mechanism in pairs:
        grid = LocalGrid(app, 6)
        monkeypatch.setattr(asked, "mechanism", lambda *_, chosen=mechanism: chosen)
        messages = ask(asked, 1, grid)
        replies = list(grid.send_and_receive(messages))
        assert all(reply.has_error() for reply in replies)


def test_a_trainee_tells_of_the_examples_in_rows_only(make: Callable[..., FedPcdp]) -> None:
    """Moves and uploads follow from what the mechanism hands in, not from the data."""
    strategy = make("strategy.projection=after")
    sketch = _directions(strategy)
    shards = [strategy.workload.shard(client) for client in (0, 1)]
    update = torch.randn(21, generator=torch.Generator().manual_seed(1))
    made = []
    for shard in shards:
        model = strategy.workload.model()
        training = Training(model, shard, sketch, strategy.settings, 0.1)
        training.step(update)
        made.append((model.vector, training.upload(update)))
    assert torch.equal(made[0][0], made[1][0])
    assert torch.equal(made[0][1], made[1][1])
