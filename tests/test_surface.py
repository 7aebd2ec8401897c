"""The examples use what fedsketch offers and nothing behind it: by imports, and by types against an installed wheel."""

import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import fedsketch
from tests.test_packaging import build_wheel

ROOT = Path(__file__).parent.parent
EXAMPLES = ("own_strategy", "own_task")
LIBRARIES = {"fedsketch", "fedsketch.secagg", "fedsketch.privacy", "fedsketch.sketching"}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.py")), ids=lambda p: p.name)
def test_examples_import_from_the_surface_alone(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsketch"):
            assert node.module in LIBRARIES, f"{path.name} imports from {node.module}"
            if node.module == "fedsketch":
                assert {alias.name for alias in node.names} <= {*fedsketch.__all__, "secagg"}


def test_importing_fedsketch_is_quick_and_imports_no_torch() -> None:
    code = (
        "import sys, fedsketch; assert not {'torch', 'numpy', 'flwr', 'hydra'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_type_checkers_and_python_see_the_same_names() -> None:
    for name in fedsketch.__all__:
        assert getattr(fedsketch, name) is not None
    with pytest.raises(AttributeError, match="'fedsketch' has no attribute 'Absent'"):
        _ = fedsketch.Absent  # type: ignore[attr-defined]
    typed = {
        alias.name
        for node in ast.walk(ast.parse((ROOT / "fedsketch" / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsketch.")
        for alias in node.names
    }
    defined = {"__version__", "audit", "compose", "load", "plan", "run"}
    assert set(fedsketch.__all__) - defined <= typed


@pytest.mark.slow
def test_examples_pass_a_type_checker_against_the_installed_wheel(tmp_path: Path) -> None:
    """In strict mode, in an environment that has the wheel and otherwise what this one has."""
    wheel = build_wheel(tmp_path)
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    (site,) = (environment / "lib").glob("python*/site-packages")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
            *("--disable-pip-version-check", "--target", str(site), str(wheel)),
        ],
        check=True,
    )
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others) + "\n")
    for example in EXAMPLES:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull),
                *("--python-executable", str(environment / "bin" / "python")),
                *("--cache-dir", str(tmp_path / "cache"), "-p", example),
            ],
            cwd=ROOT / "examples" / example,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
