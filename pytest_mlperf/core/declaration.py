"""Read the options that an extension declares, and their descriptions, from its docstrings."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import re
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

SUPPLIED = frozenset({"self", "dataset", "model", "precision"})
"""Parameters that the worker fills in; they are no options."""

LISTS = frozenset(
    {list, tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection}
)
TABLE_TYPES = frozenset({dict, collections.abc.Mapping, collections.abc.MutableMapping})

TYPE_WORDS: Mapping[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    Any: "anything",
    object: "anything",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """Describe one option; `type` is the source text of its annotation."""

    name: str
    annotation: Any = Any
    type: str = ""
    required: bool = False
    default: Any = None
    text: str = ""

    @property
    def kind(self) -> str:
        """Type of the option in words: "whole number", "array of numbers"."""
        return self.type if self.annotation is Any and self.type != "Any" else kind(self.annotation)


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Hold an extension's description, its options, and parameters that pytest-mlperf supplies."""

    about: tuple[str, ...] = ()
    options: Mapping[str, Option] = field(default_factory=dict)
    supplied: Mapping[str, str] = field(default_factory=dict)
    takes_more: bool = False


@lru_cache(maxsize=256)
def declaration_of(factory: Any) -> Declaration:
    """Read the options of a class or function; raise ValueError if it has no signature."""
    is_class = inspect.isclass(factory)
    about, outer = parse_docstring(getattr(factory, "__doc__", None))
    about_built, built = parse_docstring(factory.__init__.__doc__ if is_class else None)
    texts = {**outer, **built}
    parameters = list(inspect.signature(factory).parameters.values())
    named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters)
    options = getattr(factory, "options", None)
    if not (isinstance(options, type) and dataclasses.is_dataclass(options)):
        options = None
    declared: dict[str, Option] = {}
    if options is not None and (takes_more or not _has_later_constructor(factory)):
        declared, takes_more = dict(_fields(options)), False
    if options is None or _has_later_constructor(factory):
        module = _module_of(factory.__init__ if is_class else factory)
        declared |= {
            p.name: _option(p, texts.get(p.name, ""), module)
            for p in named
            if p.name not in SUPPLIED
        }
    return Declaration(
        about=about or about_built,
        options=declared,
        supplied={p.name: texts.get(p.name, "") for p in named if p.name in SUPPLIED},
        takes_more=takes_more,
    )


def _has_later_constructor(factory: Any) -> bool:
    names = ("__init__", "options")
    homes = [next(c for c in inspect.getmro(factory) if name in vars(c)) for name in names]
    return inspect.isclass(factory) and homes[0] is not homes[1] and issubclass(*homes)


def _fields(options: type) -> Iterator[tuple[str, Option]]:
    bases = [base for base in options.__mro__ if dataclasses.is_dataclass(base)]
    texts = ChainMap(*(parse_docstring(base.__doc__, ["Attributes"])[1] for base in bases))
    for entry in dataclasses.fields(options):
        home = next(base for base in bases if entry.name in inspect.get_annotations(base))
        made = entry.default_factory is not dataclasses.MISSING
        yield (
            entry.name,
            Option(
                name=entry.name,
                annotation=_resolved(entry.type, _module_of(home)),
                type=str(entry.type),
                required=entry.default is dataclasses.MISSING and not made,
                default=None if entry.default is dataclasses.MISSING else entry.default,
                text=texts.get(entry.name, ""),
            ),
        )


def _option(parameter: inspect.Parameter, text: str, module: Mapping[str, Any]) -> Option:
    required = parameter.default is parameter.empty
    plain = parameter.annotation is parameter.empty
    return Option(
        name=parameter.name,
        annotation=Any if plain else _resolved(parameter.annotation, module),
        type="" if plain else inspect.formatannotation(parameter.annotation).strip("'\""),
        required=required,
        default=None if required else parameter.default,
        text=text,
    )


def _module_of(made_by: object) -> Mapping[str, Any]:
    module = sys.modules.get(getattr(made_by, "__module__", ""))
    return vars(module) if module else {}


def _resolved(annotation: Any, module: Mapping[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    usual = {**vars(typing), **vars(collections.abc), **module}  # else unimported
    try:
        return eval(annotation, usual)  # noqa: S307 - its own source
    except Exception:
        return Any


def kind(annotation: Any, *, article: bool = False) -> str:
    """Return a type in a suite's words: "whole number"; with `article`: "a whole number"."""
    origin, inside = get_origin(annotation) or annotation, get_args(annotation)
    if origin is Annotated:
        return kind(inside[0], article=article)
    if origin in (Union, types.UnionType):
        kinds = [kind(one, article=article) for one in inside if one is not types.NoneType]
        return " or ".join(dict.fromkeys(kinds))
    if origin in LISTS:
        items = {kind(item) for item in inside if item is not ...}
        noun = items.pop() if len(items) == 1 else ""
        words = f"array of {noun}s" if noun.endswith(("number", "text", "table")) else "array"
        return f"an {words}" if article else words
    words = getattr(annotation, "__name__", str(annotation))
    words = "table" if origin in TABLE_TYPES else TYPE_WORDS.get(origin, words)
    if origin is Literal:
        words = f"one of {', '.join(map(repr, inside))}"
    return f"a {words}" if article and words.endswith(("number", "table")) else words


# --- docstrings ------------------------------------------------------------------------------

SECTION = re.compile(r"(Args|Arguments|[A-Z][a-z]+(?: [A-Z][a-z]+)?):")
"""The title of a section, e.g. "Raises:"; the section's lines are indented."""

ARGUMENTS = ("Args", "Arguments", "Keyword Args", "Keyword Arguments", "Other Parameters")

ARGUMENT = re.compile(r"(\*{0,2}\w+(?:, *\*{0,2}\w+)*)(?: *\([^()]*\))?:(?: |$)(.*)")
"""First line of an argument: "size: Pixels.", "size (int): Pixels." or "height, width: ..."."""


def parse_docstring(
    text: str | None, sections: Sequence[str] = ARGUMENTS
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return a docstring's paragraphs before the first section, and argument texts by name."""
    prose: list[str] = []
    arguments: list[str] = []
    section = ""
    for line in inspect.cleandoc(text or "").splitlines():
        indented = not line or line[0].isspace()
        if begin := SECTION.fullmatch(line):
            section = begin[1]
        elif not section or not indented:
            section = ""
            prose.append(line)
        elif section in sections:
            arguments.append(line)
    return tuple(_blocks(prose)), dict(_arguments(arguments))


def _blocks(lines: list[str]) -> Iterator[str]:
    block: list[str] = []
    for line in [*lines, ""]:
        stripped = line.strip()
        if block and (not stripped or stripped.startswith("- ")):
            yield " ".join(block)
            block = []
        if stripped:
            block.append(stripped)


def _arguments(lines: list[str]) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    words: list[str] = []
    for line in [*inspect.cleandoc("\n".join(["", *lines])).splitlines(), "end:"]:
        begin = ARGUMENT.fullmatch(line)
        if begin is None:
            words.append(line.strip())
            continue
        yield from ((name, " ".join(filter(None, words))) for name in names)
        names, words = re.findall(r"\w+", begin[1]), [begin[2].strip()]
