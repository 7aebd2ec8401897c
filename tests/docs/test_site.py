"""The site builds without a warning and without a network."""

import re
import socket
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="needs the extra docs")
# Python that cannot reach anything: connections fail at once, so a build that needs one fails too.
_ALONE = """
import runpy, socket, sys

def refused(*_, **__):
    raise OSError("the site is built without a network")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refused
sys.argv = ["mkdocs", *sys.argv[1:]]
runpy.run_module("mkdocs", run_name="__main__")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def test_the_site_builds_without_warnings_and_without_a_network(site: Path) -> None:
    assert (site / "index.html").exists()
    assert (site / "reference" / "configuration" / "strategy.html").exists()
    assert not list(site.rglob("*.py"))
    assert socket.socket.connect is not None


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    """No fonts, scripts, styles or pictures of other hosts. Links may lead there."""
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link)\b[^>]*?(?:src|href)=\"?(https?:[^\"> ]+)", page.read_text()
        )
        assert not loaded, page.name


@pytest.mark.parametrize("page", ["fedsketch", "privacy", "secagg", "sketching"])
def test_the_api_has_every_name_that_a_library_exports(site: Path, page: str) -> None:
    """A name without a docstring is left out."""
    package = import_module("fedsketch" if page == "fedsketch" else f"fedsketch.{page}")
    shown = (site / "reference" / f"{page}.html").read_text()
    assert len(package.__all__) >= 2
    names = [name for name in package.__all__ if not name.startswith("__")]
    assert not [name for name in names if f'id="{package.__name__}.{name}"' not in shown]


def test_docstrings_become_links_examples_and_values(site: Path) -> None:
    shown = (site / "reference" / "privacy.html").read_text()
    assert re.search(r'href="#fedsketch.privacy.Release"><code>Release</code>', shown)
    assert "&gt;&gt;&gt; </span>" in shown
    assert "<code>CLIENT</code> = <code>'client'</code>" in shown
