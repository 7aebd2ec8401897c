"""The notebook in examples/notebook is stored as it was executed, and can be executed again."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
NOTEBOOK = ROOT / "examples" / "notebook" / "compare.ipynb"
LARGEST = 300_000  # bytes


def _code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _table(cells: list[Any]) -> dict[tuple[str, int], tuple[float, float]]:
    """The printed mean accuracies and kilobytes by strategy and epsilon."""
    printed = "".join("".join(o.get("text", "")) for cell in cells for o in cell["outputs"])
    lines = re.findall(r"^(\w+) +(\d+) +([\d.]+) \(.*\) +([\d.]+)$", printed, re.MULTILINE)
    return {(name, int(eps)): (float(acc), float(size)) for name, eps, acc, size in lines}


def test_the_notebook_was_executed_in_order_and_without_errors() -> None:
    cells = _code_cells(json.loads(NOTEBOOK.read_text()))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    assert all(output.get("name", "stdout") == "stdout" for output in outputs)  # no warnings
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert set(_table(cells)) == {(s, e) for s in ("dp_fedavg", "dome") for e in (2, 8)}


def test_the_notebook_is_small_and_names_no_place_on_a_machine() -> None:
    text = NOTEBOOK.read_text()
    assert len(text) < LARGEST
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("image/png", None)
    found = re.search(r"(?<![\w.:/])/(?:\w+/)+\w*|[A-Z]:\\\\", json.dumps(notebook["cells"]))
    assert found is None, found


@pytest.mark.slow
def test_the_notebook_can_be_executed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs the extra 'notebook'")
    nbclient = pytest.importorskip("nbclient", reason="needs the extra 'notebook'")
    pytest.importorskip("ipykernel", reason="needs the extra 'notebook'")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, sys.path)]))
    notebook = nbformat.read(NOTEBOOK, 4)
    stored = _table(_code_cells(notebook))
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=resources).execute()
    again = _table(_code_cells(notebook))
    assert again.keys() == stored.keys()
    for key, (accuracy, kilobytes) in again.items():
        # Single seeds at epsilon 2 lie up to 15 points apart, so means of three do by less.
        assert accuracy == pytest.approx(stored[key][0], abs=15)
        assert kilobytes == pytest.approx(stored[key][1], rel=0.02)
