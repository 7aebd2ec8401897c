"""Every block of commands runs as it is written, or says why it cannot.

A comment before a block says how: `<!-- run: slow -->` runs it in the long run, `<!-- run by: FILE -->` names the test
that does, `<!-- not run: REASON -->` why nobody does. A block without a comment runs in the default run, so it must be
quick. The blocks of a page run in their order, in one folder.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import (
    DOCS,
    ROOT,
    Block,
    blocks,
    by_folder,
    is_generated,
    name_of,
    pages,
)

READ = [p for p in pages() if (p.is_relative_to(DOCS) or p.parent == ROOT)]
_SHORTEST_REASON = 10
_QUICK = 60.0  # seconds, on a machine that is busy with other tests
_PATIENT = 1800.0


def _runs(block: Block) -> bool:
    if block.language == "python":
        return block.mark == "run"
    return block.is_commands and block.mark in (None, "run")


def _is_slow(block: Block) -> bool:
    return block.mark == "run" and block.note == "slow"


QUICK = [p for p in READ if any(_runs(b) and not _is_slow(b) for b in blocks(p))]
SLOW = [p for p in READ if any(_runs(b) and _is_slow(b) for b in blocks(p))]


def _play(block: Block, folder: Path, patience: float) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["bash", "-euc"] if block.is_commands else [sys.executable, "-c"]
    done = subprocess.run(
        [*command, block.text],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
    )
    assert done.returncode == 0, f"{block.where}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the commands of a checkout need of it."""
    for name in ("examples", "docker", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.parametrize("page", QUICK, ids=name_of)
def test_quick_blocks_run(page: Path, folder: Path) -> None:
    found = blocks(page)
    for block, following in zip(found, [*found[1:], None], strict=True):
        if _runs(block) and not _is_slow(block):
            printed = _play(block, folder, _QUICK)
            if block.note == "prints the block below":
                assert following is not None
                assert printed == following.text, block.where


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("page", SLOW, ids=name_of)
def test_all_blocks_run(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if _runs(block):
            _play(block, folder, _PATIENT)


@by_folder(READ)
def test_what_does_not_run_says_why(pages_of_folder: list[Path]) -> None:
    for block in (block for page in pages_of_folder for block in blocks(page)):
        if block.mark == "not run":
            assert len(block.note) >= _SHORTEST_REASON, block.where
        elif block.mark == "run by":
            file = block.note.split(",")[0].split()[0]
            assert (ROOT / file).exists(), f"{block.where}: there is no {file}"
            assert block.page.name in (ROOT / file).read_text() or "which" in block.note, (
                block.where
            )
        elif block.mark == "run":
            assert block.note in ("", "slow", "prints the block below"), block.where
        elif block.language == "python" and not is_generated(block.page):
            pytest.fail(f"{block.where}: say whether it runs, in a comment before it")


def test_the_commands_of_the_docs_are_found() -> None:
    """A change of the marks must not make all tests above empty."""
    found = [block for page in READ for block in blocks(page)]
    assert sum(map(_runs, found)) >= 15
    assert sum(_runs(b) and not _is_slow(b) for b in found) >= 3
