"""The package stands alone and starts fast."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import fedsketch.secagg

ALLOWED = {"cryptography", "flwr", "numpy"}
FLOWER = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
FOLDER = Path(fedsketch.secagg.__file__).parent


def test_importing_secagg_does_not_import_torch() -> None:
    code = "import sys, fedsketch.secagg; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_the_declared_packages_are_imported() -> None:
    """Beside them, only modules of the package itself, by relative names."""
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level:
                depth = len(path.relative_to(FOLDER).parts)
                assert node.level <= depth, f"{path.name} imports from outside of the package"
            elif isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            for name in names:
                top = name.split(".")[0]
                assert top in ALLOWED or top in sys.stdlib_module_names, f"{path.name}: {name}"
                assert top != "flwr" or name in FLOWER, f"{path.name}: {name}"
                assert name not in ("random", "pickle"), f"{path.name}: {name}"


def test_the_folder_works_alone_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "flower_sums").symlink_to(FOLDER)
    code = (
        "import sys, flower_sums; "
        "flower_sums.PairwiseSettings.proposed(flower_sums.SecAggOptions(), "
        "1, 1, range(9), flower_sums.VectorFormat(3, 32), b''); "
        "sys.exit('fedsketch' in sys.modules or 'secagg' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
