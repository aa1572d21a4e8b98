"""`pytest-mlperf schema`: print the JSON Schemas, generated from the types."""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from pytest_mlperf import registry
from pytest_mlperf.cli.output import show
from pytest_mlperf.core.declaration import Declaration, Option, declaration_of
from pytest_mlperf.core.untrusted_text import every_text
from pytest_mlperf.stores.results import results_schema
from pytest_mlperf.suite.model import SCHEMA_ID, Suite


def suite_schema() -> dict[str, Any]:
    """Return the JSON Schema of suites; options of foreign engines are not checked."""
    schema = every_text(Suite.model_json_schema(), _on_one_line)
    declared = {
        use: declaration_of(registry.resolve(entry.value))
        for use, entry in sorted(registry.registered("engines").items())
        if entry.module.partition(".")[0] == registry.__package__
    }
    schema["$defs"] |= {f"options of {use}": _options(each) for use, each in declared.items()}
    schema["$defs"]["EngineEntry"]["allOf"] = [_entry(use, each) for use, each in declared.items()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
    }


def _on_one_line(text: str) -> str:
    return " ".join(text.split()) if "\n" in text else text


def _options(declaration: Declaration) -> dict[str, Any]:
    return {
        "properties": {name: _value(option) for name, option in declaration.options.items()},
        "additionalProperties": declaration.takes_more,
    }


def _entry(use: str, declaration: Declaration) -> dict[str, Any]:
    options = {"$ref": f"#/$defs/options of {use}"}
    on = {"additionalProperties": {"properties": {"options": options}}}
    then: dict[str, Any] = {"properties": {"options": options, "on": on}}
    required = [option.name for option in declaration.options.values() if option.required]
    if required:  # each accelerator may have what is missing here as one of its own
        here = {"required": ["options"], "properties": {"options": {"required": required}}}
        then["anyOf"] = [here, {"required": ["on"]}]
    return {"if": {"properties": {"use": {"const": use}}, "required": ["use"]}, "then": then}


def _value(option: Option) -> dict[str, Any]:
    try:
        schema = TypeAdapter(option.annotation).json_schema()
    except PydanticUserError:
        schema = {}
    if not option.required and option.default is not None:
        schema["default"] = option.default
    return {**schema, "description": option.text} if option.text else schema


SCHEMAS = {"suite": suite_schema, "results": results_schema}


def published(name: str) -> Path:
    """Return the path of a schema file in this package."""
    return Path(str(files("pytest_mlperf"))) / "schemas" / f"{name}.schema.json"


HELP = """\
Prints the JSON Schema of suite files or of results files. Editors for TOML
complete and check a suite whose first line names the schema.

needs: nothing

examples:
  $ pytest-mlperf schema > suite.schema.json
      first line of a suite: #:schema ./suite.schema.json
  $ pytest-mlperf schema results
      the format of results.json, for programs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "name", nargs="?", choices=sorted(SCHEMAS), default="suite", help="default: suite"
    )
    parser.add_argument(
        "--write", action="store_true", help="write all into the package (for its developers)"
    )


def run(parsed: argparse.Namespace) -> int:
    """Print one schema, or write all of them into the package."""
    if parsed.write:
        for name, make in SCHEMAS.items():
            published(name).parent.mkdir(exist_ok=True)
            published(name).write_text(text(make()), "utf-8")
            show([f"wrote {published(name)}"])
    else:
        print(text(SCHEMAS[parsed.name]()), end="")
    return 0


def text(schema: dict[str, Any]) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
