"""A plan of which a batch system is to run the parts: read from a file or stdin, or refused."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mlperf.addons.fleet.plans import read_plan
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.stores.results import MANIFEST_KIND, MANIFEST_SCHEMA

JOBS = {"8xH100": {"suites/a b.mlperf.toml": 30}}


def content(**fields: object) -> bytes:
    plan = {"schema": MANIFEST_SCHEMA, "kind": MANIFEST_KIND, "tests": [], "jobs": JOBS}
    return json.dumps({**plan, **fields}).encode()


def test_a_plan_comes_from_a_file_or_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(content(options=["--mlperf-max-runs=7"]))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(file.read_bytes())))

    plan, text = read_plan(str(file))

    assert (plan, text) == read_plan("-")
    assert (plan.jobs, plan.options) == (JOBS, ("--mlperf-max-runs=7",))
    assert json.loads(text)["jobs"] == JOBS


@pytest.mark.parametrize(
    "fields",
    [
        {"jobs": {}},
        {"jobs": {"cpu": {}}},
        {"jobs": {"../cpu": {"a.mlperf.toml": 30}}},
        {"jobs": {"cpu; id": {"a.mlperf.toml": 30}}},
        {"jobs": {"cpu": {"-cevil.mlperf.toml": 30}}},
        {"jobs": {"cpu": {"conftest.py": 30}}},
        {"options": ["-pevil"]},
        {"jobs": {"cpu": {"a.mlperf.toml": "1; id"}}},
    ],
)
def test_words_that_a_shell_or_pytest_may_misread_are_refused(
    tmp_path: Path, fields: Mapping[str, object]
) -> None:
    """Also in a plan without jobs, as an earlier release printed it."""
    file = tmp_path / "plan.json"
    file.write_bytes(content(**fields))

    with pytest.raises(MlperfError, match="plan --format json"):
        read_plan(str(file))
