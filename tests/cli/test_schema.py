"""`pytest-mlperf schema` prints what is published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_mlperf import cli
from pytest_mlperf.cli import main
from pytest_mlperf.cli.schema import SCHEMAS, published


def test_schemas_are_printed_as_they_are_published(capsys: pytest.CaptureFixture[str]) -> None:
    for name in SCHEMAS:
        assert main(["schema", name]) == 0
        assert capsys.readouterr().out == published(name).read_text("utf-8")


def test_the_suite_schema_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Suite"


def test_schemas_are_written_into_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = {name: published(name).read_text("utf-8") for name in SCHEMAS}
    monkeypatch.setattr(cli.schema, "files", lambda _: tmp_path)

    assert main(["schema", "--write"]) == 0

    assert {name: published(name).read_text("utf-8") for name in SCHEMAS} == shipped
    assert published("suite").is_relative_to(tmp_path)
    assert capsys.readouterr().out.count("wrote ") == len(SCHEMAS)
