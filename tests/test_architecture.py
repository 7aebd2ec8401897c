"""The shape of the project: imports point one way, files stay small, and everything that is needed is packed."""

import ast
import fnmatch
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LONGEST = 400

# What each package may import of ours, beside itself.
ALLOWED = {
    "conf": set(),
    "privacy": set(),
    "secagg": set(),
    "sketching": set(),
    "tasks": {"conf"},
    "strategies": {"conf", "privacy", "secagg", "sketching", "tasks"},
    "client": {"conf", "privacy", "secagg", "sketching", "strategies", "tasks"},
    "server": {"conf", "privacy", "secagg", "sketching", "strategies", "tasks"},
}
OURS = {*ALLOWED, "runtime"}


def _sources() -> list[Path]:
    return sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def _imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_one_way(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        wrong = (_imported(path) & OURS) - ALLOWED[package] - {package}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_secure_aggregation_imports_no_torch() -> None:
    for path in (ROOT / "secagg").rglob("*.py"):
        assert "torch" not in _imported(path), path.name


def test_every_package_of_ours_is_known_here_and_packed() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packed = set(pyproject["tool"]["setuptools"]["packages"])
    existing = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert existing == packed
    assert existing <= OURS


def test_every_configuration_file_is_packed() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = pyproject["tool"]["setuptools"]["package-data"]["conf"]
    for path in (ROOT / "conf").rglob("*.yaml"):
        parts = path.relative_to(ROOT / "conf").parts
        fits = [
            "**" in pattern
            or (
                len(pattern.split("/")) == len(parts)
                and all(map(fnmatch.fnmatch, parts, pattern.split("/")))
            )
            for pattern in patterns
        ]
        assert any(fits), f"{path.relative_to(ROOT)} is missing in an installed package"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout, not an archive")
def test_git_ignores_nothing_that_is_needed() -> None:
    needed = [*_sources(), *(ROOT / "conf").rglob("*.yaml"), *(ROOT / "tests").rglob("*.py")]
    names = "\n".join(str(path.relative_to(ROOT)) for path in needed)
    done = subprocess.run(
        ["git", "check-ignore", "--stdin", "--no-index"],
        input=names,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout == ""
    assert done.returncode == 1, done.stderr  # git's way to say: none of them


def test_files_stay_small() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in _sources()}
    assert lengths
    long = {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > LONGEST}
    assert not long
