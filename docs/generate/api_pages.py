"""The Python API of packages, from their source: signatures and docstrings of everything public. Nothing is imported.

A package is a folder with a page for each module, and an index that says what each is for.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from wrapping import escaped, item, page, wrapped

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "secagg": "For those who use secure aggregation in an app of their own. [Use secure aggregation in your own "
    "app](../../how-to/secure_aggregation.md) comes first.",
    "sketching": "For those who want to shorten long vectors. A sketch maps d numbers to k and back.",
    "privacy": "For those who want to account for privacy or add noise. [How epsilon is "
    "computed](../../explanation/accounting.md) names the theorems.",
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
            text = textwrap.dedent("\n".join(line.rstrip() for line in lines))
            parts.append(f"```text\n{text}\n```")
        else:
            parts.append(wrapped(escaped(re.sub(r"::$", ":", block))))
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


def _names(tree: ast.Module) -> Iterator[str]:
    for node in _public(tree.body):
        yield f"## {node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _class(node)
        else:
            yield _code(_signature(node))
            yield from _prose(ast.get_docstring(node))


def top_level() -> str:
    """The page of what `import fedsketch` gives."""
    tree = ast.parse((ROOT / "fedsketch" / "__init__.py").read_text())
    intro = "For those who start runs and use models from Python."
    return page("fedsketch", intro, *_prose(ast.get_docstring(tree)), *_names(tree))


def package_pages(package: str) -> dict[str, str]:
    """The index of a package and the pages of its modules, by their paths."""
    modules = {
        path.relative_to(ROOT): ast.parse(path.read_text())
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    start = modules[Path(package, "__init__.py")]
    modules = {path: tree for path, tree in modules.items() if any(_public(tree.body))}
    modules.pop(Path(package, "__init__.py"), None)
    index = page(
        f"fedsketch.{package}",
        PACKAGES[package],
        *_prose(ast.get_docstring(start)),
        *_exported(package, start),
        "## Modules",
        "\n".join(_entry(path.relative_to(package), tree) for path, tree in modules.items()),
    )
    return {
        f"{package}/index.md": index,
        **{
            path.with_suffix(".md").as_posix(): _module_page(path, tree)
            for path, tree in modules.items()
        },
    }


def _exported(package: str, start: ast.Module) -> Iterator[str]:
    """What can be imported from the package itself, with the modules that have it."""
    entries = []
    for node in start.body:
        if isinstance(node, ast.ImportFrom) and (module := _own_module(package, node)):
            names = ", ".join(f"`{one.name}`" for one in node.names)
            entries.append(item(f"{names}: [`{module}`]({module.replace('.', '/')}.md)"))
    if entries:
        yield f"## Import from `fedsketch.{package}`"
        yield "\n".join(entries)


def _own_module(package: str, node: ast.ImportFrom) -> str:
    """The module of the package that is imported from; an empty text if it is another package's."""
    whole, prefix = node.module or "", f"fedsketch.{package}."
    if node.level:
        return whole
    return whole.removeprefix(prefix) if whole.startswith(prefix) else ""


def _entry(path: Path, tree: ast.Module) -> str:
    """A module in the index of its package: a link, and the first sentence of its docstring."""
    paragraph = (ast.get_docstring(tree) or "").split("\n\n")[0]
    sentence = re.split(r"(?<=\.)\s(?=[A-Z`])", " ".join(paragraph.split()))[0].rstrip(".:")
    name = ".".join(path.with_suffix("").parts)
    return item(f"[`{name}`]({path.with_suffix('.md').as_posix()}): {escaped(sentence)}")


def _module_page(path: Path, tree: ast.Module) -> str:
    package, *parts = path.with_suffix("").parts
    index = "../" * (len(parts) - 1) + "index.md"
    intro = (
        f"For those who read or call this module. [fedsketch.{package}]({index}) lists the others."
    )
    title = ".".join(["fedsketch", package, *parts])
    return page(title, intro, *_prose(ast.get_docstring(tree)), *_names(tree))
