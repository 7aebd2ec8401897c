"""What is installed and what is sent to devices: everything below one name, complete, and safe from a user's own
files."""

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
from flwr.cli.build import build_fab_from_disk

from tests.small import small

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = sorted(
    {"fedsketch", *(path.name for path in (ROOT / "fedsketch").iterdir() if path.is_symlink())}
)
TINY = small("rounds=2 hydra.run.dir=plan", clients=4)


def _python(code: str, *arguments: str, folder: Path, path: list[Path]) -> str:
    """What a fresh interpreter prints that is started in `folder` and looks for modules at `path` first."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("module", "arguments", "printed"),
    [
        ("cli", ["--help"], "Examples:"),
        pytest.param("plan_command", TINY, "epsilon against server", marks=pytest.mark.slow),
    ],
)
def test_a_users_own_files_do_not_break_the_commands(
    tmp_path: Path, module: str, arguments: list[str], printed: str
) -> None:
    for name in {*FOLDERS} - {"fedsketch"}:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('this is the file of a user')\n")
    code = f"from fedsketch.runtime.{module} import main; main()"
    assert printed in _python(code, *arguments, folder=tmp_path, path=[tmp_path, ROOT])


def build_wheel(folder: Path) -> Path:
    """Return a wheel of the project, built in this folder without the network."""
    try:
        if int(version("setuptools").split(".")[0]) < 77:
            pytest.skip("setuptools is older than pyproject.toml asks for")
    except PackageNotFoundError:
        pytest.skip("setuptools is not installed")
    source, target = folder / "source", folder / "target"
    for name in FOLDERS:
        ignored = ignore_patterns("__pycache__")
        copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / file, source)
    target.mkdir()
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    _python(code, str(target), folder=source, path=[])
    (wheel,) = target.glob("*.whl")
    return wheel


def test_a_wheel_adds_one_name_and_brings_all_configuration_files(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    names = set(zipfile.ZipFile(wheel).namelist())
    number = PYPROJECT["project"]["version"]
    assert {name.split("/")[0] for name in names} == {"fedsketch", f"fedsketch-{number}.dist-info"}
    files = [
        *(ROOT / "conf").rglob("*.yaml"),
        *(p for f in FOLDERS for p in (ROOT / f).rglob("*.py")),
    ]
    for file in files:
        parts = file.relative_to(ROOT).as_posix()
        assert (parts if parts.startswith("fedsketch/") else f"fedsketch/{parts}") in names


def test_the_apps_of_the_bundle_import_from_the_bundle_alone(tmp_path: Path) -> None:
    zipfile.ZipFile(BytesIO(build_fab_from_disk(ROOT))).extractall(tmp_path / "bundle")
    references = PYPROJECT["tool"]["flwr"]["app"]["components"]
    code = """
import sys, importlib
from fedsketch.conf import compose
compose()
for reference in sys.argv[1:]:
    module, _, name = reference.partition(":")
    print(type(getattr(importlib.import_module(module), name)).__name__)
for name, module in sys.modules.items():
    if name.split(".")[0] == "fedsketch":
        print(module.__file__)
"""
    printed = _python(
        code, *references.values(), folder=tmp_path, path=[tmp_path / "bundle"]
    ).splitlines()
    assert dict(zip(references, printed, strict=False)) == {
        "serverapp": "ServerApp",
        "clientapp": "AppByName",
    }
    files = printed[len(references) :]
    assert len(files) > 20
    assert all(Path(file).is_relative_to(tmp_path / "bundle") for file in files)
    assert not (tmp_path / "bundle" / "tests").exists()


def test_the_bundle_says_what_it_is_made_for_and_has_its_licence() -> None:
    """Flower itself checks the rest of format 1 when it builds: target, lower bound and licence."""
    bundle = zipfile.ZipFile(BytesIO(build_fab_from_disk(ROOT)))
    assert bundle.read("LICENSE") == (ROOT / "LICENSE").read_bytes()
    packed = set(bundle.namelist())
    for file in (p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        assert name in packed, f"Flower leaves {name} out of bundles: call it by another name."
    app = tomllib.loads(bundle.read("pyproject.toml").decode())["tool"]["flwr"]["app"]
    assert app["fab-format-version"] == 1
    assert app["flwr-version-target"] == version("flwr")
