"""`pytest-mlperf schema` prints what is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_mlperf import cli
from pytest_mlperf.cli.schema import SCHEMAS, published
from tests.cli.text import Say


def test_schemas_are_printed_as_they_are_published(say: Say) -> None:
    for name in SCHEMAS:
        assert say("schema", name) == (0, published(name).read_text("utf-8"))
    assert json.loads(say.ends(0, "schema"))["title"] == "Suite"


def test_schemas_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    shipped = {name: published(name).read_text("utf-8") for name in SCHEMAS}
    monkeypatch.setattr(cli.schema, "files", lambda _: tmp_path)

    shown = say.ends(0, "schema", "--write")

    assert {name: published(name).read_text("utf-8") for name in SCHEMAS} == shipped
    assert published("suite").is_relative_to(tmp_path)
    assert shown.count("wrote ") == len(SCHEMAS)
