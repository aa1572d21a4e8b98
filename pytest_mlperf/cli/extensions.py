"""What an engine, a data set or a scorer says of itself: signature, docstring, libraries."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, metadata, packages_distributions
from typing import Any

from pytest_mlperf import registry
from pytest_mlperf.cli.docstrings import Docstring, parse
from pytest_mlperf.cli.imported import libraries_of
from pytest_mlperf.cli.libraries import needs
from pytest_mlperf.core.errors import EnvironmentFault, text_of
from pytest_mlperf.suite.libraries import DISTRIBUTIONS, NOUNS, OURS, extras, is_here, normal

WORDS = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "Any": "anything",
    "object": "anything",
}
"""Python's types in the words of a suite's author."""

LISTS = frozenset({"Sequence", "list", "tuple", "Iterable", "Collection"})
TABLES = frozenset({"Mapping", "dict"})

PRECISION = re.compile(r'"([a-z]+\d\w*)"')
"""A precision in the text of an engine's argument: a quoted word with its bits, "fp32"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """A keyword parameter.

    Attributes:
        name: As a suite writes it.
        type: The annotation; "" where there is none.
        required: It has no default.
        default: None also stands for no default.
        text: Of the docstring; "" where that says nothing.
    """

    name: str
    type: str
    required: bool
    default: Any
    text: str

    @property
    def kind(self) -> str:
        """The type in words: "whole number", "list of numbers"."""
        try:
            return _words(ast.parse(self.type, mode="eval").body)
        except SyntaxError:
            return self.type


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A library that an extension imports.

    Attributes:
        name: The module's.
        here: It is installed.
        extra: The extra of this package that brings it, or None.
    """

    name: str
    here: bool
    extra: str | None


@dataclass(frozen=True, kw_only=True)
class Extension:
    """One engine, data set or scorer.

    Attributes:
        group: Which of them.
        name: What a suite calls it.
        target: "package.module:name".
        distribution: The package that brings it, or None where that is not known.
        about: Its docstring, paragraph by paragraph.
        options: What a suite may set, in the order of the signature.
        given: Texts of what it is given besides: dataset, model, precision.
        takes_more: It takes options that it does not name.
        libraries: What it and its helpers import and this package does not always bring.
    """

    group: registry.Group
    name: str
    target: str
    distribution: str | None
    about: tuple[str, ...]
    options: tuple[Option, ...]
    given: Mapping[str, str] = field(default_factory=dict)
    takes_more: bool = False
    libraries: tuple[Library, ...] = ()

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring."""
        return self.about[0] if self.about else ""

    @property
    def precisions(self) -> list[str]:
        """The precisions that an engine's text names; none for others."""
        return list(dict.fromkeys(PRECISION.findall(self.given.get("precision", ""))))


def read(group: registry.Group, name: str) -> Extension:
    """Read a registered extension; its module is imported, which is light by contract.

    Raises:
        EnvironmentFault: It cannot be imported.
    """
    entry = registry.registered(group)[name]
    try:
        factory = registry.resolve(entry.value)
        parameters = list(inspect.signature(factory).parameters.values())
        needed = needs(group, name)
    except Exception as error:  # whatever another package's code raises when it is imported
        raise EnvironmentFault(
            f"{NOUNS[group]} {name!r} ({entry.value}) cannot be imported: "
            f"{type(error).__name__}: {text_of(error)}"
        ) from error
    own = parse(getattr(factory, "__doc__", None))
    built = parse(factory.__init__.__doc__) if inspect.isclass(factory) else Docstring()
    texts = {**own.arguments, **built.arguments}
    named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return Extension(
        group=group,
        name=name,
        target=entry.value,
        distribution=entry.dist.name if entry.dist else None,
        about=own.blocks or built.blocks,
        options=tuple(_option(p, texts) for p in named if p.name not in registry.GIVEN),
        given={p.name: texts.get(p.name, "") for p in named if p.name in registry.GIVEN},
        takes_more=any(p.kind is p.VAR_KEYWORD for p in parameters),
        libraries=_libraries(entry, needed),
    )


def _option(parameter: inspect.Parameter, texts: Mapping[str, str]) -> Option:
    required = parameter.default is parameter.empty
    plain = parameter.annotation is parameter.empty
    return Option(
        name=parameter.name,
        type="" if plain else inspect.formatannotation(parameter.annotation).strip("'\""),
        required=required,
        default=None if required else parameter.default,
        text=texts.get(parameter.name, ""),
    )


# --- types in words --------------------------------------------------------------------------


def _words(node: ast.expr) -> str:
    kinds = [kind for kind in _kinds(node) if kind != "None"]
    return " or ".join(dict.fromkeys(kinds))


def _kinds(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from (*_kinds(left), *_kinds(right))
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in LISTS:
            yield f"list of {_plural(inner)}"
        case ast.Subscript(value=ast.Name(id=name)) if name in TABLES:
            yield "table"
        case _:
            source = ast.unparse(node)
            yield WORDS.get(source, source)


def _plural(inner: ast.expr) -> str:
    first = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
    words = _words(first)
    return f"{words}s" if words.endswith("number") else words


# --- libraries -------------------------------------------------------------------------------


def _libraries(entry: EntryPoint, needed: Iterable[str]) -> tuple[Library, ...]:
    """Return what an extension and its helpers import, the certain ones first, each once.

    A library without an extra is left out where another brings it, as transformers does tokenizers.
    """
    names = dict.fromkeys((*needed, *libraries_of(entry.value.partition(":")[0])))
    found = {name: _distribution(name) for name in names if _distribution(name) not in _own()}
    chosen = _chosen(list(found.values()))
    beside = {own for extra in chosen.values() for own in extras()[extra]}
    brought = {name for own in (*found.values(), *beside) for name in _requirements(own)}
    return tuple(
        Library(name=name, here=is_here(name), extra=chosen.get(own))
        for name, own in found.items()
        if own in chosen or own not in brought
    )


def _chosen(distributions: Sequence[str]) -> dict[str, str]:
    """Return an extra for each distribution that one brings: few extras, and small ones."""
    offers = extras()
    chosen: dict[str, str] = {}
    for own in distributions:
        fitting = [extra for extra, brings in offers.items() if own in brings]
        used = [extra for extra in fitting if extra in chosen.values()]
        if fitting:
            chosen[own] = used[0] if used else min(fitting, key=lambda extra: len(offers[extra]))
    return chosen


def _distribution(library: str) -> str:
    known = DISTRIBUTIONS.get(library) or next(iter(_installed().get(library, ())), library)
    return normal(known)


@cache
def _installed() -> Mapping[str, list[str]]:
    return packages_distributions()


@cache
def _own() -> frozenset[str]:
    """Return what this package itself depends on, without extras."""
    return frozenset(_requirements(OURS))


def _requirements(distribution: str) -> list[str]:
    """Return the distributions that one asks for without an extra; none if it is not installed."""
    try:
        asked = metadata(distribution).get_all("Requires-Dist") or []
    except PackageNotFoundError:
        return []
    names = (
        re.match(r"[A-Za-z0-9._-]+", line) for line in asked if not re.search(r"extra\s*==", line)
    )
    return [normal(name[0]) for name in names if name]
