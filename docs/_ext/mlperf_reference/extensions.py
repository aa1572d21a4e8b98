"""Describe the package's engines, data sets, scorers and builders with their options."""

from __future__ import annotations

from collections.abc import Iterator

from mlperf_reference.markdown import code, definitions, named, slug, text
from pytest_mlperf.cli.options import Extension, read_extension, toml
from pytest_mlperf.core.declaration import Option
from pytest_mlperf.core.imports import normal
from pytest_mlperf.registry import Group, registered
from pytest_mlperf.suite.libraries import DISTRIBUTION, NOUNS


def own(group: Group) -> list[Extension]:
    """Return the package's entries in a group, in the order of pyproject.toml."""
    entries = registered(group).values()
    names = [
        entry.name for entry in entries if entry.dist and normal(entry.dist.name) == DISTRIBUTION
    ]
    return [read_extension(group, name) for name in names]


def anchor(extension: Extension, option: Option) -> str:
    """Return the id of an option on the page."""
    return slug(extension.group, extension.name, option.name)


def markdown(group: Group) -> str:
    """Return a section per extension of a group."""
    return "\n\n".join(block for extension in own(group) for block in _section(extension))


def _section(extension: Extension) -> Iterator[str]:
    yield f"### {NOUNS[extension.group]} {extension.name}"
    yield "\n".join(_paragraphs(extension.declaration.about))
    yield "\n".join(f"- {line}" for line in _facts(extension))
    if extension.options:
        yield definitions(
            (_term(extension, option), text(option.text)) for option in extension.options
        )
    if extension.declaration.takes_more:
        yield "It takes further options that it does not name."


def _paragraphs(blocks: tuple[str, ...]) -> Iterator[str]:
    for block in blocks:
        yield f"- {text(block[2:])}" if block.startswith("- ") else f"\n{text(block)}\n"


def _facts(extension: Extension) -> Iterator[str]:
    yield f"code: {code(extension.target)}"
    brought: dict[str | None, list[str]] = {}
    for name, library in extension.libraries.items():
        brought.setdefault(library["extra"], []).append(name)
    for extra, names in brought.items():
        listed = ", ".join(map(code, names))
        install = f"pip install 'pytest-mlperf[{extra}]'"
        yield f"uses {listed}: {code(install)}" if extra else f"uses {listed}"
    for name, words in extension.declaration.supplied.items():
        if words and not words.startswith("Not "):
            yield f"{code(name)}: {text(words)}"


def _term(extension: Extension, option: Option) -> str:
    if option.required:
        more = "required"
    else:
        more = "optional" if option.default is None else f"default {code(toml(option.default))}"
    kind = f"{text(option.kind)}, " if option.kind else ""
    return f"{named(option.name, anchor(extension, option))} · {kind}{more}"
