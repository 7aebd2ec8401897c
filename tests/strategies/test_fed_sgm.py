"""Fed-SGM: with nothing left out it is DP-FedAvg, both halves agree on R, and each way to clip bounds what it says."""

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from fedsketch.client.app import app
from fedsketch.conf import compose
from fedsketch.conf.strategy.fed_sgm import FedSgmConfig
from fedsketch.privacy.mechanisms.randomness import Stream
from fedsketch.runtime.local import LocalGrid
from fedsketch.sketching.gaussian import GaussianSketch
from fedsketch.sketching.hadamard import HadamardSketch
from fedsketch.sketching.sketch import Sketch
from fedsketch.strategies import fed_sgm
from fedsketch.strategies.algorithm import LocalWork, Strategy
from fedsketch.strategies.noise.device import DeviceNoise
from fedsketch.strategies.rounds.codec import sketch_size, uploaded
from fedsketch.strategies.rounds.messages import Broadcast
from fedsketch.tasks.workload import Workload
from tests.rounds import ask, coordinator_of, rows_of

MakeStrategy = Callable[..., Strategy]
# These rounds are played without a Grid that delivers parcels: tests/system/test_replay.py has them.
FULL = "strategy.broadcast=full"
SGM = ("strategy=fed_sgm", FULL, "privacy.noise_multiplier=0.5", "privacy.epsilon=null")
NOISELESS = ("strategy=fed_sgm", FULL, "privacy=none", "secagg=none")
LOCAL = ("strategy.local.steps=3", "strategy.local.batch=4", "strategy.local.lr=0.2")
SECRET = ("rounds=1", "strategy.clip=before", "strategy.accounting=r_secret")


def _ask(strategy: Strategy, round: int = 1) -> Broadcast:
    """The broadcast of a round as it arrives at a device."""
    grid = LocalGrid(app, strategy.config.clients.total)
    messages = ask(strategy, round, grid)
    return Broadcast.from_records(messages[0].content)


def _play(strategy: Strategy, rounds: int) -> torch.Tensor:
    grid = LocalGrid(app, strategy.config.clients.total)
    for round in range(1, rounds + 1):
        messages = ask(strategy, round, grid)
        coordinator_of(strategy).aggregate_train(round, grid.send_and_receive(messages))
    return strategy.model.vector.clone()


# ---------------------------------------------------------------------- exactness
@pytest.mark.parametrize("noise", ["gaussian", "skellam"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "amsgrad"])
@pytest.mark.parametrize("unit", ["client", "example"])
def test_with_all_numbers_it_is_dp_fedavg_bit_by_bit(
    make_strategy: MakeStrategy, unit: str, optimizer: str, noise: str
) -> None:
    local = LOCAL if unit == "client" else ("strategy.local.steps=1", "strategy.local.batch=0")
    common = (
        *local,
        f"privacy={unit}",
        "privacy.randomness=seeded",
        f"secagg.noise={noise}",
        f"strategy.server.optimizer={optimizer}",
        "strategy.server.lr=0.3",
        "strategy.server.momentum=0.9",
    )
    sketched = make_strategy("strategy=fed_sgm", "strategy.sketch=identity", *common)
    plain = make_strategy("strategy=dp_fedavg", *common)
    before = plain.model.vector.clone()
    ends = _play(sketched, 5), _play(plain, 5)
    assert torch.equal(*ends)
    assert not torch.allclose(before, ends[0], atol=1e-2)


