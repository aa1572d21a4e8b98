"""`pytest-mlperf options`: print the options that engines, data sets and scorers declare."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_mlperf import registry
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.core.declaration import Declaration, Option, declaration_of
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError, text_of
from pytest_mlperf.core.imports import distribution
from pytest_mlperf.core.untrusted_text import json_text, nearest
from pytest_mlperf.reports.terminal.layout import fold, paragraphs
from pytest_mlperf.suite.libraries import DISTRIBUTION, NOUNS, declared_libraries, extras, is_here

JSON_VERSION = 1
OPTION_KEYS = ("type", "required", "default", "text")
INDENT = "      "

Named = tuple[registry.Group, str]


class UnreadableExtension(EnvironmentFault):
    """Report an extension that cannot be imported; `reason` is the message without its name."""

    def __init__(self, title: str, reason: str) -> None:
        super().__init__(f"{title} {reason}")
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Extension:
    """Describe an engine, data set, scorer or builder with its declared options.

    `libraries` maps each library it uses to "installed" (bool) and "extra" (the pip extra with it).
    """

    group: registry.Group
    name: str
    target: str
    distribution: str | None
    declaration: Declaration
    precisions: tuple[str, ...] = ()
    libraries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def options(self) -> tuple[Option, ...]:
        """Options that a suite may set, in the order of the declaration."""
        return tuple(self.declaration.options.values())


def read_extension(group: registry.Group, name: str) -> Extension:
    """Import a registered extension; return its options, precisions and required libraries."""
    entry = registry.registered(group)[name]
    try:
        factory = registry.resolve(entry.value)
        declaration = declaration_of(factory)
    except Exception as error:  # whatever another package's code raises when it is imported
        raise UnreadableExtension(
            f"{NOUNS[group]} {name!r} ({entry.value})",
            f"cannot be imported: {type(error).__name__}: {text_of(error)}",
        ) from error
    optional: tuple[str, ...] = getattr(factory, "optional_libraries", ())
    return Extension(
        group=group,
        name=name,
        target=entry.value,
        distribution=entry.dist.name if entry.dist else None,
        declaration=declaration,
        precisions=tuple(getattr(factory, "precisions", ())),
        libraries=_libraries((*declared_libraries(group, name), *optional)),
    )


def _libraries(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    offers = extras()
    chosen: dict[str, str | None] = {}
    for name in dict.fromkeys(names):
        fitting = [extra for extra, brings in offers.items() if distribution(name) in brings]
        used = [extra for extra in fitting if extra in chosen.values()]
        smallest = min(fitting, key=lambda extra: len(offers[extra]), default=None)
        chosen[name] = used[0] if used else smallest
    return {name: {"installed": is_here(name), "extra": extra} for name, extra in chosen.items()}


HELP = """\
Prints the options of engines, data sets and scorers: type, default and meaning,
as declared by their code, with the libraries they use. Includes extensions of
other packages. Without NAME, lists all in one line each.

needs: nothing

examples:
  $ pytest-mlperf options
      every engine, data set and scorer that is installed
  $ pytest-mlperf options imagenet onnxruntime
      their options, with units and formats
  $ pytest-mlperf options clip_fid --json
      the same for programs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help='value of use in a suite, e.g. "imagenet"'
    )
    add(parser, "--json")


def run(parsed: argparse.Namespace) -> int:
    """Print a summary of all extensions, or the options of those named."""
    every = [(group, name) for group in NOUNS for name in sorted(registry.registered(group))]
    if parsed.names:
        chosen = [one for name in dict.fromkeys(parsed.names) for one in _named(name, every)]
        extensions = [read_extension(*one) for one in chosen]
        if parsed.json:
            _print_json({one: document(e) for one, e in zip(chosen, extensions, strict=True)})
        else:
            for index, extension in enumerate(extensions):
                show([""] if index else [])
                show(_detail(extension, width()))
    elif parsed.json:
        _print_json({one: _document_or_error(one) for one in every})
    else:
        show(_overview(every, width()))
    return 0


