"""Frozen features in front of a model: who sees them, and where they are kept."""

import logging
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsketch.conf import Config, compose
from fedsketch.conf.plugins import implementation
from fedsketch.errors import ConfigError, ModelError
from fedsketch.tasks.data.examples import Examples
from fedsketch.tasks.models import features
from fedsketch.tasks.models.features import kept_in, seen_through
from fedsketch.tasks.models.plugin_features import edition_of, own_map
from fedsketch.tasks.models.scattering import scattering
from fedsketch.tasks.workload import Workload

DIGITS = ["data=digits", "model.features=scattering", "model=logistic", "device=cpu"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(features.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "features" / "scattering"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images were computed, call by call."""
    counts: list[int] = []

    def watched(images: torch.Tensor) -> torch.Tensor:
        counts.append(len(images))
        return scattering(images)

    monkeypatch.setattr(features, "scattering", watched)
    return counts


def _files(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def _images(count: int = 5) -> Examples:
    inputs = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    return Examples(inputs, torch.arange(count))


def _config(*overrides: str) -> Config:
    return compose([*DIGITS, "clients.total=50", "clients.per_round=50", *overrides])


def test_all_that_meets_the_model_comes_through_the_map_and_the_data_stay_as_they_are() -> None:
    workload, plain = (
        Workload(_config("data.public=30")),
        Workload(_config("data.public=30", "model.features=null")),
    )
    assert workload.data_shape == plain.data_shape
    assert workload.largest_shard == plain.largest_shard
    for seen, raw in (
        (workload.shard(2), plain.shard(2)),
        (workload.public, plain.public),
        (workload.test, plain.test),
    ):
        assert seen.shape == (81, 2, 2)
        assert torch.equal(seen.targets, raw.targets)
        expected = torch.nn.functional.group_norm(scattering(raw.inputs), 27)
        torch.testing.assert_close(seen.inputs, expected, rtol=1e-4, atol=1e-4)
    assert workload.parameters == workload.model().size == 10 * (81 * 2 * 2 + 1)
    workload.model().module(workload.test.inputs[:3])


def test_a_devices_own_examples_come_through_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "own.npz", inputs=np.ones((4, 1, 8, 12), np.uint8), targets=np.arange(4))
    monkeypatch.setenv("FEDSKETCH_DATA", str(tmp_path / "own.npz"))
    workload = Workload(_config("data=folder", "data.shape=[1,8,12]"))
    assert workload.shard(7).shape == (81, 2, 3)
    assert workload.data_shape.shape == (1, 8, 12)


def test_groups_of_channels_are_normalised_within_an_example() -> None:
    # Far above what keeps the norm from dividing by zero.
    loud = Examples(100 * _images().inputs, _images().targets)
    made = features.seen_through("scattering", loud).inputs
    groups = made.view(5, 27, -1)
    assert groups.mean(2).abs().max() < 1e-4
    torch.testing.assert_close(groups.var(2, correction=0), torch.ones(5, 27), rtol=0.05, atol=0)


def test_an_example_is_computed_once(cache: Path, computed: list[int]) -> None:
    """By content: in another order, among others and in another process's object it is the same example."""
    whole = features.seen_through("scattering", _images())
    assert computed == [5]
    assert len(_files(cache)) == 5
    order = torch.tensor([3, 1])
    again = features.seen_through("scattering", _images().take(order))
    assert computed == [5]
    assert torch.equal(again.inputs, whole.inputs[order])
    assert again.targets.tolist() == [3, 1]
    changed = _images()
    changed.inputs[2, 0, 0, 0] += 1
    features.seen_through("scattering", changed)
    assert computed == [5, 1]
    assert len(features.seen_through("scattering", _images(0))) == 0


def test_the_cache_is_its_users_alone(cache: Path) -> None:
    features.seen_through("scattering", _images())
    for path in (cache, cache.parent, *cache.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("harm", ["cut", "bit", "empty"])
def test_a_damaged_file_is_made_again(harm: str, cache: Path, computed: list[int]) -> None:
    whole = features.seen_through("scattering", _images())
    victim = _files(cache)[0]
    data = victim.read_bytes()
    flipped = bytes([data[0] ^ 1]) + data[1:]
    victim.write_bytes({"cut": data[:-1], "bit": flipped, "empty": b""}[harm])
    again = features.seen_through("scattering", _images())
    assert computed == [5, 1]
    torch.testing.assert_close(again.inputs, whole.inputs, rtol=1e-4, atol=1e-4)
    features.seen_through("scattering", _images())
    assert computed == [5, 1]


def test_without_a_place_features_are_computed_anew_and_the_log_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    computed: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(features.CACHE_VARIABLE, str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert features.seen_through("scattering", _images()).shape == (81, 2, 2)
        features.seen_through("scattering", _images())
    assert computed == [5, 5]
    assert "set FEDSKETCH_CACHE to a folder" in caplog.text


def test_a_full_disk_is_left_alone(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = shutil.disk_usage("/")._replace(total=1_000_000, free=106_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with caplog.at_level(logging.WARNING):
        features.seen_through("scattering", _images(5))  # 1,296 bytes each
        assert _files(cache) == []
        assert "less than a tenth of the disk would be free" in caplog.text
    features.seen_through("scattering", _images(4))
    assert len(_files(cache)) == 4


@pytest.mark.parametrize("shape", [(1, 4, 8), (1, 10, 8)])
def test_images_of_other_sizes_are_refused_before_data_are_read(shape: tuple[int, ...]) -> None:
    config = _config("data=folder", f"data.shape=[{','.join(map(str, shape))}]")
    with pytest.raises(ModelError, match=r"multiples of 4 and at least 8.*model\.features=null"):
        _ = Workload(config).parameters


def test_a_configuration_selects_among_known_maps_only() -> None:
    with pytest.raises(ConfigError, match=r"no feature map 'os\.system'.*scattering"):
        _config("model.features=os.system")


# ---------------------------------------------------------------------- maps of installed packages
OWN = """
import torch
from torch import Tensor
from torch import nn

class Centred(nn.Module):
    "Less the mean of the batch: what a map must not do."

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Dropout(0.9), nn.BatchNorm1d(3))
        for parameter in self.parameters():
            nn.init.constant_(parameter, WEIGHT)
        self.seen = []

    def forward(self, inputs):
        self.seen.append((len(inputs), self.training, torch.is_grad_enabled()))
        return self.body(inputs) + inputs.mean(dim=0).sum()

def make(shape):
    return Centred(), AFTER
"""
Install = Callable[..., None]


@pytest.fixture
def own(install: Install) -> Iterator[Callable[..., None]]:
    """Installs the map `own`, with these weights and the shape that it says to make."""
    own_map.cache_clear()

    def call(package: str = "plugin_map", weight: float = 0.5, after: str = "(3,)") -> None:
        own_map.cache_clear()
        implementation.cache_clear()
        code = OWN.replace("WEIGHT", str(weight)).replace("AFTER", after)
        files = {"__init__.py": code}
        install(package, files, {"fedsketch.features": f"own = {package}:make"})

    yield call
    own_map.cache_clear()


def test_a_map_of_an_installed_package_is_in_front_of_any_model(own: Install) -> None:
    own()
    workload, plain = (
        Workload(_config("model.features=own")),
        Workload(_config("model.features=null")),
    )
    assert workload.parameters == workload.model().size == 10 * (3 + 1)
    seen, raw = workload.shard(1), plain.shard(1)
    assert seen.shape == (3,)
    for made, example in zip(seen.inputs, raw.inputs, strict=True):
        # All weights and the shift are a half, twice the sum of the example, and batch norm with the statistics of a
        # new layer.
        total = 0.5 * (0.5 * example.sum() + 0.5) / (1 + 1e-5) ** 0.5 + 0.5 + example.sum()
        torch.testing.assert_close(made, total.expand(3), rtol=1e-4, atol=1e-4)
    workload.model().module(seen.inputs)


def test_its_module_sees_one_example_at_a_time_and_is_not_in_training(own: Install) -> None:
    own()
    together = features.seen_through("own", _images()).inputs
    module = own_map("own", (1, 8, 8)).module
    assert module.seen == 5 * [(1, False, False)]
    assert not any(parameter.requires_grad for parameter in module.parameters())
    shutil.rmtree(features.kept_in())
    for i in range(5):
        alone = features.seen_through("own", _images().take(torch.tensor([i]))).inputs
        assert torch.equal(alone[0], together[i])


def test_its_features_are_kept_until_its_parameters_or_its_package_change(own: Install) -> None:
    own()
    first = features.seen_through("own", _images()).inputs
    seen = own_map("own", (1, 8, 8)).module.seen
    assert torch.equal(features.seen_through("own", _images()).inputs, first)
    assert len(seen) == 5
    kept = features.kept_in() / "own"
    assert len(_files(kept)) == 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsketch.tasks.models.plugin_features.release", lambda *_: "plugin_map 2.0")
        own_map.cache_clear()
        assert torch.equal(features.seen_through("own", _images()).inputs, first)
        assert len(_files(kept)) == 10
    own_map.cache_clear()
    again = own_map("own", (1, 8, 8))
    editions = {edition_of("own", again.module), again.edition}
    assert len(editions) == 1
    again.module.body[3].running_mean.add_(1)
    editions.add(edition_of("own", again.module))
    again.module.body[1].weight.data[0, 0] += 1
    editions.add(edition_of("own", again.module))
    assert len(editions) == 3


def test_a_map_that_makes_another_shape_than_it_says_is_refused(own: Install) -> None:
    own(after="(4,)")
    with pytest.raises(ModelError, match=r"features=own makes \(3,\).*says \(4,\)"):
        features.seen_through("own", _images())


def test_an_example_at_which_a_map_raises_leaves_its_place_blank(
    own: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The features of the others are those that they have without it, and the log repeats nothing of it."""
    own()
    images = _images(5)
    good = seen_through("own", images)
    module = own_map("own", (1, 8, 8)).module
    forward = module.forward

    def refusing(inputs: Tensor) -> Tensor:
        if torch.equal(inputs[0], images.inputs[3]):
            raise ValueError("a record of a kind")
        return forward(inputs)

    monkeypatch.setattr(module, "forward", refusing)
    for file in _files(kept_in()):
        file.unlink()
    found = seen_through("own", images.in_places())
    assert found.present is not None
    assert found.present.tolist() == [True, True, True, False, True]
    assert torch.equal(found.there().inputs, good.inputs[found.present])
    assert "cannot be computed (ValueError)" in caplog.text
    assert "a record of a kind" not in caplog.text


def test_features_in_places_have_the_same_bits_whatever_is_already_there() -> None:
    images = _images(9)
    once = seen_through("scattering", images.in_places()).inputs
    first = images.take(torch.arange(4))
    assert torch.equal(seen_through("scattering", first.in_places()).inputs, once[:4])
    for file in _files(kept_in())[::2]:
        file.unlink()
    assert torch.equal(seen_through("scattering", images.in_places()).inputs, once)
