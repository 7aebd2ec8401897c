"""The command fedsketch-audit."""

from pathlib import Path

import pytest

from fedsketch.attacks import command
from fedsketch.privacy.mechanisms import skellam_ring


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["fedsketch-audit", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return int(ended.value.code or 0)


ARGUMENTS = ("strategy=dp_fedavg", "privacy=example", "--trials", "400", "--workers", "1")


def test_a_sound_run_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert run(monkeypatch, *ARGUMENTS, "--rounds", "1", "--output", str(page)) == 0
    printed = capsys.readouterr().out
    assert "No claim was proved wrong." in printed
    assert "1 rounds with 12 of 12 clients" in printed
    assert all(name in printed for name in ("model", "client", "server"))
    assert page.exists()


def test_too_little_noise_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = skellam_ring.sample_skellam
    monkeypatch.setattr(skellam_ring, "sample_skellam", lambda mu, *rest: drawn(mu // 4, *rest))
    assert run(monkeypatch, *ARGUMENTS, "--output", str(tmp_path / "page.html")) == 1
    assert "PROVED WRONG" in capsys.readouterr().out


def test_a_wrong_configuration_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "strategy=none_such") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert run(monkeypatch, "strategy=fedavg") == 2
    assert "nothing to audit" in capsys.readouterr().err
