"""The package's source, parsed once for all tests and tools that examine it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pytest_mlperf"


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a module, which is cached and read-only."""
    return ast.parse(path.read_text("utf-8"))


def is_inside(name: str, package: str) -> bool:
    """Return whether a module is a package, or lies below it."""
    return f"{name}.".startswith(f"{package}.")


def part_of(name: str) -> str:
    """Return the part that a module belongs to: the kernel (""), the adapters, or an add-on."""
    if is_inside(name, "addons"):
        return ".".join(name.split(".")[:2])
    return "adapters" if is_inside(name, "adapters") else ""


@dataclass(frozen=True)
class Package:
    """A package of three parts: the kernel, the adapters and the add-ons.

    Names of modules are below the package: "core.case" is pytest_mlperf.core.case.

    Attributes:
        folder: Folder of the package; its name is the package's.
    """

    folder: Path

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Every module by its name; the package itself is ""."""
        by_name = {}
        for path in sorted(self.folder.rglob("*.py")):
            parts = path.relative_to(self.folder).with_suffix("").parts
            by_name[".".join(part for part in parts if part != "__init__")] = path
        return by_name

    @cached_property
    def imports(self) -> dict[str, tuple[str, ...]]:
        """Full names that each module imports: in functions, for types, and by `late` too."""
        return {name: tuple(self._imports(path)) for name, path in self.modules.items()}

    @cached_property
    def graph(self) -> dict[str, set[str]]:
        """The modules of the package that each module imports; the package itself is left out."""
        inner = set(self.modules) - {""}
        return {
            name: {self._below(other) for other in imported} & inner - {name}
            for name, imported in self.imports.items()
        }

    def imports_of_kernel(self) -> set[tuple[str, str]]:
        """Return the imports from the kernel into adapters and add-ons."""
        return {(name, other) for name, other in self._edges() if not part_of(name)}

    def imports_of_adapters(self) -> set[tuple[str, str]]:
        """Return the imports of adapters that are neither public nor other adapters."""
        return {
            (name, other)
            for name, imported in self.graph.items()
            if part_of(name) == "adapters"
            for other in imported
            if other != "extension" and part_of(other) != "adapters"
        }

    def imports_between_addons(self) -> set[tuple[str, str]]:
        """Return the imports from an add-on into another one or into an adapter."""
        return {
            (name, other)
            for name, other in self._edges()
            if is_inside(name, "addons") and other != "addons"
        }

    def kernel_names(self, part: str, *, public: bool = True) -> dict[str, set[str]]:
        """Return the names of the kernel that modules of a part import, by the kernel's module.

        Args:
            part: "adapters" or "addons".
            public: Public names, which code of others imports as well, count too.
        """
        root = self.folder.name
        face = {root, f"{root}.extension", f"{root}.judge"}
        names: dict[str, set[str]] = {}
        for user, path in self.modules.items():
            if not is_inside(user, part):
                continue
            for node in ast.walk(parsed(path)):
                if not isinstance(node, ast.ImportFrom):
                    continue
                module = str(node.module)
                if module in face and not public:
                    continue
                for alias in node.names if is_inside(module, self.folder.name) else ():
                    below = self._below(f"{module}.{alias.name}")
                    target = below if below in self.modules else self._below(module)
                    if not part_of(target):
                        names.setdefault(module, set()).add(alias.name)
        return names

    def circles(self) -> list[list[str]]:
        """Return import cycles: one for each import that has to go, until none is left."""
        edges = {name: sorted(imported) for name, imported in sorted(self.graph.items())}
        trails = []
        while True:
            try:
                TopologicalSorter(edges).prepare()
            except CycleError as error:
                trail: list[str] = error.args[1][::-1]  # it runs against the imports
                trails.append(trail)
                edges[trail[0]].remove(trail[1])
            else:
                return trails

    def _edges(self) -> Iterator[tuple[str, str]]:
        """Yield the imports of a module of adapters or add-ons by another part."""
        for name, imported in self.graph.items():
            for other in imported:
                if part_of(other) not in ("", part_of(name)):
                    yield name, other

    def _below(self, name: str) -> str:
        return name.removeprefix(f"{self.folder.name}.")

    def _imports(self, path: Path) -> Iterator[str]:
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Import():
                    yield from (alias.name for alias in node.names)
                case ast.ImportFrom(module=str(module)):
                    names = {f"{module}.{alias.name}" for alias in node.names}
                    below = {name for name in names if self._below(name) in self.modules}
                    yield from below
                    if names != below:
                        yield module
                case ast.Call(func=ast.Name("late"), args=[ast.Constant(str(name))]):
                    folder = path.relative_to(self.folder).parts[:-1]
                    yield ".".join((self.folder.name, *folder, name))


OURS = Package(PACKAGE)


def modules() -> dict[str, Path]:
    """Return every module of this package by its name below it."""
    return OURS.modules