def _named(name: str, every: Sequence[Named]) -> list[Named]:
    same = [one for one in every if one[1] == name]
    if not same:
        names = dict.fromkeys(each for _, each in every)
        raise MlperfError(f"no engine, data set or scorer named {name!r}{nearest(name, names)}")
    return same


def document(extension: Extension) -> dict[str, Any]:
    """Return the description of an extension as a JSON object."""
    return {
        "target": extension.target,
        "distribution": extension.distribution,
        "about": list(extension.declaration.about),
        "libraries": extension.libraries,
        "given": dict(extension.declaration.supplied),
        "precisions": list(extension.precisions),
        "options": {
            option.name: {key: getattr(option, key) for key in OPTION_KEYS}
            for option in extension.options
        },
        "takes_more": extension.declaration.takes_more,
    }


def _document_or_error(name: Named) -> dict[str, Any]:
    try:
        return document(read_extension(*name))
    except EnvironmentFault as error:
        return {"error": str(error)}


def _print_json(documents: dict[Named, dict[str, Any]]) -> None:
    groups: dict[str, dict[str, Any]] = {group: {} for group in NOUNS}
    for (group, name), content in documents.items():
        groups[group][name] = content
    content = {"schema": JSON_VERSION, "kind": "pytest-mlperf options", **groups}
    print(json_text(content, default=repr))


def _overview(every: Sequence[Named], columns: int) -> Iterator[str]:
    widest = max(len(name) for _, name in every)
    for group, noun in NOUNS.items():
        yield f"{noun}s"
        for name in (name for of, name in every if of == group):
            line = f"  {name:<{widest}}  {_summary((group, name))}"
            if len(line) > columns:  # cut between words
                cut = textwrap.wrap(line, columns - 2, drop_whitespace=False)[0]
                line = f"{cut.rstrip(' ,;:.')} …"
            yield line
        yield ""
    yield "more: pytest-mlperf options NAME"


def _summary(name: Named) -> str:
    try:
        extension = read_extension(*name)
    except UnreadableExtension as error:
        return error.reason
    foreign = extension.distribution not in (DISTRIBUTION, None)
    summary = next(iter(extension.declaration.about), "")
    return f"({extension.distribution}) {summary}" if foreign else summary


def _detail(extension: Extension, columns: int) -> Iterator[str]:
    yield f"{NOUNS[extension.group]} {extension.name}"
    for block in extension.declaration.about:
        yield from fold(block, columns, first="  ", rest="    " if block[:2] == "- " else "  ")
    yield ""
    if extension.distribution not in (DISTRIBUTION, None):
        yield from paragraphs("package", [extension.distribution], columns)
    yield from paragraphs("code", [extension.target], columns)
    yield from paragraphs("uses", _uses(extension), columns)
    for name, text in extension.declaration.supplied.items():
        if text and not text.startswith("Not "):
            yield from paragraphs(name, [text], columns)
    yield ""
    yield "options" if extension.options else "no options"
    for option in extension.options:
        default = "optional" if option.default is None else f"default {toml(option.default)}"
        kind = ", ".join(filter(None, (option.kind, "required" if option.required else default)))
        yield from fold(f"{option.name}  ({kind})", columns, first="  ", rest=INDENT)
        text = option.text or "not documented"
        yield from fold(text, columns, first=INDENT, rest=INDENT)
    if extension.declaration.takes_more:
        yield "  and any other option"
    if any("None" in option.text for option in extension.options):
        yield "None means that the suite does not set the option"


def _uses(extension: Extension) -> list[str]:
    brought: dict[str, list[str]] = {}
    for name, library in extension.libraries.items():
        extra = f"pytest-mlperf[{library['extra']}]" if library["extra"] else ""
        text = name if library["installed"] else f"{name} (not installed)"
        brought.setdefault(extra, []).append(text)
    lines = [
        f"{', '.join(names)}: pip install '{extra}'" if extra else ", ".join(names)
        for extra, names in brought.items()
    ]
    return lines or ["no further library"]


def toml(value: Any) -> str:
    """Format a default value as TOML."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            pairs = (f"{name} = {toml(each)}" for name, each in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case _:
            return repr(value)
