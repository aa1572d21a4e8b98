"""Whatever a results file holds, every command reads it or says in a sentence why not."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_mlperf.cli import main
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.reports.formats import formats
from pytest_mlperf.stores.results import read_results, write_results
from tests.cli.text import Say, differing
from tests.reports import verdicts
from tests.reports.verdicts import CASE, SUITE, result, session

SESSION = session(
    *(
        result(replace(verdict, case=replace(verdict.case, engine=f"e{number}")))
        for number, verdict in enumerate(verdicts.ALL)
    ),
    result(verdicts.PAIR_FAIL),
    skipped={"suites/x.mlperf.toml::test_accuracy[y]": "no model"},
)
"""One verdict of every kind."""

VALUES: st.SearchStrategy[object] = st.sampled_from(
    [
        *(math.nan, math.inf, -math.inf, 1e400, -1.0, -1, 0, 0.0, 1e-320, 1e308, 10**400, 2**63),
        *(1e-30, 1e30, 1e100, -1e100, 1e10, 2**53, 0.5, 1, 3, 1000),
        *("5", "", "NaN", "\x1b[2J", "\udcff", "::error::x", "../x", "x" * 5000, "a\0b"),
        *(None, True, [], {}, [[]], {"": None}, [1e-320] * 3),
    ]
)

COMMANDS = (
    ("update", "r.json"),
    ("update", "r.json", "--no-runs", "--write", "--reason", "because"),
    *(("report", "r.json", "--format", form) for form in formats()),
    ("merge", "r.json", "-o", "merged.json", "--junit", "merged.xml"),
    ("merge", "r.json", "good.json"),
    ("explain", CASE.engine, "--results", "r.json"),
    ("explain", "e0", "--results", "r.json"),
    ("compare", "good.json", "r.json"),
    ("compare", "r.json", "good.json"),
    ("plan", "suites"),
)


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the key path of every value of a document."""
    if path:
        yield path
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))
        else:
            yield (*path, key)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a good results file."""
    monkeypatch.chdir(tmp_path)
    Path("baselines").mkdir()
    Path(SUITE).parent.mkdir()
    Path(SUITE).write_text("schema = 1\n", "utf-8")
    write_results(Path("good.json"), SESSION)
    return tmp_path


@pytest.mark.process
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), command=st.sampled_from(COMMANDS))
@pytest.mark.usefixtures("here")
def test_no_value_ends_a_command_in_a_traceback(data: st.DataObject, command: Any) -> None:
    content = json.loads(Path("good.json").read_text("utf-8"))
    every = sorted(places(content), key=repr)
    for path in data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=3)):
        inside = content
        try:
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = data.draw(VALUES)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took it away
    Path("r.json").write_text(json.dumps(content), "utf-8")
    assert main(list(command)) in {0, 1, 2, 3}


@pytest.mark.process
@pytest.mark.usefixtures("here")
def test_every_command_reads_every_kind_of_verdict() -> None:
    Path("r.json").write_bytes(Path("good.json").read_bytes())
    codes = {command: main(list(command)) for command in COMMANDS}
    assert [command for command, code in codes.items() if code not in {0, 1, 2, 3}] == []


IMPOSSIBLE: list[tuple[tuple[Any, ...], Any, str]] = [
    (("seconds",), 1e400, "seconds: must be a finite number, not inf"),
    (("cases", 0, "limits", "throughput"), math.nan, "must be a finite number, not nan"),
    (("cases", 0, "handicap"), -1.0, "cases[0].handicap: must be at least 0, not -1.0"),
    (("cases", 0, "line"), "14", "cases[0].line: must be a valid integer, not '14'"),
    (("cases", 0, "profile"), "fast", "cases[0].profile: must be 'quick' or 'official', not"),
    (("cases", 0, "max_runs"), 10**9, "cases[0].max_runs: must be at most 1000, not 1000000"),
    (
        ("cases", 0, "verdict", "runs", 1, "metrics", "throughput"),
        1e-320,
        "cases[0].verdict.runs[1].metrics.throughput: must be at least 1e-30, not 1e-320",
    ),
    (
        ("cases", 0, "verdict", "metrics", 0, "runs"),
        10**400,
        "cases[0].verdict.metrics[0].runs: must be at most 9.0072e+15, not 10000",
    ),
]


def test_impossible_values_are_refused_with_their_place(here: Path, say: Say) -> None:
    assert here == Path.cwd()
    end = "; use the results.json that pytest wrote, or measure again: pytest suites"
    for number, (path, value, reason) in enumerate(IMPOSSIBLE):
        inside = content = json.loads(Path("good.json").read_text("utf-8"))
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = value
        Path("r.json").write_text(json.dumps(content), "utf-8")
        texts = ("pytest-mlperf: r.json: not a results file: ", reason, end)
        commands = ("report",) if number else ("update", "report", "merge")
        rows = [((command, "r.json"), 2, texts) for command in commands]
        assert differing(say, rows) == []


def test_a_session_can_be_read_back(here: Path) -> None:
    """Every kind of verdict, and the ends of what may be."""
    slow = replace(verdicts.run(), metrics={"throughput": 1e-9}, target_qps=0.0, queries=0)
    few = replace(verdicts.FELL, low=None, high=None, correlation=None)
    edges = session(
        result(replace(verdicts.OK, runs=(slow,)), target_qps=None, limits={}),
        result(replace(verdicts.ACC_DROP, paired=(few,))),
        seconds=0.0,
    )
    for results in (SESSION, edges):
        write_results(here / "session.json", results)
        content = json.loads((here / "session.json").read_text("utf-8"))
        results_read = read_results(here / "session.json")
        assert results_read == results
        assert all(type(run) is Run for case in results_read.cases for run in case.verdict.runs)
        assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_special_files_are_refused_without_a_wait(here: Path) -> None:
    os.mkfifo(here / "pipe")
    for path, kind in ((here / "pipe", "pipe"), (Path("/dev/zero"), "device")):
        with pytest.raises(MlperfError, match=f"as a results file: it is a {kind}"):
            read_results(path)
