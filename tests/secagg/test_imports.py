"""The package stands alone and starts fast."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import fedsketch.secagg

ALLOWED = {"cryptography", "flwr", "numpy", "secagg"}
FLOWER = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}


def test_no_name_of_secagg_imports_torch() -> None:
    code = "import sys; from fedsketch.secagg import *; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_the_declared_packages_are_imported() -> None:
    for path in Path(fedsketch.secagg.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                if name.startswith("fedsketch.secagg") or name == "fedsketch.lazy":
                    continue
                assert top in ALLOWED or top in sys.stdlib_module_names, f"{path.name}: {name}"
                assert top != "flwr" or name in FLOWER, f"{path.name}: {name}"
                assert name not in ("random", "pickle"), f"{path.name}: {name}"
