"""The Python API of a package, from its source: signatures and docstrings of everything public. Nothing is imported."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from wrapping import escaped, page, wrapped

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "fedsketch": "For those who start runs and use models from Python.",
    "secagg": "For those who use secure aggregation in an app of their own. [Use secure aggregation in your own "
    "app](../how-to/secure_aggregation.md) comes first.",
    "sketching": "For those who want to shorten long vectors. A sketch maps d numbers to k and back.",
    "privacy": "For those who want to account for privacy or add noise. [How epsilon is "
    "computed](../explanation/accounting.md) names the theorems.",
}
_Documented = ast.ClassDef | ast.FunctionDef
_WIDEST = 110


def _public(nodes: list[ast.stmt]) -> Iterator[_Documented]:
    for node in nodes:
        if isinstance(node, _Documented) and not node.name.startswith("_"):
            yield node


def _signature(node: ast.FunctionDef) -> str:
    arguments = ast.unparse(node.args)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"{node.name}({arguments}){returned}"
    if len(whole) <= _WIDEST:
        return whole
    parts = [part.strip() for part in _split(arguments)]
    return "\n".join([f"{node.name}(", *(f"    {part}," for part in parts), f"){returned}"])


def _split(arguments: str) -> list[str]:
    """At the commas that are outside of brackets."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(arguments[start:place])
            start = place + 1
    return [*parts, arguments[start:]]


def _code(*lines: str) -> str:
    """A block of code, with the quotes that the rest of the project has."""
    return "\n".join(["```python", *(line.replace("'", '"') for line in lines), "```"])


def _fields(node: ast.ClassDef) -> list[str]:
    return [
        ast.unparse(one)
        for one in node.body
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and not one.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(one.annotation)
    ]


def _is_property(node: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(one) for one in node.decorator_list)


def _prose(docstring: str | None) -> list[str]:
    """Paragraphs of a docstring: lists and indented parts as they are, the rest wrapped."""
    parts = []
    for block in re.split(r"\n\s*\n", docstring or ""):
        lines = block.strip("\n").split("\n")
        if block.startswith(">>>"):
            parts.append("\n".join(["```pycon", *lines, "```"]))
        elif any(re.match(r"\s+\S|[-*|] |\d+\. ", line) for line in lines):
            parts.append("\n".join(["```text", *(line.rstrip() for line in lines), "```"]))
        else:
            parts.append(wrapped(escaped(block)))
    return parts


def _class(node: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(map(ast.unparse, node.bases))
    lines = [f"class {node.name}({bases})" if bases else f"class {node.name}"]
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            lines = [f"{lines[0]}:", *(f"    {line}" for line in _signature(one).split("\n"))]
    if fields := _fields(node):
        lines = [f"{lines[0].rstrip(':')}:", *lines[1:], *(f"    {one}" for one in fields)]
    yield _code(*lines)
    yield from _prose(ast.get_docstring(node))
    for method in _public(node.body):
        if isinstance(method, ast.FunctionDef):
            returned = f" -> {ast.unparse(method.returns)}" if method.returns else ""
            head = f"{method.name}{returned}" if _is_property(method) else _signature(method)
            yield _code(head)
            yield from _prose(ast.get_docstring(method))


def _module(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    if any(_public(tree.body)):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield f"## fedsketch.{name}"
        yield from _prose(ast.get_docstring(tree))
        yield from _names(tree, "###")


def _names(tree: ast.Module, level: str) -> Iterator[str]:
    for node in _public(tree.body):
        yield f"{level} {node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _class(node)
        else:
            yield _code(_signature(node))
            yield from _prose(ast.get_docstring(node))


def api(package: str) -> str:
    folder = ROOT / package
    start = ast.parse((folder / "__init__.py").read_text())
    sections = [*_prose(ast.get_docstring(start)), *_names(start, "##")]
    for path in sorted(folder.rglob("*.py")):
        if path.name != "__init__.py":
            sections += _module(path)
    title = package if package == "fedsketch" else f"fedsketch.{package}"
    return page(title, PACKAGES[package], *sections)
