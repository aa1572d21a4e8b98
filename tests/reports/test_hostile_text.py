"""Every writer gets every text: none loses a result, and none lets a control character through."""

from __future__ import annotations

import json
import tempfile
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mlperf.addons.exports import bigger, csv_table, junit, prometheus
from pytest_mlperf.addons.github import annotations as workflow_commands
from pytest_mlperf.addons.github import comment, markdown
from pytest_mlperf.addons.html._page import render
from pytest_mlperf.addons.html.model import RunFiles
from pytest_mlperf.cli.explain import newest_session_with
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import Absent, CaseResult, Results
from pytest_mlperf.core.untrusted_text import BROKEN_COLONS, encodable, every_text, visible
from pytest_mlperf.reports.for_pytest import properties
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.stores import atomic
from pytest_mlperf.stores.results import read_results, write_results
from tests.reports.verdicts import DROP, OK, reported, result, session

OBEYED = "\x1b[2J\x9b31m\r\n::error::\u202e\u2066\u200f\u2028\x85\x00\udcff"
LETTERS = st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp", "Ll"])
HOSTILE = st.one_of(st.just(OBEYED), st.text(LETTERS, max_size=12))


def spoilt(more: str) -> Results:
    """Return a session in which every free text holds `more`; enumerations stay unchanged."""
    return session(*(_spoilt(result(one), more) for one in (DROP, OK)), skipped={more: more})


def _spoilt(results: CaseResult, more: str) -> CaseResult:
    def change(spoil: str) -> str:
        fixed = type(spoil) is not str or spoil.startswith("2026-") or spoil in FIXED
        return spoil if fixed else f"{spoil}{more}"

    return every_text(results, change)


GONE = [Absent(test=OBEYED, reason=OBEYED)]

FIXED = {"performance", "Offline", "closed", "quick", "suite", "throughput", "latency_p50"}


def lines_of_junit(results: Results) -> str:
    root = ET.fromstring(junit.report(reported(results, absent=GONE)))
    return "\n".join([*root.itertext(), *(v for node in root.iter() for v in node.attrib.values())])


WRITERS: dict[str, Callable[[Results], str]] = {
    "failure": lambda results: "\n".join(text.failure(r, 80) for r in results.cases),
    "summary": lambda results: "\n".join(text.summary(results, 80, colour=False)),
    "markdown": lambda results: markdown.report(reported(results, absent=GONE)),
    "comment": lambda results: comment.report(reported(results)),
    "annotations": lambda results: workflow_commands.report(reported(results)),
    "csv": lambda results: csv_table.report(reported(results)),
    "prometheus": lambda results: prometheus.report(reported(results)),
    "bigger": lambda results: json.loads(bigger.report(reported(results)))[0]["extra"],
    "junit": lines_of_junit,
    "properties": lambda results: "\n".join(
        part for one in results.cases for pair in properties(one) for part in pair
    ),
}


@pytest.mark.parametrize("name", WRITERS)
@settings(deadline=None, max_examples=25)
@given(more=HOSTILE)
def test_no_writer_lets_a_control_character_through(name: str, more: str) -> None:
    written = WRITERS[name](spoilt(more))

    written.encode()
    assert visible(written.replace(BROKEN_COLONS, ""), keep="\n\t") == written.replace(
        BROKEN_COLONS, ""
    )


def test_no_line_can_be_added_to_a_table_for_other_programs() -> None:
    """Colours are ours alone."""
    results, plain = reported(spoilt(OBEYED)), reported(spoilt(""))

    for form in (csv_table, prometheus, workflow_commands):
        assert len(form.report(results).splitlines()) == len(form.report(plain).splitlines())
    lines = text.summary(spoilt("\x1b[32mok\x1b[0m"), 100, colour=True)

    text_of_table = "\n".join(lines)
    assert "\x1b[31mPERF DROP\x1b[0m" in text_of_table
    assert text_of_table.count("\x1b") == 2 * sum(line.count("\x1b[3") for line in lines)
    assert "\\x1b[32mok\\x1b[0m" in text_of_table


@settings(deadline=None, max_examples=25)
@given(more=HOSTILE)
def test_results_are_written_and_read_with_any_texts(more: str) -> None:
    results = spoilt(more)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        write_results(file, results)
        content = file.read_text("utf-8")

        assert visible(content, keep="\n") == content
        assert read_results(file) == encodable(results)


@settings(deadline=None, max_examples=3)
@given(more=HOSTILE)
def test_the_page_shows_hostile_text_without_executing_it(more: str) -> None:
    page = render(spoilt(more), RunFiles(notes=[more]))

    page.encode()
    assert not [c for c in page if unicodedata.category(c) in {"Cf", "Cs", "Zl", "Zp"}]
    assert not set(page) & {chr(n) for n in (*range(9), *range(11, 32), *range(127, 160))}


def test_text_that_no_file_can_hold_is_written_as_an_escape(tmp_path: Path) -> None:
    """Also where a results file from elsewhere has it."""
    atomic.write_text(tmp_path / "log", "a\udcffb")
    assert (tmp_path / "log").read_text("utf-8") == "a\\udcffb"
    file = tmp_path / "results.json"
    write_results(file, session(result(DROP)))
    content = json.loads(file.read_text("utf-8").replace("set 2026-10-02", "\\udcff"))
    del content["digest"]
    file.write_text(json.dumps(content), "utf-8")

    (case_result,) = read_results(file).cases
    assert str(case_result.verdict.baseline.source).startswith("\\udcff")
    with pytest.raises(MlperfError) as refusal:
        newest_session_with("nothing", [(tmp_path / "r.json", spoilt(OBEYED))])
    assert visible(str(refusal.value)) == str(refusal.value)
