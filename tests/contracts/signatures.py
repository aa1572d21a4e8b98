"""Read the interface of a package from its source text, without importing or running it.

    with Source.open("vllm-0.33.0.whl") as source:
        source.parameters("vllm/entrypoints/llm.py", "LLM.generate")

A class's bases are followed through the imports of its module, if the source has them.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.ClassDef


class Missing(LookupError):
    """A file, class or function is not in this source."""


@dataclass(slots=True)
class Source:
    """The files of a package: a folder, or a wheel or other zip file.

    Attributes:
        path: What was opened.
        archive: The zip file; None for a folder.
        prefix: The one folder at the top that everything in a source archive lies in, or "".
    """

    path: Path
    archive: zipfile.ZipFile | None = None
    prefix: str = ""
    _trees: dict[str, ast.Module] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str | Path) -> Source:
        """Open a folder, a wheel or a zip file."""
        path = Path(path).expanduser()
        if path.is_dir():
            return cls(path)
        if not path.is_file() or not zipfile.is_zipfile(path):
            raise Missing(f"{path} is neither a folder nor a wheel or zip file")
        archive = zipfile.ZipFile(path)
        tops = {name.split("/", 1)[0] for name in archive.namelist()}
        alone = (
            len(tops) == 1 and f"{(top := next(iter(tops)))}/__init__.py" not in archive.NameToInfo
        )
        return cls(path, archive, f"{top}/" if alone else "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.archive is not None:
            self.archive.close()

    def has(self, file: str) -> bool:
        """Whether there is such a file; names are relative, with slashes."""
        if self.archive is None:
            return (self.path / file).is_file()
        return self.prefix + file in self.archive.NameToInfo

    def text(self, file: str) -> str:
        """Return the text of a file."""
        if not self.has(file):
            raise Missing(f"{self.path} has no {file}")
        if self.archive is None:
            return (self.path / file).read_text("utf-8")
        return self.archive.read(self.prefix + file).decode("utf-8")

    def files(self, folder: str) -> list[str]:
        """Return the Python files below a folder."""
        if self.archive is None:
            paths = (self.path / folder).rglob("*.py")
            return sorted(path.relative_to(self.path).as_posix() for path in paths)
        names = [name.removeprefix(self.prefix) for name in self.archive.namelist()]
        return sorted(n for n in names if n.startswith(f"{folder}/") and n.endswith(".py"))

    def parameters(self, module_file: str, qualified: str) -> list[str]:
        """Return the names of a function's or "Class.method"'s parameters, without self and cls."""
        owner, _, name = qualified.rpartition(".")
        if not owner:
            return _parameters(self._function(module_file, name), method=False)
        for _, class_node in self._lineage(module_file, owner):
            for node in _statements(class_node):
                if isinstance(node, Function) and node.name == name and not _overload(node):
                    return _parameters(node, method=not _decorated(node, "staticmethod"))
        raise Missing(f"{module_file} has no {qualified}")

    def fields(self, module_file: str, cls: str) -> list[str]:
        """Return the names of the annotated public fields of a class, those of bases first."""
        names = {
            each.target.id: None
            for _, node in reversed(self._lineage(module_file, cls))
            for each in _statements(node)
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            if not each.target.id.startswith("_") and "ClassVar" not in ast.unparse(each.annotation)
        }
        return [name for name in names if name != "model_config"]

    def attributes(self, module_file: str, cls: str) -> set[str]:
        """Return the names that an instance of a class has, inherited ones too.

        These are fields, methods, properties, class variables (members of an Enum), slots, and
        what methods assign to self.
        """
        return {
            name
            for _, node in self._lineage(module_file, cls)
            for each in _statements(node)
            for name in _names(each)
        }

    def tree(self, file: str) -> ast.Module:
        """Return the parsed text of a file."""
        if file not in self._trees:
            self._trees[file] = ast.parse(self.text(file), file)
        return self._trees[file]

    def find(self, module_file: str, cls: str) -> tuple[str, ast.ClassDef]:
        """Return a class and the file it is in, which imports of the module may lead to."""
        return self._find(module_file, cls, frozenset())

    def _find(
        self, file: str, cls: str, seen: frozenset[tuple[str, str]]
    ) -> tuple[str, ast.ClassDef]:
        for node in _statements(self.tree(file)):
            if isinstance(node, ast.ClassDef) and node.name == cls:
                return file, node
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                if cls in names and (file, node.value.id) not in seen:
                    return self._find(file, node.value.id, seen | {(file, cls)})
        for statement in ast.walk(self.tree(file)):
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    target = self._module(file, statement)
                    named = (alias.asname or alias.name) == cls
                    if named and target is not None and (target, alias.name) not in seen:
                        return self._find(target, alias.name, seen | {(file, cls)})
        raise Missing(f"{file} has no class {cls}")

    def _module(self, file: str, node: ast.ImportFrom) -> str | None:
        parts = (node.module or "").split(".") if node.module else []
        folder = PurePosixPath(file).parent if node.level else PurePosixPath()
        for _ in range(node.level - 1):
            folder = folder.parent
        base = str(folder.joinpath(*parts))
        return next(
            (name for name in (f"{base}.py", f"{base}/__init__.py") if self.has(name)), None
        )

    def _function(self, file: str, name: str) -> Function:
        functions = [
            node
            for node in _statements(self.tree(file))
            if isinstance(node, Function) and node.name == name and not _overload(node)
        ]
        if not functions:
            raise Missing(f"{file} has no function {name}")
        return functions[-1]

    def _lineage(self, file: str, cls: str) -> list[tuple[str, ast.ClassDef]]:
        """Return a class and its bases, nearest first, if they can be found."""
        file, node = self.find(file, cls)
        lineage = [(file, node)]
        for base in node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(name, ast.Name) and name.id != cls:
                try:
                    further = self._lineage(file, name.id)
                except Missing:  # of another package, as pydantic.BaseModel
                    continue
                lineage += [each for each in further if each not in lineage]
        return lineage


def _statements(scope: Scope) -> Iterator[ast.stmt]:
    """Yield the statements of a scope, also those under `if` and `try`."""
    waiting = list(scope.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.If):
            waiting[:0] = [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            handled = [each for handler in node.handlers for each in handler.body]
            waiting[:0] = [*node.body, *handled, *node.orelse]


def _parameters(node: Function, *, method: bool) -> list[str]:
    arguments = node.args
    parameters = [*arguments.posonlyargs, *arguments.args][1 if method else 0 :]
    parameters += [arguments.vararg] if arguments.vararg else []
    parameters += arguments.kwonlyargs
    parameters += [arguments.kwarg] if arguments.kwarg else []
    return [argument.arg for argument in parameters]


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
    for inner in ast.walk(node) if isinstance(node, Function) else ():
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield from [inner.attr] if ast.unparse(inner.value) == "self" else []
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
            if target.id == "__slots__" and node.value is not None:
                yield from (
                    each.value
                    for each in ast.walk(node.value)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                )


def _decorated(node: Function, name: str) -> bool:
    return any(ast.unparse(each).split(".")[-1] == name for each in node.decorator_list)


def _overload(node: Function) -> bool:
    return _decorated(node, "overload")
