"""`--mlperf-store`: sessions are kept, and no verdict depends on it."""

from __future__ import annotations

import pytest

from pytest_mlperf.stores.database import opened
from pytest_mlperf.stores.results import read_results
from tests.plugin.project import Project


def test_sessions_are_kept_and_one_that_was_missed_follows(project: Project) -> None:
    project.suite()
    url = "postgresql://ci:secret@127.0.0.1:1/perf"
    missed = project.run("suites", f"--mlperf-store={url}")
    kept = project.run("suites", "--mlperf-store=sqlite")

    assert missed.ret == kept.ret == 0
    assert "secret" not in missed.stdout.str()
    missed.stdout.fnmatch_lines(
        ["store: results not sent: postgresql://ci@127.0.0.1:1/perf: *; kept in .mlperf/unsent/*"]
    )
    kept.stdout.fnmatch_lines(["store: .mlperf/results.db"])
    first, two = sorted(project.path.glob(".mlperf/runs/*/results.json"))
    assert "secret" not in first.read_text("utf-8")
    (waiting,) = project.path.glob(".mlperf/unsent/*/*.json")
    assert waiting.read_bytes() == first.read_bytes()
    with opened(str(project.path / ".mlperf/results.db")) as store:
        session = read_results(two)
        assert store.sessions() == [session.run]
        assert store.session(session.run) == session


def test_a_url_of_no_store_ends_the_session_before_any_test(project: Project) -> None:
    project.suite()
    result = project.run("suites", "--mlperf-store=mysql://me:secret@db/perf")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --mlperf-store: 'mysql://me@db/perf' is not a results *"])