@pytest.mark.parametrize("sketch", ["gaussian", "hadamard", "count_sketch"])
def test_without_noise_the_server_steps_along_the_desketched_mean(
    make_strategy: MakeStrategy, sketch: str
) -> None:
    """R^T (R Delta_1 + ... ) / 6 with R as a matrix, and whole shards, so that no batch is drawn."""
    strategy = make_strategy(
        *(*NOISELESS, "strategy.local.steps=3", "strategy.local.batch=0"),
        *(f"strategy.sketch={sketch}", "strategy.sketch_dim=7", "strategy.server.lr=0.5"),
    )
    broadcast, start = _ask(strategy), strategy.model.vector.clone()
    sketched = _sketch_of(strategy, _seed(broadcast))
    matrix = sketched.forward(torch.eye(21)).T
    workload, updates = Workload(strategy.config), []
    for client in range(6):
        model = workload.model()
        row = rows_of(
            fed_sgm.FedSgmDevice(),
            LocalWork(broadcast, workload.shard(client), model, torch.Generator(), {}),
        )
        updates.append(start - model.vector)
        torch.testing.assert_close(row[0], matrix @ updates[-1], rtol=1e-4, atol=1e-6)
    expected = start - 0.5 * matrix.T @ (matrix @ torch.stack(updates).mean(dim=0))
    torch.testing.assert_close(_play(strategy, 1), expected, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(expected, start, atol=1e-3)


def _sketch_of(strategy: Strategy, seed: bytes) -> Sketch:
    assert isinstance(strategy, fed_sgm.FedSgm)
    return fed_sgm.make_sketch(strategy.settings, strategy.model.size, seed)


def _seed(broadcast: Broadcast) -> bytes:
    seed = broadcast.scalars[fed_sgm.SEED]
    assert isinstance(seed, bytes)
    assert len(seed) == 16
    return seed


# ---------------------------------------------------------------------- one R on both sides
MATRIX = """
import hashlib, sys
import torch
from fedsketch.sketching.gaussian import GaussianSketch
from fedsketch.sketching.hadamard import HadamardSketch
from fedsketch.sketching.sketch import Sketch
from tests.rounds import ask, coordinator_of

sketch = GaussianSketch(40, 30_000, int(sys.argv[1]))
print(torch.get_num_threads(), hashlib.sha256(sketch.block(slice(0, 40)).numpy().tobytes()).hexdigest())
"""


def test_devices_and_server_make_the_same_sketch_in_every_process_and_on_any_threads(
    make_strategy: MakeStrategy,
) -> None:
    strategy = make_strategy(*SGM, "strategy.sketch_dim=7")
    assert isinstance(strategy, fed_sgm.FedSgm)
    seed = int.from_bytes(_seed(_ask(strategy)), "big")
    entries = GaussianSketch(40, 30_000, seed).block(slice(0, 40)).numpy()
    expected = hashlib.sha256(entries.tobytes()).hexdigest()
    for threads in ("1", "2"):
        told = subprocess.run(
            [sys.executable, "-c", MATRIX, str(seed)],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        assert told == [threads, expected]
    # The server desketches with what it sent.
    device = _sketch_of(strategy, seed.to_bytes(16, "big"))
    server = _sketch_of(strategy, fed_sgm.public_seed(strategy.config, 1))
    assert device is not server
    assert device.fingerprint() == server.fingerprint()


def test_a_sketch_is_fresh_in_every_round_or_one_for_all(make_strategy: MakeStrategy) -> None:
    fresh = make_strategy(*SGM)
    one = make_strategy(*SGM, "strategy.seed_per=run")
    assert len({_seed(_ask(fresh, round)) for round in range(1, 6)}) == 5
    assert len({_seed(_ask(one, round)) for round in range(1, 6)}) == 1
    assert _seed(_ask(make_strategy(*SGM, "seed=1"))) != _seed(_ask(fresh))


def test_a_public_sketch_follows_from_the_runs_seed_and_a_secret_one_from_nothing(
    make_strategy: MakeStrategy,
) -> None:
    def seeds(*overrides: str) -> set[bytes]:
        return {_seed(_ask(make_strategy(*SGM, *overrides))) for _ in range(2)}

    assert len(seeds()) == 1
    assert len(seeds(*SECRET)) == 2
    assert len(seeds(*SECRET, "privacy.randomness=seeded")) == 1


def test_neither_the_sketch_nor_anything_of_its_size_is_sent(make_strategy: MakeStrategy) -> None:
    broadcast = _ask(make_strategy(*SGM))
    assert set(broadcast.arrays) == {"model"}
    assert set(broadcast.scalars) == {fed_sgm.SEED}


# ---------------------------------------------------------------------- b
@pytest.mark.parametrize(("dim", "d", "size"), [(7, 21, 7), (0.1, 1000, 100), (21, 21, 21)])
def test_the_size_is_a_number_or_a_share(dim: float, d: int, size: int) -> None:
    assert sketch_size(dim, d) == size


def test_uploads_have_as_many_numbers_as_asked_for(make_strategy: MakeStrategy) -> None:
    strategy = make_strategy(*SGM, "strategy.sketch_dim=5")
    assert strategy.noise.dim == 5
    grid = LocalGrid(app, 6)
    messages = ask(strategy, 1, grid)
    (reply, *_) = grid.send_and_receive(messages)
    assert uploaded(reply.content).shape == (5,)


# ---------------------------------------------------------------------- clipping
def _longest(clip: str, sketch: str, make_strategy: MakeStrategy) -> tuple[float, float]:
    """The clip of an upload over privacy.clip, and the norm of one whose update is far too long, without noise."""
    strategy = make_strategy(
        *("strategy=fed_sgm", "privacy.noise_multiplier=0", "privacy.epsilon=null"),
        *("strategy.local.lr=100", f"strategy.clip={clip}", f"strategy.sketch={sketch}"),
        *("strategy.sketch_dim=7", "privacy.clip=0.01"),
    )
    broadcast, workload = _ask(strategy), Workload(strategy.config)
    rows = rows_of(
        fed_sgm.FedSgmDevice(),
        LocalWork(
            broadcast, workload.shard(0), workload.model(), torch.Generator().manual_seed(1), {}
        ),
    )
    with Stream() as stream:
        sent = torch.from_numpy(broadcast.mechanism.protect(rows, stream, 1).vector)
    bound = strategy.noise.clip
    assert bound is not None
    return bound / 0.01, float(sent.norm()) / 0.01


@pytest.mark.parametrize("sketch", ["gaussian", "hadamard", "count_sketch", "identity"])
@pytest.mark.parametrize("clip", ["after", "both"])
def test_clipped_after_sketching_an_upload_is_within_the_clip(
    make_strategy: MakeStrategy, clip: str, sketch: str
) -> None:
    bound, norm = _longest(clip, sketch, make_strategy)
    assert bound == 1.0
    assert norm <= 1.0 + 1e-6
    if clip == "after":
        assert norm == pytest.approx(1.0, abs=1e-5)


def test_clipped_before_sketching_an_upload_is_as_long_as_the_sketch_makes_it(
    make_strategy: MakeStrategy,
) -> None:
    """So the noise is for the longest that it may be."""
    bound, norm = _longest("before", "gaussian", make_strategy)
    assert bound > 2.0  # seven rows: far from concentrated
    assert norm <= bound
    assert abs(norm - 1.0) > 1e-3  # not clipped to the clip itself
    assert _longest("before", "identity", make_strategy)[0] == 1.0


@pytest.mark.parametrize("clip", ["before", "both"])
def test_clipped_before_sketching_the_update_is_what_is_bounded(
    make_strategy: MakeStrategy, clip: str
) -> None:
    common = ("strategy=fed_sgm", "privacy.clip=0.01", "strategy.sketch_dim=7")
    rows = []
    for choice in (clip, "after"):
        strategy = make_strategy(*common, f"strategy.clip={choice}")
        broadcast, workload = _ask(strategy), Workload(strategy.config)
        model = workload.model()
        generator = torch.Generator().manual_seed(1)
        rows.append(
            rows_of(
                fed_sgm.FedSgmDevice(),
                LocalWork(broadcast, workload.shard(0), model, generator, {}),
            )
        )
        length = float((strategy.model.vector - model.vector).norm())
    assert length > 0.1
    torch.testing.assert_close(rows[0], rows[1] * 0.01 / length, rtol=1e-4, atol=1e-7)


def test_an_update_made_for_the_sketch_is_cut_at_the_bound(make_strategy: MakeStrategy) -> None:
    """Who knows R finds a direction that it makes longer than any bound on the update alone says."""
    strategy = make_strategy(
        *("strategy=fed_sgm", "strategy.clip=before", "strategy.sketch_dim=100"),
        *("data.shape=[1,20,50]", "data.classes=10", "privacy.noise_multiplier=0"),
        "privacy.epsilon=null",
    )
    mechanism, clip = strategy.mechanism(1, 6), strategy.config.privacy.clip
    assert clip is not None
    sketch = _sketch_of(strategy, bytes(16))
    x = torch.ones(strategy.model.size)
    for _ in range(30):  # power iteration: the top right singular vector of R
        x = sketch.adjoint(sketch.forward(x))
        x *= clip / x.norm()
    row = sketch.forward(x)
    bound = mechanism.bound
    assert bound is not None
    assert float(row.norm()) > 2 * bound
    with Stream() as stream:
        sent = torch.from_numpy(mechanism.protect(row.unsqueeze(0), stream, 1).vector)
    assert float(sent.norm()) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("noise", ["gaussian", "skellam"])
def test_the_noise_is_in_proportion_to_what_an_upload_may_be(
    make_strategy: MakeStrategy, noise: str
) -> None:
    common = (*SGM, f"secagg.noise={noise}", "strategy.sketch_dim=7", "privacy.clip=0.2")
    after, before = (
        make_strategy(*common, f"strategy.clip={clip}").noise for clip in ("after", "before")
    )
    assert _deviation(after) == pytest.approx(0.5 * 0.2, rel=1e-2)
    assert before.clip is not None
    assert before.clip > 2 * 0.2
    assert _deviation(before) == pytest.approx(0.5 * before.clip, rel=1e-2)


def _deviation(noise: DeviceNoise) -> float:
    return noise.mechanism(6).noise_std(noise.variance(6, 6))


def _settings(sketch: str, dim: int) -> FedSgmConfig:
    common = ("strategy=fed_sgm", "strategy.clip=before", f"strategy.sketch={sketch}")
    settings = compose([*common, f"strategy.sketch_dim={dim}"]).strategy
    assert isinstance(settings, FedSgmConfig)
    return settings


@pytest.mark.parametrize("rows", [1, 50, 2545])
def test_a_gaussian_sketch_is_longer_than_its_bound_once_in_1e20(rows: int) -> None:
    """|R x|^2 is chi^2_b / b for a unit x. By the tail of the incomplete gamma function, Q(b/2, b k^2 / 2)."""
    k = fed_sgm.stretch_by_sketch(_settings("gaussian", rows), 25_450)
    tail = torch.special.gammaincc(
        torch.tensor(rows / 2, dtype=torch.float64),
        torch.tensor(rows * k**2 / 2, dtype=torch.float64),
    )
    assert math.log10(float(tail)) == pytest.approx(-20, abs=0.1)


@pytest.mark.parametrize(("dim", "d"), [(3, 10), (10, 10), (20, 100), (64, 64)])
def test_no_vector_becomes_longer_in_a_hadamard_sketch_than_its_bound(dim: int, d: int) -> None:
    bound = fed_sgm.stretch_by_sketch(_settings("hadamard", dim), d)
    for seed in range(5):
        dense = HadamardSketch(dim, d, seed).forward(torch.eye(d).double())
        largest = float(torch.linalg.matrix_norm(dense, 2))
        assert largest <= bound * (1 + 1e-9)
        if d == 64:  # nothing is padded: it is met
            assert largest == pytest.approx(bound)
