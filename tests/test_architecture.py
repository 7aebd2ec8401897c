"""The shape of the project: imports point one way, files stay small, and everything that is needed is packed."""

import ast
import fnmatch
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from setuptools import find_packages

from fedsketch import secagg
from fedsketch.conf import compose, to_json

ROOT = Path(__file__).parent.parent
LONGEST = 400

# What each package may import of ours, beside itself.
ALLOWED = {
    "conf": {"privacy"},
    "privacy": set(),
    "secagg": set(),
    "sketching": set(),
    "tasks": {"conf", "privacy"},
    "delivery": {"conf", "privacy", "secagg", "sketching", "tasks"},
    "strategies": {"conf", "delivery", "privacy", "secagg", "sketching", "tasks"},
    "client": {"conf", "delivery", "privacy", "secagg", "sketching", "strategies", "tasks"},
    "server": {"conf", "delivery", "privacy", "secagg", "sketching", "strategies", "tasks"},
}
ALLOWED["attacks"] = {*ALLOWED, "runtime"}  # it plays everything, and nothing knows it
OURS = {*ALLOWED, "runtime"}
# What can be installed without the rest, under a name of its own: inside it everything is imported by relative names.
ALONE = {"secagg"}


def _sources() -> list[Path]:
    return sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def _below(*folders: str) -> Iterator[Path]:
    return (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def _modules(path: Path) -> Iterator[str]:
    """What a file imports, anywhere in it, by full name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(path, node)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _origin(path: Path, node: ast.ImportFrom) -> str:
    """The full name of the package or module that a file imports from."""
    if node.level == 0:
        return str(node.module)
    folder = path.parent.relative_to(ROOT).parts
    assert folder[0] in ALONE, f"{path} has a relative import"
    above = ("fedsketch", *folder)[: len(folder) + 2 - node.level]
    return ".".join([*above, *([node.module] if node.module else [])])


def _packages(path: Path) -> set[str]:
    """The packages of ours that a file imports from."""
    return {name.split(".")[1] for name in _modules(path) if name.startswith("fedsketch.")}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_one_way(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        wrong = (_packages(path) & OURS) - ALLOWED[package] - {package}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_everything_is_imported_by_its_installed_name() -> None:
    """A bare `import client` would find a user's own client.py. `secagg` alone can be installed under its own name."""
    for path in (*_sources(), *_below("tests", "benchmarks", "examples")):
        bare = {name.split(".")[0] for name in _modules(path)} & OURS
        if path.parent.name == "secagg_fedavg":
            bare -= {"secagg"}
        assert not bare, f"{path.relative_to(ROOT)} imports {sorted(bare)}"


def test_secure_aggregation_imports_no_torch() -> None:
    for path in (ROOT / "secagg").rglob("*.py"):
        assert not any(name.split(".")[0] == "torch" for name in _modules(path)), path.name


def test_others_import_from_secagg_what_it_exports() -> None:
    """So its modules can change without them. Only its own tests and benchmarks look inside; other tests play the
    protocol with `tests.secagg.protocol`."""
    own = [ROOT / "secagg", ROOT / "tests" / "secagg"]
    for path in (*_sources(), *_below("fedsketch", "tests", "examples")):
        if any(path.is_relative_to(folder) for folder in own):
            continue
        taken = {
            name.split(".")[2] for name in _modules(path) if name.startswith(f"{secagg.__name__}.")
        }
        inside = taken - set(secagg.__all__)
        assert not inside, f"{path.relative_to(ROOT)} imports {sorted(inside)} of secagg"


def test_secure_aggregation_names_no_key_of_fedsketch() -> None:
    """Its errors are for users of any app. The server adds the keys (`server.grids.config_errors`)."""
    groups = json.loads(to_json(compose([])))
    keys = {
        f"{name}.{key}"
        for name, group in groups.items()
        if isinstance(group, dict)
        for key in group
    }
    assert {"secagg.bits", "clients.tolerated_dropouts"} <= keys
    named = re.compile(rf"\b(?:{'|'.join(map(re.escape, keys))}|secagg=\w+|fedsketch)\b")
    for path in (ROOT / "secagg").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found = named.findall(node.value)
                assert not found, f"{path.relative_to(ROOT)}:{node.lineno} says {found}"


def test_every_package_has_a_link_and_is_found_by_the_installer() -> None:
    """The link in `fedsketch/` is the one place where a package is entered."""
    links = {path.name for path in (ROOT / "fedsketch").iterdir() if path.is_symlink()}
    assert (
        links == OURS == {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"fedsketch"}
    )
    for name in OURS:
        assert (ROOT / "fedsketch" / name).resolve() == ROOT / name
    folders = {path.parent for name in OURS for path in (ROOT / name).rglob("__init__.py")}
    existing = {f"fedsketch.{'.'.join(folder.relative_to(ROOT).parts)}" for folder in folders}
    assert existing | {"fedsketch"} == set(find_packages(ROOT, include=["fedsketch*"]))


def test_every_package_of_ours_goes_into_the_image() -> None:
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    modules = rules.index("!*/**/*.py")
    assert not {*OURS, "fedsketch"} & set(rules[modules:])


def test_every_configuration_file_is_packed() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = pyproject["tool"]["setuptools"]["package-data"]["fedsketch.conf"]
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


# What a module may hold besides functions and classes: names that are bound once and never written again.
_CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_WRITING = {
    "append",
    "extend",
    "add",
    "update",
    "pop",
    "popitem",
    "clear",
    "insert",
    "remove",
    "discard",
    "setdefault",
}


def _written(tree: ast.Module, names: set[str]) -> Iterator[tuple[str, int]]:
    """Where a module-level name of these is rebound by `global`, or its container is changed in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from ((name, node.lineno) for name in node.names)
        target: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            target = node.func.value if node.func.attr in _WRITING else None
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            target = next((one.value for one in targets if isinstance(one, ast.Subscript)), None)
        if isinstance(target, ast.Name) and target.id in names:
            yield target.id, node.lineno


def test_no_module_keeps_state() -> None:
    """Nothing is parked in a module between two calls. Pure functions may remember their results (`lru_cache`): that is
    their value, by content, and carries nothing from one caller to another."""
    for path in _sources():
        tree = ast.parse(path.read_text())
        names = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, _CONTAINERS)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        # A set-up at import time is no state: only what functions do counts.
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        found = [w for function in functions for w in _written(ast.Module([function], []), names)]
        assert not found, f"{path.relative_to(ROOT)} changes module-level {found}"


def _classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in _sources():
        yield from (
            (path, node)
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef)
        )


def test_a_name_of_a_class_means_one_class() -> None:
    """Whoever searches for a class finds one. Names that begin with an underscore belong to their file."""
    files: dict[str, list[str]] = {}
    for path, node in _classes():
        if not node.name.startswith("_"):
            files.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert files
    assert not {name: found for name, found in files.items() if len(found) > 1}


def test_no_class_overrides_what_a_class_of_another_file_keeps_to_itself() -> None:
    """A name with an underscore is of no concern to other files. What they may override is a hook with a public
    name."""
    for path, node in _classes():
        module = ".".join(("fedsketch", *path.relative_to(ROOT).with_suffix("").parts))
        made = getattr(import_module(module), node.name)
        own = {name for name in vars(made) if re.match(r"_[a-z]", name)}
        for base in made.__mro__[1:]:
            if base.__module__.startswith(("fedsketch.", "flwr.")) and base.__module__ != module:
                taken = own & vars(base).keys() - {"_abc_impl", "_is_protocol"}
                assert not taken, f"{module}.{node.name} overrides {taken} of {base.__name__}"


def test_only_mechanisms_make_uploads() -> None:
    """The type of what may leave a device is made by the mechanism that has bounded and blurred it, and nowhere
    else."""
    for path in _sources():
        calls = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ]
        makes = [
            call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Upload"
        ]
        inside = path.is_relative_to(ROOT / "privacy" / "mechanisms")
        assert inside or not makes, path.relative_to(ROOT)


def test_no_code_asks_which_mechanism_it_has() -> None:
    """What is to come must fit without another `if`: everything is asked of the mechanism itself."""
    kinds = {"SkellamRing", "GaussianNoise", "NoisyTraining"}
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "isinstance"
            ):
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                assert not asked & kinds, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_fed_sgm_is_known_to_its_own_files_only() -> None:
    own = {ROOT / "strategies" / "fed_sgm.py", ROOT / "conf" / "strategy" / "fed_sgm.py"}
    theorems = ROOT / "privacy" / "accounting"  # which say whom each bound holds against
    for path in set(_sources()) - own - set(theorems.glob("*.py")):
        assert "r_secret" not in _code(path), path.relative_to(ROOT)


def _code(path: Path) -> str:
    """A file without its docstrings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
