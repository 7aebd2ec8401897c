"""Checkpoints are whole, few, private and bound to their configuration."""

import json
import stat
from pathlib import Path

import pytest
import torch

from fedsketch.conf import compose, to_json
from fedsketch.errors import CheckpointError
from fedsketch.server.checkpoint import Checkpoint
from tests.small import small


def _checkpoint(round: int, config: str = "{}") -> Checkpoint:
    return Checkpoint(
        config=config,
        round=round,
        model=torch.arange(5.0) + round,
        strategy={"optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "lr": 0.1}},
        accounts='{"model": {}}',
        cohort_key=(1 << 127) + 12345,
        seconds=1.5,
        traffic=(10.0, 20.0),
        attempts=4,
    )


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    saved = _checkpoint(3)
    saved.save(tmp_path)
    loaded = Checkpoint.load_latest(tmp_path, "{}")
    assert loaded is not None
    assert torch.equal(loaded.model, saved.model)
    assert loaded.strategy["optimizer"]["lr"] == 0.1
    assert torch.equal(loaded.strategy["optimizer"]["state"][0]["step"], torch.tensor(3.0))
    for name in ("config", "round", "accounts", "cohort_key", "seconds", "traffic", "attempts"):
        assert getattr(loaded, name) == getattr(saved, name)


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert Checkpoint.load_latest(tmp_path, "{}") is None
    assert Checkpoint.load_latest(tmp_path / "missing", "{}") is None


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    for round in (8, 9, 10, 11):
        _checkpoint(round).save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    loaded = Checkpoint.load_latest(tmp_path, "{}")
    assert loaded is not None
    assert loaded.round == 11


def test_the_newest_counts_by_round_also_beyond_a_million(tmp_path: Path) -> None:
    for round in (999_999, 1_000_000):
        _checkpoint(round).save(tmp_path)
    loaded = Checkpoint.load_latest(tmp_path, "{}")
    assert loaded is not None
    assert loaded.round == 1_000_000


def test_one_that_was_cut_off_is_ignored(tmp_path: Path) -> None:
    _checkpoint(1).save(tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    later = path.with_name(path.name.replace("1", "2")).with_suffix(".unfinished")
    later.write_bytes(whole[: len(whole) // 2])
    loaded = Checkpoint.load_latest(tmp_path, "{}")
    assert loaded is not None
    assert loaded.round == 1


def test_a_failing_write_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _checkpoint(1).save(tmp_path)

    def full(state: object, file: object) -> None:
        file.write(b"half of")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="No space"):
            _checkpoint(2).save(tmp_path)
    loaded = Checkpoint.load_latest(tmp_path, "{}")
    assert loaded is not None
    assert loaded.round == 1
    _checkpoint(2).save(tmp_path)  # and the next one is not disturbed by the leftover
    assert Checkpoint.load_latest(tmp_path, "{}").round == 2  # type: ignore[union-attr]


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    _checkpoint(1).save(tmp_path)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    _checkpoint(1, config='{"seed":1}').save(tmp_path)
    with pytest.raises(CheckpointError, match="another configuration"):
        Checkpoint.load_latest(tmp_path, '{"seed":2}')


def test_a_damaged_checkpoint_is_refused_with_a_sentence(tmp_path: Path) -> None:
    _checkpoint(1).save(tmp_path)
    (path,) = tmp_path.iterdir()
    for damage in (b"", b"no checkpoint at all", path.read_bytes()[:200]):
        path.write_bytes(damage)
        with pytest.raises(CheckpointError, match=path.name):
            Checkpoint.load_latest(tmp_path, "{}")


def test_a_configuration_that_is_older_than_a_key_is_the_same(tmp_path: Path) -> None:
    """`strategy.broadcast` was added later, and means what runs did before."""
    config = compose(small("strategy=fed_sgm strategy.broadcast=full"))
    older = json.loads(to_json(config))
    del older["strategy"]["broadcast"]
    _checkpoint(1, json.dumps(older)).save(tmp_path)
    assert Checkpoint.load_latest(tmp_path, to_json(config)) is not None
    other = to_json(compose(small("strategy=fed_sgm strategy.broadcast=replay")))
    with pytest.raises(CheckpointError, match="another configuration"):
        Checkpoint.load_latest(tmp_path, other)
