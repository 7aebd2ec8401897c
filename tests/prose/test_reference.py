"""The committed reference is what the code says, and nothing that users set or read is left unexplained."""

import os
import runpy
from typing import Any

import pytest

from fedsketch.server.run_folder import RunFolder
from tests.docs.pages import DOCS, GENERATED, ROOT


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    """The program `python docs/generate`."""
    return runpy.run_path(str(DOCS / "generate"), run_name="generate")


def test_every_key_command_and_metric_is_explained(generator: dict[str, Any]) -> None:
    assert generator["gaps"]() == []


def test_the_reference_is_up_to_date(generator: dict[str, Any]) -> None:
    stale = [
        name
        for name, text in generator["pages"]().items()
        if not (GENERATED / name).exists() or (GENERATED / name).read_text() != text
    ]
    assert not stale + generator["stale"](), "run `make docs`, which writes them"


def test_every_file_of_a_run_is_explained() -> None:
    page = (GENERATED / "run_folder.md").read_text()
    folder = RunFolder(ROOT)
    files = {path.name for name, path in vars(folder).items() if name != "path"}
    assert files
    assert not {name for name in files if f"`{name}`" not in page}


def test_every_variable_of_the_environment_is_explained() -> None:
    """Those that users set; the others are for our own processes."""
    page = (DOCS / "how-to" / "deploy_by_hand.md").read_text()
    names = {
        "FEDSKETCH_RUNS",
        "FEDSKETCH_ROSTER",
        "FEDSKETCH_DEVICE",
        "FEDSKETCH_DATA",
        "FEDSKETCH_SCHEMA",
        "FEDSKETCH_CACHE",
    }
    assert not {name for name in names if name not in page}
    assert os.environ.get("FEDSKETCH_RUNS") is None  # tests are not told where runs go
