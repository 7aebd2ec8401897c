"""The libraries give their names, and import what a name needs when it is used."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARIES = ("privacy", "sketching")


def _typed_imports(library: str) -> dict[str, str]:
    """What type checkers read: every name with the module that it is imported from."""
    tree = ast.parse((ROOT / library / "__init__.py").read_text())
    (branch,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(branch.test) == "TYPE_CHECKING"
    return {
        alias.name: str(node.module)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("library", LIBRARIES)
def test_type_checkers_and_python_see_the_same_names(library: str) -> None:
    package, typed = import_module(f"fedsketch.{library}"), _typed_imports(library)
    assert sorted(typed) == sorted(package.__all__) == dir(package)
    for name, module in typed.items():
        assert getattr(package, name) is getattr(import_module(module), name)


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_name_is_that_of_a_module(library: str) -> None:
    """Otherwise the name would be the function or the module, depending on what was imported before."""
    modules = {path.stem for path in (ROOT / library).glob("*.py")}
    assert not modules & set(_typed_imports(library))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_name_that_a_library_lacks_is_an_attribute_error(library: str) -> None:
    with pytest.raises(AttributeError, match=f"'fedsketch.{library}' has no attribute 'Absent'"):
        _ = import_module(f"fedsketch.{library}").Absent


def test_importing_the_libraries_imports_neither_torch_nor_numpy() -> None:
    """And the accountant needs no torch either."""
    code = """
import sys
import fedsketch.privacy, fedsketch.sketching
heavy = {"torch", "numpy", "scipy", "flwr", "dp_accounting"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from fedsketch.privacy import Accountant, SkellamRing
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
