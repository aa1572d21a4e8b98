"""`pytest-mlperf report`: results as text, as an HTML page, and for other tools."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pytest_mlperf.cli.output import add_parser, clean, show, width, write
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.foreign_text import json_text
from pytest_mlperf.core.merging import Absent, absent
from pytest_mlperf.core.results import Results
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.reports import exports, markdown, text
from pytest_mlperf.reports.annotations import commands as annotations_of
from pytest_mlperf.reports.benchmark_json import commit_info, document
from pytest_mlperf.stores.manifest import read_manifest
from pytest_mlperf.stores.results import read_results

MACHINE_INFO = """
import json
from pytest_benchmark.plugin import pytest_benchmark_generate_machine_info as machine_info
print(json.dumps(machine_info()))
"""
"""pytest-benchmark's own words on this machine; in a child, because they need pytest."""

DESCRIPTION = (
    "Writes a session's results in another form. text is the summary that pytest\n"
    "printed; json is the file itself, checked and in the newest schema;\n"
    "pytest-benchmark is what --benchmark-json writes, also for sessions under -n,\n"
    "where pytest-benchmark switches itself off: one entry per performance test\n"
    "that passed, one round per run, in seconds: 1 / throughput in Offline, else the\n"
    "run's p50 latency; extra_info holds every metric. markdown is a GitHub job's\n"
    "summary, comment a pull request's, both cut at GitHub's limits; annotations are\n"
    "workflow commands at the suite's lines. csv and prometheus have a line per\n"
    "metric; the two custom formats are what github-action-benchmark reads.\n"
    "html is one page that loads nothing, with plots; it also reads the baselines\n"
    "that the verdicts name, and the runs' logs where they lie below the results\n"
    "file's folder."
)


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "report",
        summary="results as text, HTML, Markdown, CSV and for other tools",
        description=DESCRIPTION,
        needs="a results.json, as in .mlperf/runs/<id>/ or written by --mlperf-json",
        examples=[
            ("report r.json", "the table of verdicts, as in the terminal"),
            (
                "report r.json --format pytest-benchmark -o now.json",
                "then: pytest-benchmark compare before.json now.json",
            ),
            ("report r.json --format html -o report.html", "the page for a CI's artifacts"),
            ("report r.json --format markdown -o summary.md", "append it to $GITHUB_STEP_SUMMARY"),
        ],
    )
    parser.add_argument("results", type=Path, help="results.json")
    parser.add_argument(
        "--format",
        choices=sorted(FORMATS),
        default="text",
        metavar="FORMAT",
        help=f"{', '.join(FORMATS)} (default: text)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write here (default: print)"
    )
    parser.add_argument(
        "--manifest",
        type=Path,
        metavar="FILE",
        help="what `plan --format json` printed: planned tests without a result are told "
        "(html, markdown, comment, annotations)",
    )
    parser.add_argument("--run-url", metavar="URL", help="comment: where the run is")
    parser.add_argument("--report-url", metavar="URL", help="comment: where the HTML report is")
    parser.set_defaults(run=run)


@dataclass(frozen=True, kw_only=True)
class Session:
    """What a report is made of.

    Attributes:
        results: What was found.
        file: Where that was read; an HTML page also shows what lies beside it.
        absent: Planned tests without a result.
        links: Where to look further.
    """

    results: Results
    file: Path
    absent: Sequence[Absent]
    links: markdown.Links


def run(parsed: argparse.Namespace) -> int:
    """Write the report; the verdicts in it do not change the exit code.

    Raises:
        MlperfError: The results cannot be read or the report cannot be written.
    """
    results = read_results(parsed.results)
    planned = read_manifest(parsed.manifest).tests if parsed.manifest else ()
    session = Session(
        results=results,
        file=parsed.results,
        absent=absent((one.test for one in planned), results),
        links=markdown.Links(run=parsed.run_url, report=parsed.report_url),
    )
    try:
        content = FORMATS[parsed.format](session)
    except (ValueError, ArithmeticError) as error:  # what no run can measure, such as 0 samples/s
        raise MlperfError(f"{parsed.results}: {error}") from None
    if parsed.output is None:
        print(content, end="")
        return 0
    write(parsed.output, content)
    show([f"wrote {parsed.output}"])
    return 0


def _alone(make: Callable[[Results], str]) -> Callable[[Session], str]:
    return lambda session: make(session.results)


def _html(session: Session) -> str:
    from pytest_mlperf.cli.report_html import html

    return html(session.results, session.file, session.absent)


def _text(results: Results) -> str:
    lines = text.summary(results, width(), colour=False)
    return "".join(f"{clean(line)}\n" for line in lines)


def _json(results: Results) -> str:
    content = TypeAdapter(Results).dump_python(results, mode="json")
    return json_text(content) + "\n"


def _benchmark(results: Results) -> str:
    content = document(
        results, machine_info=machine_info(results), commit_info=commit_info(results)
    )
    return json.dumps(content, indent=4) + "\n"


def machine_info(results: Results) -> dict[str, Any]:
    """Return the machine as pytest-benchmark describes it, where it is this one.

    Results that were measured elsewhere are only known by the identity of their hardware.
    """
    subjects = {
        result.verdict.case.accelerator: result.verdict.subject.identity
        for result in results.cases
        if result.verdict.subject
    }
    machine = detect(gpus=any(name != "cpu" for name in subjects))
    here = all(machine.identity(name) == identity for name, identity in subjects.items())
    if here and subjects:
        command = [sys.executable, "-c", MACHINE_INFO]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout)
            return found
    return {name: dict(identity) for name, identity in subjects.items()}


FORMATS: dict[str, Callable[[Session], str]] = {
    "text": _alone(_text),
    "html": _html,
    "json": _alone(_json),
    "pytest-benchmark": _alone(_benchmark),
    "markdown": lambda session: markdown.summary(session.results, session.absent),
    "comment": lambda session: markdown.comment(
        session.results, session.absent, links=session.links
    ),
    "annotations": lambda session: annotations_of(session.results, session.absent),
    "csv": _alone(exports.csv_table),
    "prometheus": _alone(exports.prometheus),
    "customBiggerIsBetter": _alone(exports.bigger_is_better),
    "customSmallerIsBetter": _alone(exports.smaller_is_better),
}
