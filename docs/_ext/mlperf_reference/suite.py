"""List every key of a suite file, from its JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlperf_reference.markdown import code, named, slug, table, text
from mlperf_reference.words import KEYS, TABLES
from pytest_mlperf.cli.schema import suite_schema

Schema = Mapping[str, Any]

TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "table",
    "null": "",
}


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key.

    Attributes:
        table: Its table, "engines.build"; "" at the top of the file.
        name: As a suite writes it.
        value: What it takes, as Markdown.
        required: A suite without it is refused.
        default: As a suite would write it, or "".
        text: What it means; "" where nobody says so.
    """

    table: str
    name: str
    value: str
    required: bool
    default: str
    text: str

    @property
    def path(self) -> str:
        """The key with its table: "engines.use"."""
        return f"{self.table}.{self.name}".strip(".")

    @property
    def anchor(self) -> str:
        """Its id on the page."""
        return slug("suite", self.path)


def every_key() -> list[Key]:
    """Return every key in the order of the file."""
    schema = suite_schema()
    return list(_keys("", schema, schema["$defs"]))


def undescribed() -> list[str]:
    """Return the keys whose description is not in the schema."""
    schema = suite_schema()
    return [key.path for key in _keys("", schema, schema["$defs"], words={}) if not key.text]


def markdown() -> str:
    """Return a section per table."""
    found = every_key()
    blocks = []
    for name in dict.fromkeys(key.table for key in found):
        title, about = TABLES[name]
        blocks += [f"## {title}", about, _table([key for key in found if key.table == name])]
    return "\n\n".join(blocks)


def _table(found: list[Key]) -> str:
    rows = [
        [
            named(key.name, key.anchor),
            key.value,
            "required" if key.required else code(key.default) if key.default else "",
            text(key.text),
        ]
        for key in found
    ]
    return table(("key", "value", "default", "meaning"), rows)


def _keys(
    name: str, schema: Schema, known: Schema, words: Mapping[str, str] = KEYS
) -> Iterator[Key]:
    """Yield the keys of a table, then those of the tables below it."""
    below: list[tuple[str, Schema]] = []
    needed = schema.get("required", [])
    for key, found in schema.get("properties", {}).items():
        path = f"{name}.{key}".strip(".")
        yield Key(
            table=name,
            name=key,
            value=_value(found, known),
            required=key in needed,
            default=_default(found),
            text=found.get("description") or words.get(path, ""),
        )
        inner = _table_of(found, known)
        if inner is not None and _documented(path, inner):
            below.append((path, inner))
    for path, inner in below:
        yield from _keys(path, inner, known, words)


def _documented(path: str, inner: Schema) -> bool:
    """Whether a table has keys of its own that are not written elsewhere."""
    # Each metric has the same key, and the limits of a scenario are those of the suite.
    alike = path == "scenarios.limits" or re.fullmatch(r"limits\.(?!accuracy).*", path)
    return bool(inner.get("properties")) and not alike


def _table_of(schema: Schema, known: Schema) -> Schema | None:
    """Return the table in a key, or in its list or mapping; None if it has no table."""
    for choice in _choices(schema, known):
        if choice.get("properties"):
            return choice
        for inner in (choice.get("items"), choice.get("additionalProperties")):
            if isinstance(inner, dict) and (found := _table_of(inner, known)):
                return found
        for inner in choice.get("patternProperties", {}).values():
            if found := _table_of(inner, known):
                return found
    return None


def _choices(schema: Schema, known: Schema) -> Iterator[Schema]:
    if "$ref" in schema:
        yield from _choices(known[schema["$ref"].rpartition("/")[2]], known)
    elif "anyOf" in schema:
        for choice in schema["anyOf"]:
            yield from _choices(choice, known)
    else:
        yield schema


def _value(schema: Schema, known: Schema) -> str:
    found = dict.fromkeys(filter(None, (_kind(c, known) for c in _choices(schema, known))))
    return " or ".join(found)


def _kind(schema: Schema, known: Schema) -> str:
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(value)) for value in schema["enum"])
    kind = schema.get("type", "")
    if isinstance(kind, list):
        return " or ".join(filter(None, map(TYPES.__getitem__, kind)))
    if kind == "array":
        inner = _value(schema.get("items", {}), known)
        return f"list of {inner}s" if inner in {"text", "table", "number"} else f"list of {inner}"
    if schema.get("format") == "date":
        return "date"
    return TYPES.get(kind, "anything")


def _default(schema: Schema) -> str:
    value = schema.get("default")
    return "" if value in (None, [], {}) or isinstance(value, dict) else json.dumps(value)
