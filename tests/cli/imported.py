"""Which libraries a module and its helpers import, read from their source: nothing is imported."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

OURS = "pytest_mlperf"
"""What every extension imports."""


@cache
def libraries_of(module: str) -> tuple[str, ...]:
    """Return the top-level libraries that a module and its helpers import, anywhere in them.

    Helpers are the modules of the folder that the module lies in. An import for types alone does
    not count, nor does the standard library.

    Args:
        module: E.g. "pytest_mlperf.adapters.scorers.rouge",
            whose helpers are in pytest_mlperf.adapters.scorers.
    """
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return ()
    root = Path(spec.origin).parent.parent
    folder = module.rpartition(".")[0] or module
    libraries: dict[str, None] = {}
    seen: set[str] = set()
    left = [module]
    while left:
        name = left.pop()
        path = _source(root, name)
        if name in seen or path is None:
            continue
        seen.add(name)
        for imported in _imports(path, root):
            top_module = imported.partition(".")[0]
            if f"{imported}.".startswith(f"{folder}."):
                left.append(imported)
            elif top_module not in {top, OURS} and top_module not in sys.stdlib_module_names:
                libraries[top_module] = None
    return tuple(sorted(libraries, key=str.lower))


def _source(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


@cache
def _imports(path: Path, root: Path) -> tuple[str, ...]:
    """Return the modules that a file imports; of "from package import module", the module."""
    tree = ast.parse(path.read_text("utf-8"))
    modules: list[str] = []
    for node in _run(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = _absolute(node, path, root)
            inner = [f"{package}.{alias.name}" for alias in node.names]
            modules += [module if _source(root, module) else package for module in inner]
    return tuple(modules)


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every node that runs, so none below "if TYPE_CHECKING"."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")):
            yield child
            yield from _run(child)


def _absolute(node: ast.ImportFrom, path: Path, root: Path) -> str:
    """Return the module that "from x" or "from ..x" names."""
    if not node.level:
        return node.module or ""
    parents = path.relative_to(root).parts[: -node.level]
    return ".".join((*parents, node.module or "")).rstrip(".")
