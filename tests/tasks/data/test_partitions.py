"""Partitions cover, do not overlap, leave nobody empty, and skew as they say."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedsketch.conf.plugins import FOLDER
from fedsketch.conf.settings import PartitionConfig
from fedsketch.errors import PartitionError
from fedsketch.tasks.data.partitions import (
    SCHEMES,
    _dirichlet,
    _without_empty_clients,
    class_histogram,
    partition,
)

COVERING = ("iid", "dirichlet", "shards", "by_size", "continuous")
SEEDED = tuple(scheme for scheme in SCHEMES if scheme != "natural")


def balanced(examples: int, classes: int = 10) -> torch.Tensor:
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(0))
    return order % classes


def sizes(parts: list[torch.Tensor]) -> list[int]:
    return [len(part) for part in parts]


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    scheme=st.sampled_from(COVERING),
    targets=st.lists(st.integers(0, 9), min_size=1, max_size=80),
    seed=st.integers(0, 2**32),
    alpha=st.floats(1e-3, 1e3),
    exponent=st.floats(0, 5),
    strictness=st.floats(0, 0.9),
)
def test_every_example_has_exactly_one_client_and_every_client_an_example(
    data: st.DataObject,
    scheme: str,
    targets: list[int],
    seed: int,
    alpha: float,
    exponent: float,
    strictness: float,
) -> None:
    assume(scheme != "continuous" or len(set(targets)) > 1)
    clients = data.draw(st.integers(1, len(targets)))
    shards = data.draw(st.integers(1, len(targets) // clients))
    parts = partition(
        torch.tensor(targets),
        clients,
        scheme,
        seed,
        alpha=alpha,
        shards_per_client=shards,
        exponent=exponent,
        strictness=strictness,
    )
    assert len(parts) == clients
    assert min(sizes(parts)) >= 1
    assert torch.cat(parts).sort().values.tolist() == list(range(len(targets)))
    assert all(part.dtype == torch.int64 for part in parts)
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)


@settings(max_examples=50, deadline=None)
@given(examples=st.integers(1, 60), data=st.data(), seed=st.integers(0, 2**32))
def test_one_example_gives_each_client_a_different_one(
    examples: int, data: st.DataObject, seed: int
) -> None:
    clients = data.draw(st.integers(1, examples))
    parts = partition(balanced(examples), clients, "one_example", seed)
    assert sizes(parts) == [1] * clients
    indices = torch.cat(parts)
    assert len(indices.unique()) == clients
    assert bool(((indices >= 0) & (indices < examples)).all())


@pytest.mark.parametrize("scheme", SEEDED)
def test_the_seed_alone_decides(scheme: str) -> None:
    targets = balanced(500)
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    one, same, other = (
        torch.cat(partition(targets, 6, scheme, seed, strictness=0.5)) for seed in (5, 5, 6)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert torch.equal(torch.get_rng_state(), torch_state)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_part_carries_no_other_clients_indices_when_serialised(scheme: str) -> None:
    groups = torch.arange(500) % 6
    part = partition(balanced(500), 6, scheme, 0, groups=groups)[3]
    assert part.untyped_storage().nbytes() == 8 * len(part)


def test_iid_sizes_are_equal_up_to_one() -> None:
    assert sorted(set(sizes(partition(balanced(103), 10, "iid", 0)))) == [10, 11]


def test_smaller_alpha_means_more_skew() -> None:
    """Share of a client's most frequent class, averaged over clients: 0.1 would be no skew."""
    targets = balanced(10_000)

    def skew(alpha: float) -> float:
        parts = partition(targets, 20, "dirichlet", 1, alpha=alpha)
        histogram = class_histogram(targets, parts, 10).float()
        return float((histogram.max(1).values / histogram.sum(1)).mean())

    assert skew(0.05) > 0.6
    assert 0.2 < skew(0.5) < 0.6
    assert skew(1000.0) < 0.13


def test_dirichlet_leaves_nobody_empty_where_the_draw_would() -> None:
    targets = balanced(200, classes=2)
    drawn = _dirichlet(np.random.default_rng(0), targets.numpy(), 150, 0.01)
    assert np.bincount(drawn, minlength=150).min() == 0
    assert min(sizes(partition(targets, 150, "dirichlet", 0, alpha=0.01))) == 1


