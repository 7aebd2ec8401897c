"""The files that a public repository needs beside its code: they parse, agree on the version, and point at what is
there."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import processors

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PYPROJECT["project"]["version"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
YAML_FILES = [
    *FORMS,
    *sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    ROOT / ".github" / "dependabot.yml",
    ROOT / ".pre-commit-config.yaml",
    ROOT / "CITATION.cff",
]
PAGES = [
    ROOT / "CHANGELOG.md",
    ROOT / "CODE_OF_CONDUCT.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md",
]


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_yaml_files_hold_a_mapping(path: Path) -> None:
    assert isinstance(_yaml(path), dict)


def test_the_newest_release_in_the_changelog_is_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    version, date = releases[0]
    assert version == VERSION
    citation = _yaml(ROOT / "CITATION.cff")
    assert (citation["version"], citation["date-released"]) == (VERSION, date)
    assert "## [Unreleased]" in text


def test_the_five_papers_are_cited_with_authors_and_address() -> None:
    papers = _yaml(ROOT / "CITATION.cff")["references"]
    assert len(papers) == 5
    for paper in papers:
        assert paper["url"].startswith("https://arxiv.org/abs/")
        assert all({"given-names", "family-names"} == set(author) for author in paper["authors"])
        assert all(isinstance(name, str) for author in paper["authors"] for name in author.values())
    strategies = {
        name for paper in papers for name in re.findall(r"strategy=(\w+)", paper["notes"])
    }
    assert strategies == {"dome", "fed_sgm", "fedpcdp", "fedceo", "csgm", "sgmf"}


@pytest.mark.parametrize(
    "path", [form for form in FORMS if form.stem != "config"], ids=lambda path: path.name
)
def test_issue_forms_have_what_a_forge_asks_for(path: Path) -> None:
    form = _yaml(path)
    assert form["name"]
    assert form["description"]
    questions = [part for part in form["body"] if part["type"] != "markdown"]
    assert all(question["attributes"]["label"] for question in questions)
    names = [question["id"] for question in questions]
    assert len(set(names)) == len(names)


def test_the_workflow_runs_tests_and_rules_of_prose_and_builds_docs_and_image() -> None:
    jobs = _yaml(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    commands = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert commands == {".ci/run", "make prose", "make docs", "docker build ."}
    versions = {
        step["with"]["python-version"]
        for job in jobs.values()
        for step in job["steps"]
        if "python-version" in step.get("with", {})
    }
    assert versions == {PYPROJECT["project"]["requires-python"].removeprefix(">=")}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    called = [
        "docs",
        "prose",
        *re.findall(r"^make (\w+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE),
    ]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(called) == 3
    assert set(called) <= set(targets)
    assert (ROOT / "Dockerfile").exists()


def test_hooks_use_the_tools_that_are_pinned_in_pyproject() -> None:
    """A repository of hooks would bring versions of its own."""
    settings = _yaml(ROOT / ".pre-commit-config.yaml")
    assert [repository["repo"] for repository in settings["repos"]] == ["local"]
    pinned = {line.split("==")[0] for line in PYPROJECT["project"]["optional-dependencies"]["dev"]}
    for hook in settings["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        tool = Path(hook["entry"].split()[0])
        assert tool.parent == Path(".venv/bin")
        assert tool.name in pinned


def test_hooks_of_a_commit_pass_on_this_file() -> None:
    """With the tools of this environment, whose place `.venv/bin` takes in a checkout."""
    hooks = _yaml(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    of_a_commit = [hook for hook in hooks if "stages" not in hook]
    assert of_a_commit
    for hook in of_a_commit:
        tool, *options = hook["entry"].split()
        command = [str(Path(sys.executable).with_name(Path(tool).name)), *options]
        done = subprocess.run(
            [*command, "tests/test_habits.py"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{hook['id']}: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_name_files_that_exist(path: Path) -> None:
    text = path.read_text()
    named = re.findall(r"\b(?:docs|tests|examples|conf|privacy)/[\w./-]*\w", text)
    named = [name for name in named if "NAME" not in name]
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_run_on_other_processors_names_tests_that_exist() -> None:
    assert not [name for name in processors.TESTS if not (ROOT / "tests" / name).exists()]
