"""Test that the published JSON Schemas agree with the loader about structure."""

from __future__ import annotations

import datetime as dt
import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_mlperf.cli.schema import SCHEMAS, published, text
from pytest_mlperf.core.errors import SuiteError
from pytest_mlperf.registry import registered
from pytest_mlperf.suite.load import load_suite
from pytest_mlperf.suite.plan import plan_suite
from tests.suite.texts import DEFECTS, SUITE, with_

ROOT = Path(__file__).parents[2]

EXAMPLE = """\
#:schema https://pytest-mlperf.dev/schema/suite-1.json
schema  = 1
round   = "v4.1"
profile = "quick"

[workload]
name    = "resnet50"
model   = "${MLPERF_MODELS}/resnet50_v1.onnx"
dataset = { use = "imagenet", path = "${MLPERF_DATA}/imagenet" }

[[engines]]
use = "onnxruntime"
name = "ort-tp1"
precision = "fp8"
accelerators = ["H200", "2xH100"]
options = { threads = 1, batch_size = 8 }

[[scenarios]]
name = "Offline"
[[scenarios]]
name = "Server"
target_qps = { H200 = 13.0, "2xH100" = 9.5 }

[limits]
throughput = { max_drop = "3%" }
latency_p99 = { max_rise = "10%" }
tokens_per_joule = { max_drop = "5%" }
accuracy = { margin = "0.5%" }

[prices]
H200 = { usd_per_gpu_hour = 3.29, as_of = 2026-11-01 }

[[expected_failures]]
scenario = "Server"
accelerator = "H200"
metric = "latency_p99"
reason = "issue 812"
until = 2027-01-31
"""


def as_json(text: str) -> Any:
    """Return TOML as an editor's checker sees it: a day is a string."""

    def plain(value: object) -> str:
        assert isinstance(value, dt.date | dt.time)
        return value.isoformat()

    return json.loads(json.dumps(tomllib.loads(text), default=plain))


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(published("suite").read_text("utf-8")))


def errors(text: str) -> list[str]:
    return [error.message for error in validator().iter_errors(as_json(text))]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_schema_is_the_generated_one(name: str) -> None:
    shipped = published(name).read_text("utf-8")

    assert shipped == text(SCHEMAS[name]()), "run: pytest-mlperf schema --write"
    jsonschema.Draft202012Validator.check_schema(json.loads(shipped))


def test_the_projects_own_suites_are_valid() -> None:
    suites = sorted((ROOT / "suites").rglob("*.mlperf.toml"))
    for suite in suites:
        load_suite(suite)

    assert {suite.name: errors(suite.read_text("utf-8")) for suite in suites} == {
        suite.name: [] for suite in suites
    }


def test_the_schema_accepts_what_the_loader_accepts(tmp_path: Path) -> None:
    file = tmp_path / "s.mlperf.toml"
    for suite in (
        SUITE,
        EXAMPLE,
        EXAMPLE.replace('"0.5%"', '"1 point", reference = "ort-tp1"'),
        with_(("target_qps = 100", 'min_duration = "1.5min"\nlatency_limit = "15 ms"')),
        with_(('use = "null"', 'use = "mine:Engine"'), ("latency_s", "of_it")),
        with_(("0.001", "1")),
    ):
        file.write_text(suite, "utf-8")
        load_suite(file)
        assert errors(suite) == []


def test_the_schema_refuses_the_structure_that_the_loader_refuses() -> None:
    """And a misspelt option by its name."""
    refused = [defect for defect in DEFECTS if defect.by_schema]
    assert len(refused) > 80
    assert [defect.text for defect in refused if not errors(defect.text)] == []
    errors_by_engine = {
        use: errors(with_(('use = "null"', f'use = "{use}"'), ("latency_s", "batchsize_")))
        for use in registered("engines")
    }
    assert [
        use
        for use in errors_by_engine
        if "'batchsize_' was unexpected" not in " ".join(errors_by_engine[use])
    ] == []


def test_the_schema_refuses_the_options_that_a_plan_refuses(tmp_path: Path) -> None:
    """One is misspelt, one of another kind, and one that is needed is missing."""
    file = tmp_path / "s.mlperf.toml"
    triton = (('use = "null"', 'use = "triton"'), ("latency_s = 0.001", "batch_size = 8"))
    for changes in ((("latency_s", "latency"),), (("0.001", '"1 ms"'),), triton):
        file.write_text(with_(*changes), "utf-8")
        with pytest.raises(SuiteError):
            plan_suite(file)
        assert errors(with_(*changes)) != []
