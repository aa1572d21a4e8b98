"""Run `pytest-mlperf export`: write a curve's run as an MLPerf Endpoints submission."""

from __future__ import annotations

import argparse
import json
import os
from importlib.resources import files
from pathlib import Path
from statistics import geometric_mean

from pytest_mlperf import MlperfError, Verdict
from pytest_mlperf.addons.official.about import read_about
from pytest_mlperf.addons.official.curve_points import points_of
from pytest_mlperf.addons.official.endpoints import bundle, shortfalls, unused_scores
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import show
from pytest_mlperf.cli.stored_results import case_named, results_path
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.extension import (
    MLC_ENDPOINTS,
    CaseResult,
    Kind,
    Results,
    Run,
    Scenario,
    plural,
    read_results,
    sentence,
    write_whole,
)
from pytest_mlperf.reports.terminal.layout import relative
from pytest_mlperf.stores.atomic import write_folder

HELP = f"""\
Writes the folder for a submission to MLPerf Endpoints v1.0 (results/, src/ and
docs/) from the median run of a concurrency sweep. Measurements of MLCommons'
client (engine endpoints, or an import) are copied unchanged; those of this
package's own client are marked and cannot be submitted. Facts that are not
measured come from a TOML file; --skeleton writes a template of it. Nothing is
sent. To check the folder: endpoints-submission-cli check-submission FOLDER.

{UNVERIFIED_LABEL}

needs: pip install 'pytest-mlperf[endpoints]'; the runs' folders

examples:
  $ pytest-mlperf export endpoints --about about.toml --skeleton
      a template for the facts of the newest session that are not measured
  $ pytest-mlperf export endpoints r.json --about about.toml -o submission
      the folder, and a list of what it lacks
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("format", choices=["endpoints"], help="format of the submission")
    add(parser, "results", "--runs-dir")
    parser.add_argument(
        "--about",
        type=Path,
        required=True,
        metavar="FILE",
        help="TOML file with the facts that are not measured, see --skeleton",
    )
    parser.add_argument(
        "--skeleton", action="store_true", help="write a template TOML (must not exist) and exit"
    )
    add(parser, "--case")
    add(parser, "--output", metavar="FOLDER", help="new folder for the submission")


def run(parsed: argparse.Namespace) -> int:
    """Write a submission, or a template of the file that describes it."""
    results = read_results(results_path(parsed.results, parsed.runs_dir))
    verdict = _curve(results, parsed.case).verdict
    median = _median(verdict)
    if parsed.skeleton:
        if os.path.lexists(parsed.about):
            raise MlperfError(f"{parsed.about} exists; nothing was written")
        write_whole(parsed.about, _skeleton(verdict))
        show([f"wrote {relative(parsed.about)}: fill in its empty values"])
        return 0
    if parsed.output is None:
        raise MlperfError("name a new folder for the submission: -o FOLDER")
    about = read_about(parsed.about)
    points = points_of(median, verdict, Path())
    write_folder(parsed.output, bundle(points, about, verdict))
    folder = relative(parsed.output)
    how = f"the median of {plural(len(verdict.runs), 'run')} by tokens/s: {median.folder}"
    identity = verdict.subject.identity if verdict.subject else {}
    ours = identity.get("harness") != MLC_ENDPOINTS
    unused = ", ".join(f"r{point}" for point in unused_scores(points, about))
    show(
        [
            f"wrote {folder}: {plural(len(points), 'point')}, {how}",
            *(
                [
                    "measured by this package's own client, which cannot be submitted: use engine "
                    "endpoints"
                ]
                * ours
            ),
            *(
                [f"accuracy scores left out (each region of the curve submits one): {unused}"]
                if unused
                else []
            ),
            *(f"will be refused: {what}" for what in shortfalls(points, about)),
            f"check it: endpoints-submission-cli check-submission {folder}",
            UNVERIFIED_LABEL,
        ]
    )
    return 0


def _curve(results: Results, name: str | None) -> CaseResult:
    judged = ((r, r.verdict.kind, r.verdict.case.scenario) for r in results.cases)
    curve = (Kind.PERFORMANCE, Scenario.CONCURRENCY)
    curves = [result for result, *key in judged if tuple(key) == curve]
    curves = [curve for curve in curves if not any(run.search for run in curve.verdict.runs)]
    if not curves:
        raise MlperfError(
            "these results have no curve; measure a suite with scenario Concurrency, and name its "
            "results file"
        )
    names = [curve.verdict.case.id for curve in curves]
    return curves[names.index(case_named(name or "", names))]


def _median(verdict: Verdict) -> Run:
    if not verdict.runs:
        reason = sentence(verdict.headline)
        raise MlperfError(f"{verdict.case.id} has no run that may be judged: {reason}")

    def rate(run: Run) -> float:
        rates = [v for k, v in run.metrics.items() if k.startswith("tokens_per_second@")]
        return geometric_mean(rates) if rates else 0.0

    return sorted(verdict.runs, key=rate)[(len(verdict.runs) - 1) // 2]


def _skeleton(verdict: Verdict) -> str:
    subject, case = verdict.subject, verdict.case
    identity = subject.identity if subject else {}
    facts = subject.fingerprint if subject else {}
    points = [int(float(x)) for x in facts.get("points", "0").split(",")]
    recorded = {
        "engine": json.dumps(case.engine),
        "precision": json.dumps(case.precision),
        "highest": str(max(points)),
        "cpu": json.dumps(str(identity.get("cpu") or "")),
        "cores": str(identity.get("cores") or 0),
        "driver": json.dumps(str(identity.get("driver") or "")),
    }
    text = (files("pytest_mlperf.addons.official") / "templates" / "about.toml").read_text("utf-8")
    for name, value in recorded.items():
        text = text.replace(f"{{{name}}}", value)
    return text
