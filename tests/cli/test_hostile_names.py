"""A results file from elsewhere cannot make a command write outside of the baselines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_mlperf.cli import main
from pytest_mlperf.core.verdict import Logs, Outcome
from pytest_mlperf.stores.results import sealed, write_results
from tests.cli.text import Say, differing
from tests.reports import verdicts
from tests.reports.verdicts import SUITE, result, run, session

FIELDS = (
    ("profile",),
    ("suite",),
    ("test",),
    ("round",),
    ("division",),
    *(
        ("verdict", "case", name)
        for name in ("workload", "scenario", "engine", "precision", "accelerator")
    ),
    ("verdict", "baseline", "file"),
    ("verdict", "logs", "folder"),
)

TEXTS = st.one_of(
    st.sampled_from(
        [
            "../../../escaped",
            "../escaped",
            "..",
            "a\nb",
            "a\0b",
            "x" * 300,
            "-o",
            "@file",
            "open",
            "{outside}/suite.mlperf.toml",
            "{outside}",
            "/dev/zero",
        ]
    ),
    st.text(max_size=6),
)

COMMANDS = (
    ("update", "r.json", "--write", "--no-runs", "--reason", "because"),
    ("update", "r.json", "--write", "--reason", "because"),
    ("report", "r.json", "-o", "out/report.txt"),
    ("merge", "r.json", "-o", "out/merged.json", "--junit", "out/junit.xml"),
)

SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def document(changes: dict[tuple[str, ...], str], outside: Path) -> str:
    """Return a results file that could be accepted, but for these texts."""
    runs = tuple(run(number, throughput=100.0) for number in range(8))
    verdict = verdicts.verdict(Outcome.NO_BASELINE, "no record", subject=verdicts.SUBJECT)
    fields: dict[str, Any] = {"runs": runs, "logs": Logs()}
    write_results(Path("r.json"), session(result(replace(verdict, **fields))))
    content = json.loads(Path("r.json").read_text("utf-8"))
    for path, text in changes.items():
        case_document = content["cases"][0]
        for key in path[:-1]:
            case_document = case_document[key]
        case_document[path[-1]] = text.replace("{outside}", str(outside))
    return json.dumps(sealed(content))


def files(folder: Path) -> set[Path]:
    """Return everything below a folder."""
    return set(folder.rglob("*"))


@SETTINGS
@given(
    changes=st.dictionaries(st.sampled_from(FIELDS), TEXTS, min_size=1, max_size=3),
    command=st.sampled_from(COMMANDS),
)
def test_nothing_is_written_outside_of_the_baselines(
    changes: dict[tuple[str, ...], str],
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    for folder in (project / "suites", project / "baselines", outside / "baselines"):
        folder.mkdir(parents=True, exist_ok=True)
    (project / SUITE).touch()
    (outside / "suite.mlperf.toml").touch()
    monkeypatch.chdir(project)
    Path("r.json").write_text(document(changes, outside), "utf-8")
    files_at_start = files(tmp_path)
    assert main(list(command)) in {0, 1, 2, 3}
    new = {path for path in files(tmp_path) - files_at_start if path.is_file()}
    allowed = (project / "baselines", project / "out", project / ".mlperf")
    assert [path for path in new if not any(map(path.is_relative_to, allowed))] == []


def test_a_name_that_leads_elsewhere_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    for name in ("suites", "baselines"):
        (tmp_path / "project" / name).mkdir(parents=True)
    (tmp_path / "suite.mlperf.toml").touch()
    monkeypatch.chdir(tmp_path / "project")
    Path(SUITE).touch()
    Path("r.json").touch()
    files_at_start = files(tmp_path)
    case = ("verdict", "case")
    fields: list[tuple[tuple[str, ...], str, str]] = [
        ((*case, "precision"), "../../../escaped", "cannot be part of a file's path"),
        ((*case, "workload"), "/etc/x", "workload '/etc/x' cannot be part of a "),
        ((*case, "engine"), "a\nb", r"engine 'a\nb' cannot be part of a file's path"),
        (
            ("suite",),
            "{outside}/suite.mlperf.toml",
            "suite.mlperf.toml does not exist; run this in ",
        ),
    ]
    for field, text, reason in fields:
        Path("r.json").write_text(document({field: text}, tmp_path), "utf-8")
        line = ("update", "r.json", "--write", "--reason", "because")
        assert differing(say, [(line, 1, (reason,))]) == []
        assert files(tmp_path) == files_at_start
