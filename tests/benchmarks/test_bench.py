"""What `make bench` does with scripts, and that it knows all of them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_driver", BENCHMARKS / "bench.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_every_script_is_run_or_known_to_be_something_else(bench: ModuleType) -> None:
    run = [script.name for script in bench.SCRIPTS]
    known = [*run, *(name for names in bench.OTHERS.values() for name in names)]
    assert sorted(known) == sorted(path.stem for path in BENCHMARKS.glob("*.py"))


def test_the_page_has_every_table_and_tells_what_failed(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text("import sys; print('ratio 2.00 of', sys.argv[1])")
    (tmp_path / "broken.py").write_text("print('half a table'); raise SystemExit('no room')")
    scripts = [
        bench.Script("fine", "What works", ("peer",)),
        bench.Script("broken", "What does not"),
        bench.Script("lonely", "What is alone", needs="no_such_module", install="pip install it"),
    ]
    page = tmp_path / "page.md"
    assert bench.run(scripts, page, tmp_path) == 1
    text = page.read_text()
    for expected in (
        "`python benchmarks/fine.py peer`",
        "```text\nratio 2.00 of peer\n```",
        "**Failed** with exit code 1: `no room`",
        "half a table",
        "no_such_module is not installed. `pip install it` adds it.",
        "; load before: ",
        "| torch |",
    ):
        assert expected in text, expected
    (tmp_path / "fine.py").write_text("print('ratio 3.00')")
    assert bench.run(scripts[:1], page, tmp_path) == 0
    again = page.read_text()
    assert "ratio 3.00" in again
    assert "ratio 2.00" not in again
    assert again.count("## What") == 3  # the other sections stay as they were


def test_a_script_that_hangs_is_ended(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "LIMIT", 0.2)
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    assert bench.run([bench.Script("slow", "Slow")], tmp_path / "page.md", tmp_path) == 1
    assert "not ready after 0.2 seconds" in (tmp_path / "page.md").read_text()