def test_empty_clients_are_served_by_the_largest_and_nothing_else_moves() -> None:
    owner = np.array([0, 3, 0, 0, 3, 0, 3, 0, 4])
    repaired = _without_empty_clients(owner, 5)
    assert np.bincount(repaired).tolist() == [3, 1, 1, 3, 1]
    assert set(owner[repaired != owner]) == {0}
    assert int((repaired != owner).sum()) == 2


def test_shards_give_each_client_few_classes() -> None:
    targets = balanced(2000)
    parts = partition(targets, 50, "shards", 3, shards_per_client=2)
    present = (class_histogram(targets, parts, 10) > 0).sum(1)
    assert set(sizes(parts)) == {40}
    assert int(present.max()) == 2
    assert len(torch.cat([targets[part] for part in parts[:25]]).unique()) == 10


def test_sizes_follow_the_power_law() -> None:
    found = torch.tensor(sizes(partition(balanced(100_000), 100, "by_size", 0, exponent=1.5)))
    ranks = torch.arange(1.0, 101.0)
    law = ranks**-1.5 / (ranks**-1.5).sum() * (100_000 - 100) + 1
    assert torch.allclose(found.float(), law, atol=1.0)
    assert sizes(partition(balanced(100), 8, "by_size", 0, exponent=0.0)) == [13] * 4 + [12] * 4


def test_whole_shares_are_not_rounded_down() -> None:
    """49 examples by 1, 1/4, 1/9 are 36, 9 and 4, and each client has one already."""
    assert sizes(partition(balanced(52), 3, "by_size", 0, exponent=2.0)) == [37, 10, 5]


def test_pathological_clients_have_exactly_so_many_classes_and_share_them_evenly() -> None:
    targets = balanced(2000)
    parts = partition(targets, 50, "pathological", 3, classes_per_client=3)
    histogram = class_histogram(targets, parts, 10)
    assert ((histogram > 0).sum(1) == 3).all()
    for column in histogram.T:
        assert int(column.sum()) == 200
        held = column[column > 0]
        assert int(held.max() - held.min()) <= 1


def test_a_class_that_nobody_drew_is_left_out() -> None:
    targets = balanced(100)
    (part,) = partition(targets, 1, "pathological", 0, classes_per_client=4)
    drawn = targets[part].unique()
    assert len(drawn) == 4
    assert len(part) == 40
    assert part.tolist() == sorted(part.tolist())


def test_every_pair_of_classes_is_drawn_equally_often() -> None:
    """3 pairs of 3 classes, 3000 clients: a count beyond 1000 +- 150 is 5.8 deviations away, below 1e-7 a pair."""
    targets = balanced(9000, classes=3)
    parts = partition(targets, 3000, "pathological", 1, classes_per_client=2)
    absent = (class_histogram(targets, parts, 3) == 0).sum(0)
    assert absent.sum() == 3000
    assert ((absent - 1000).abs() < 150).all()


