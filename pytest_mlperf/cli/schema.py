"""`pytest-mlperf schema`: the published JSON Schemas, generated from the types."""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from pytest_mlperf.cli.output import add_parser, show
from pytest_mlperf.stores.results import results_schema
from pytest_mlperf.suite.model import SCHEMA_ID, Suite


def suite_schema() -> dict[str, Any]:
    """Return the JSON Schema of suite files."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **Suite.model_json_schema(),
    }


SCHEMAS = {"suite": suite_schema, "results": results_schema}


def published(name: str) -> Path:
    """Return the path of a schema inside the package."""
    return Path(str(files("pytest_mlperf"))) / "schemas" / f"{name}.schema.json"


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "schema",
        summary="print a JSON Schema, for editors and tools",
        description=(
            "Prints the JSON Schema of suite files or of results files. An editor that knows\n"
            "TOML completes and checks a suite whose first line names the schema."
        ),
        needs="nothing",
        examples=[
            (
                "schema > suite.schema.json",
                'then begin a suite with: "#:schema ./suite.schema.json"',
            ),
            ("schema results", "what a program that reads results.json can rely on"),
        ],
    )
    parser.add_argument(
        "name", nargs="?", choices=sorted(SCHEMAS), default="suite", help="default: suite"
    )
    parser.add_argument(
        "--write", action="store_true", help="write all into the package (for its developers)"
    )
    parser.set_defaults(run=run)


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
    """Return a schema as it is published."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
