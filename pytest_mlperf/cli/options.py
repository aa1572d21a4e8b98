"""`pytest-mlperf options`: what engines, data sets and scorers can be told, from their code."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_mlperf import registry
from pytest_mlperf.cli.extensions import Extension, Option, read
from pytest_mlperf.cli.output import add_parser, show, width
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.foreign_text import json_text
from pytest_mlperf.reports.layout import fold, paragraph, paragraphs
from pytest_mlperf.suite.libraries import NOUNS, OURS
from pytest_mlperf.suite.values import nearest

SCHEMA = 1
"""Version of what `--json` prints."""

INDENT = "      "

Found = tuple[registry.Group, str]


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "options",
        summary="options of engines, data sets and scorers",
        description=(
            "Prints what a suite can tell an engine, a data set or a scorer: every option\n"
            "with its type, default and meaning, the libraries it uses, and the precisions of\n"
            "an engine. It is read from the code that runs, also that of other packages.\n"
            "Without a name: what there is, one line each."
        ),
        needs="nothing; no library of an engine is loaded",
        examples=[
            ("options", "every engine, data set and scorer that is installed"),
            ("options imagenet onnxruntime", "what their options mean, with units and formats"),
            ("options clip_fid --json", "the same for programs"),
        ],
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help='what a suite writes after use, e.g. "imagenet"'
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Print what extensions are, or their options.

    Raises:
        MlperfError: There is no extension of such a name.
        EnvironmentFault: One that is named cannot be imported.
    """
    found = _every()
    if parsed.names:
        chosen = [one for name in dict.fromkeys(parsed.names) for one in _named(name, found)]
        extensions = [read(*one) for one in chosen]
        if parsed.json:
            _print_json({one: document(e) for one, e in zip(chosen, extensions, strict=True)})
        else:
            show(_details(extensions, width()))
    elif parsed.json:
        _print_json({one: _document_or_error(one) for one in found})
    else:
        show(_overview(found, width()))
    return 0


def _every() -> list[Found]:
    return [(group, name) for group in NOUNS for name in sorted(registry.registered(group))]


def _named(name: str, found: Sequence[Found]) -> list[Found]:
    """Return the extensions of a name: a data set and a scorer may share one."""
    same = [one for one in found if one[1] == name]
    if not same:
        known = dict.fromkeys(own for _, own in found)
        raise MlperfError(f"no engine, data set or scorer is called {name!r}{nearest(name, known)}")
    return same


# --- json ------------------------------------------------------------------------------------


def document(extension: Extension) -> dict[str, Any]:
    """Return an extension as JSON."""
    return {
        "target": extension.target,
        "distribution": extension.distribution,
        "about": list(extension.about),
        "libraries": {
            library.name: {"installed": library.here, "extra": library.extra}
            for library in extension.libraries
        },
        "given": dict(extension.given),
        "precisions": extension.precisions,
        "options": {
            option.name: {
                "type": option.type,
                "required": option.required,
                "default": option.default,
                "text": option.text,
            }
            for option in extension.options
        },
        "takes_more": extension.takes_more,
    }


def _document_or_error(one: Found) -> dict[str, Any]:
    try:
        return document(read(*one))
    except EnvironmentFault as error:
        return {"error": str(error)}


def _print_json(documents: dict[Found, dict[str, Any]]) -> None:
    groups: dict[str, dict[str, Any]] = {group: {} for group in NOUNS}
    for (group, name), content in documents.items():
        groups[group][name] = content
    content = {"schema": SCHEMA, "kind": "pytest-mlperf options", **groups}
    print(json_text(content, default=repr))


# --- what there is ---------------------------------------------------------------------------


def _overview(found: Sequence[Found], columns: int) -> Iterator[str]:
    widest = max(len(name) for _, name in found)
    for group, noun in NOUNS.items():
        yield f"{noun}s"
        for name in (name for own, name in found if own == group):
            line = f"  {name:<{widest}}  {_summary((group, name))}"
            yield _cut(line, columns)
        yield ""
    yield "more: pytest-mlperf options NAME"


def _summary(one: Found) -> str:
    try:
        extension = read(*one)
    except EnvironmentFault as error:
        return str(error).partition(") ")[2]
    foreign = extension.distribution not in (OURS, None)
    return f"({extension.distribution}) {extension.summary}" if foreign else extension.summary


def _cut(line: str, columns: int) -> str:
    """Return one line of at most so many columns, cut between words."""
    if len(line) <= columns:
        return line
    return f"{textwrap.wrap(line, columns - 2, drop_whitespace=False)[0].rstrip(' ,;:.')} …"


# --- one of them -----------------------------------------------------------------------------


def _details(extensions: Sequence[Extension], columns: int) -> Iterator[str]:
    for index, extension in enumerate(extensions):
        if index:
            yield ""
        yield from _detail(extension, columns)


def _detail(extension: Extension, columns: int) -> Iterator[str]:
    yield f"{NOUNS[extension.group]} {extension.name}"
    for block in extension.about:
        yield from fold(block, columns, first="  ", rest="    " if block[:2] == "- " else "  ")
    yield ""
    if extension.distribution not in (OURS, None):
        yield from paragraph("package", f"{extension.distribution}", columns)
    yield from paragraphs("code", [extension.target], columns)
    yield from paragraphs("uses", _uses(extension), columns)
    for name, text in extension.given.items():
        if text and not text.startswith("Not "):
            yield from paragraph(name, text, columns)
    yield ""
    yield "options" if extension.options else "no options"
    for option in extension.options:
        head = f"{option.name}  ({_kind(option)})"
        yield from fold(head, columns, first="  ", rest=INDENT)
        text = option.text or "its docstring says nothing about it"
        yield from fold(text, columns, first=INDENT, rest=INDENT)
    if extension.takes_more:
        yield "  and others that it does not name"
    if any("None" in option.text for option in extension.options):
        yield "None: the option is left out of the suite"


def _uses(extension: Extension) -> list[str]:
    """Return a line per extra, and one per library that no extra brings."""
    brought: dict[str, list[str]] = {}
    for library in extension.libraries:
        name = library.name if library.here else f"{library.name} (not installed)"
        extra = f"pytest-mlperf[{library.extra}]" if library.extra else ""
        brought.setdefault(extra, []).append(name)
    lines = [
        f"{', '.join(names)}: pip install '{extra}'" if extra else ", ".join(names)
        for extra, names in brought.items()
    ]
    return lines or ["nothing beyond pytest-mlperf"]


def _kind(option: Option) -> str:
    if option.required:
        more = "required"
    else:
        more = "optional" if option.default is None else f"default {toml(option.default)}"
    return ", ".join(filter(None, (option.kind, more)))


def toml(value: Any) -> str:
    """Return a default as a suite would write it."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            pairs = (f"{name} = {toml(own)}" for name, own in value.items())
            return f"{{ {', '.join(pairs)} }}"
        case _:
            return repr(value)
