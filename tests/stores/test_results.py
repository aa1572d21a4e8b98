"""The results file: written whole, read back equal, and as its published schema says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_mlperf.cli.schema import published
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import SCHEMA_VERSION
from pytest_mlperf.core.verdict import Logs, Outcome
from pytest_mlperf.stores.results import (
    read_results,
    require_readable,
    results_schema,
    sealed,
    write_results,
)
from tests.reports import verdicts
from tests.reports.verdicts import metric, result, session

EVERY = session(*map(result, verdicts.ALL))


def strict(path: Path) -> Any:
    """Read JSON that is JSON for every tool: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(path.read_text("utf-8"), parse_constant=refuse)


def validate(content: Any) -> None:
    schema = json.loads(published("results").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(content)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "results.json"


def test_every_outcome_comes_back_as_it_was_written_and_as_the_schema_says(file: Path) -> None:
    missing = verdicts.unset("ttft_p50", None, None, limit=0.05, note="not measured")
    invalid = verdicts.verdict(Outcome.INVALID, "p50 TTFT: not measured", missing, metric())
    every = session(*EVERY.cases, result(invalid))

    write_results(file, every)

    assert read_results(file) == every
    validate(strict(file))
    assert strict(file)["label"] == "Result not verified by MLCommons Association."


def test_every_number_has_a_range() -> None:
    """A file from elsewhere holds nothing that overflows; a machine's properties are only shown.

    A verdict that could not be read back is known before it is kept. A ceiling lies above the
    reference: its limit is below 0, and readable.
    """
    for share in (0.9, 1.1):
        require_readable(verdicts.verdict(Outcome.GATE_FAIL, "x", metric(limit=1 - share)))
    with pytest.raises(ValueError, match=r"metrics\.0\.now"):
        require_readable(verdicts.verdict(Outcome.OK, "x", metric(now=1e200)))

    unbounded = [
        ".".join(place)
        for place, bounds in numbers(results_schema())
        if bounds != {"minimum", "maximum"} and "identity" not in place
    ]

    assert unbounded == []


def test_files_of_older_releases_are_read(file: Path) -> None:
    """Their handicap reaches the verdict; runs and verdicts named a drawing of power."""
    written = session(result(verdicts.DROP, handicap=0.5))
    write_results(file, written)
    document = json.loads(file.read_text("utf-8"))
    verdict = document["cases"][0]["verdict"]
    for name in ("handicap", "unchecked", "logs"):
        del verdict[name]
    verdict["timeline"] = verdict["runs"][0]["timeline"] = ".mlperf/runs/x/power.svg"
    file.write_text(json.dumps(sealed(document)), "utf-8")

    (read,) = read_results(file).cases

    (case,) = written.cases
    assert read == replace(case, verdict=replace(case.verdict, handicap=0.5, logs=Logs()))


@pytest.mark.process
def test_a_run_of_pytest_follows_the_schema(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_MLPERF_LEASES", str(pytester.path))
    (pytester.path / "s.mlperf.toml").write_text(
        'schema = 1\nround = "v4.1"\n[workload]\nname = "demo"\n'
        'dataset = { use = "synthetic", samples = 8 }\nscorer = { use = "top1" }\n'
        '[[engines]]\nuse = "null"\noptions = { latency_s = 0.001 }\n'
        '[[scenarios]]\nname = "Offline"\nmin_duration = "200ms"\ntarget_qps = 900\n',
        "utf-8",
    )

    pytester.runpytest_inprocess("s.mlperf.toml", "--mlperf-json", "r.json", "-p", "no:benchmark")

    content = strict(pytester.path / "r.json")
    validate(content)
    results = read_results(pytester.path / "r.json")
    assert [c.verdict.kind for c in results.cases] == ["accuracy", "performance"]
    assert results.cases[1].verdict.runs[0].metrics["throughput"] > 0
    (session_file,) = pytester.path.glob(".mlperf/runs/*/results.json")
    assert read_results(session_file) == results


def test_a_damaged_or_newer_file_is_named_with_the_place(file: Path) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"run": 3}, "run"),
        ({"cases": [{}]}, "cases"),
        ({"seconds": "long"}, "seconds"),
        ({"deselected": {"H200": "x"}}, "deselected.H200"),
    ]
    write_results(file, EVERY)
    whole = json.loads(file.read_text("utf-8"))
    for change, message_place in changes:
        file.write_text(json.dumps({**whole, **change}), "utf-8")
        with pytest.raises(MlperfError) as caught:
            read_results(file)
        assert str(caught.value).startswith(f"{file}: not a results file: {message_place}")
        with pytest.raises(jsonschema.ValidationError):
            validate({**whole, **change})

    file.write_text(json.dumps({"schema": SCHEMA_VERSION + 1, "anything": "else"}))
    with pytest.raises(MlperfError, match=r"written by a newer pytest-mlperf .*: upgrade"):
        read_results(file)
    cannot = r"the results cannot be written: (File exists|Not a directory)"
    with pytest.raises(MlperfError, match=cannot):
        write_results(file / "results.json", session())


def numbers(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield the place of every number of a schema, with what bounds it."""
    items = schema.items() if isinstance(schema, dict) else enumerate(schema)
    if isinstance(schema, dict) and schema.get("type") in {"number", "integer"}:
        yield path, {key.lower()[-7:] for key in schema if key.lower().endswith("imum")}
    for key, inside in items:
        if isinstance(inside, dict | list):
            yield from numbers(inside, (*path, str(key)))
