"""The import of torchvision beside a torch that lacks its operators."""

import os
import subprocess
import sys
from pathlib import Path

from fedsketch.tasks.data import torchvision_import

ROOT = Path(__file__).parents[3]

# Fails as the real one does when its C++ operators did not load, on any machine.
STAND_IN = """
import torch
torch.library.register_fake("torchvision::nms")(lambda dets, scores, threshold: dets)
torch.library.register_fake("torchvision::qnms")(lambda dets, scores, threshold: dets)
"""


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_missing_operators_are_declared_and_the_import_succeeds(tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(STAND_IN)
    (package / "datasets.py").write_text("NAME = 'stand-in'\n")
    done = run(
        tmp_path,
        "from fedsketch.tasks.data import torchvision_import\n"
        "try:\n    import torchvision\n"
        "except RuntimeError as error:\n    print(error)\n"
        "print(torchvision_import.datasets().NAME)\n",
    )
    assert done.stdout == "operator torchvision::nms does not exist\nstand-in\n", done.stderr


def test_other_errors_of_the_import_are_not_hidden(tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('something else')\n")
    done = run(tmp_path, "from fedsketch.tasks.data import torchvision_import as t; t.datasets()")
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: something else\n")


def test_the_installed_torchvision_has_the_data_sets() -> None:
    module = torchvision_import.datasets()
    assert module.MNIST.__module__ == "torchvision.datasets.mnist"
    assert torchvision_import.datasets() is module