@pytest.mark.parametrize(
    ("scheme", "clients", "law"),
    [
        ("linear", 10, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("square", 4, [1, 4, 9, 16]),
        ("exponential", 4, [math.e**i for i in range(1, 5)]),
    ],
)
def test_sizes_rise_as_in_flwr_datasets(scheme: str, clients: int, law: list[float]) -> None:
    """Shares rounded down, and the last client gets what is left."""
    examples = 1234
    wanted = [math.floor(examples * size / sum(law)) for size in law]
    wanted[-1] += examples - sum(wanted)
    assert sizes(partition(balanced(examples), clients, scheme, 0)) == wanted
    assert torch.cat(partition(balanced(examples), clients, scheme, 0)).sort().values.tolist() == (
        list(range(examples))
    )


def test_whole_rising_shares_are_not_rounded_down() -> None:
    assert sizes(partition(balanced(330), 10, "linear", 0)) == [6 * i for i in range(1, 11)]
    assert sizes(partition(balanced(300), 4, "square", 0)) == [10, 40, 90, 160]


def test_a_rising_size_without_examples_is_refused() -> None:
    with pytest.raises(PartitionError, match=r"lower clients\.total"):
        partition(balanced(1797), 2000 // 20, "exponential", 0)


def test_continuous_goes_by_the_target_as_strictly_as_asked() -> None:
    targets = torch.rand(4000, generator=torch.Generator().manual_seed(2)) * 100

    def spread(strictness: float) -> float:
        """Deviation of the clients' means: about 28.6 if sorted, about 28.9 / sqrt(400) = 1.4 if at random."""
        parts = partition(targets, 10, "continuous", 0, strictness=strictness)
        assert sizes(parts) == [400] * 10
        return float(torch.stack([targets[part].mean() for part in parts]).std(correction=0))

    assert spread(1.0) > 28
    assert 10 < spread(0.5) < 25
    assert spread(0.0) < 4


def test_continuous_deals_equal_targets_at_random() -> None:
    """Two clients, one half zeros and one half ones, in blocks: the zeros' client is not the first half of the file by
    its order alone."""
    targets = torch.cat([torch.zeros(300), torch.ones(100)])
    first, _ = partition(targets, 2, "continuous", 0, strictness=1.0)
    assert not (targets[first] == 1).any()
    assert first.tolist() != list(range(200))


def test_natural_groups_are_the_clients_in_the_order_of_their_numbers() -> None:
    groups = torch.tensor([7, 2, 7, 5, 2, 2])
    parts = partition(torch.zeros(6, dtype=torch.int64), 3, "natural", 0, groups=groups)
    assert [part.tolist() for part in parts] == [[1, 4, 5], [3], [0, 2]]


def test_natural_says_how_many_clients_there_are() -> None:
    groups = torch.tensor([7, 2, 7, 5, 2, 2])
    with pytest.raises(PartitionError, match=r"3 natural groups.*set clients\.total=3"):
        partition(torch.zeros(6, dtype=torch.int64), 2, "natural", 0, groups=groups)
    with pytest.raises(PartitionError, match="knows its groups"):
        partition(torch.zeros(6, dtype=torch.int64), 2, "natural", 0)


@pytest.mark.parametrize("scheme", ["dirichlet", "shards", "pathological"])
@pytest.mark.parametrize("targets", [torch.rand(50), torch.ones(50, 3)])
def test_schemes_by_class_refuse_targets_that_are_none(scheme: str, targets: torch.Tensor) -> None:
    with pytest.raises(PartitionError, match="choose data/partition=iid"):
        partition(targets, 5, scheme, 0)
    assert sizes(partition(targets, 5, "iid", 0)) == [10] * 5


def test_configuration_and_code_know_the_same_schemes() -> None:
    adapter = TypeAdapter(PartitionConfig)
    for scheme in SCHEMES:
        assert adapter.validate_python({"scheme": scheme}).scheme == scheme
    files = {path.stem for path in (FOLDER / "data" / "partition").glob("*.yaml")}
    assert files == set(SCHEMES)


def test_histogram_counts_each_class_of_each_client() -> None:
    targets = torch.tensor([0, 2, 2, 1, 0])
    parts = [torch.tensor([1, 2, 4]), torch.tensor([0])]
    assert class_histogram(targets, parts, 4).tolist() == [[1, 0, 2, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_more_clients_than_examples_is_refused(scheme: str) -> None:
    with pytest.raises(PartitionError, match="choose between 1 and 9 clients"):
        partition(balanced(9), 10, scheme, 0)
    with pytest.raises(PartitionError, match="0 clients"):
        partition(balanced(9), 0, scheme, 0)


def test_impossible_settings_are_refused() -> None:
    targets = balanced(100)
    with pytest.raises(PartitionError, match=r"no partition 'random': choose one of iid"):
        partition(targets, 10, "random", 0)
    with pytest.raises(PartitionError, match="choose between 1 and 10 shards per client"):
        partition(targets, 10, "shards", 0, shards_per_client=11)
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(PartitionError, match="alpha above 0"):
            partition(targets, 10, "dirichlet", 0, alpha=alpha)
    with pytest.raises(PartitionError, match="between 1 and 10"):
        partition(targets, 10, "pathological", 0, classes_per_client=11)
    with pytest.raises(PartitionError, match="clients drew class"):
        partition(targets, 60, "pathological", 0, classes_per_client=9)
    with pytest.raises(PartitionError, match="between 0 and 1"):
        partition(targets, 10, "continuous", 0, strictness=1.5)
    with pytest.raises(PartitionError, match="nothing to sort by"):
        partition(torch.ones(100), 10, "continuous", 0)
    with pytest.raises(PartitionError, match="at least 0"):
        partition(targets, 10, "by_size", 0, exponent=-0.1)
