"""`pytest-mlperf merge`: the parts of a plan as one session, judged together."""

from __future__ import annotations

import argparse
import datetime as dt
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_mlperf.cli.output import add_parser, show, width, write
from pytest_mlperf.cli.report import FORMATS, Session
from pytest_mlperf.core.causes import causes
from pytest_mlperf.core.causes_siblings import Siblings
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.merging import Absent, absent, merge
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.keeping import unforeseen
from pytest_mlperf.reports import text
from pytest_mlperf.reports.junit import junit
from pytest_mlperf.reports.layout import fold, plural
from pytest_mlperf.reports.markdown import Links
from pytest_mlperf.stores.manifest import Manifest, read_manifest
from pytest_mlperf.stores.results import read_results, write_results

WIDE = 120
"""Columns of messages in files."""

NAMED = 20
"""Tests without a result that are named; the rest is counted."""


def add_command(commands: Any) -> None:
    """Register the subcommand."""
    parser = add_parser(
        commands,
        "merge",
        summary="results of several machines as one, with nothing missing",
        description=(
            "Joins the results files of one plan's parts, judges all pairs of case and metric\n"
            "together, and says which planned tests have no result. What a part left open\n"
            "(INCONCLUSIVE, SUSPECT) gets its last word here. Parts that were run with\n"
            "--mlperf-manifest fail nothing that does not fail here as well; one that was run\n"
            "without may have failed a drop that is only SUSPECT among all.\n"
            "\n"
            "Exit 1 when a test failed, or when a planned test has no result: it was\n"
            "deselected or skipped, or the machine that ran it gave nothing back."
        ),
        needs="the results.json of every part (pytest --mlperf-json FILE)",
        examples=[
            (
                "merge parts --manifest plan.json -o all.json --junit all.xml",
                "the verdict of the whole, as a results file and for a CI's list of tests",
            ),
            ("merge results/", "every *.json in a folder; without a manifest nothing is missing"),
        ],
    )
    parser.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="results files, or folders of them"
    )
    parser.add_argument(
        "--manifest", type=Path, metavar="FILE", help="what `plan --format json` printed"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write them as JUnit XML")
    parser.add_argument(
        "--report",
        type=_report,
        action="append",
        default=[],
        metavar="FORMAT=FILE",
        help="also write what `report` makes, e.g. html=page.html; repeatable",
    )
    parser.add_argument(
        "--inconclusive",
        choices=["pass", "fail"],
        default="pass",
        help="what is not decided passes, or fails (default: pass)",
    )
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Merge, report, and return 1 where something failed or is missing.

    Raises:
        MlperfError: A file cannot be read or written, or the parts do not belong together.
    """
    manifest = read_manifest(parsed.manifest) if parsed.manifest else None
    merged = _merged(_files(parsed.results, parsed.manifest), manifest, parsed.inconclusive)
    missing = absent((one.test for one in manifest.tests), merged) if manifest else []
    beside = parsed.output or parsed.results[0]
    whole = Session(results=merged, file=beside, absent=missing, links=Links())
    written, failures = _write_each(parsed, whole)
    show([*_lines(merged, missing, manifest), *written])
    if failures:
        raise failures[0] if len(failures) == 1 else MlperfError("\n".join(map(str, failures)))
    return int(bool(missing) or any(result.failed for result in merged.cases))


def _write_each(parsed: argparse.Namespace, whole: Session) -> tuple[list[str], list[MlperfError]]:
    """Write the results and each report; one that fails does not keep the others from it."""
    merged, missing = whole.results, whole.absent
    asked: list[tuple[str, Path, Callable[[Path], None]]] = []

    def report(form: str) -> Callable[[Path], None]:
        return lambda file: write(file, FORMATS[form](whole))

    if parsed.output:
        asked.append(("results", parsed.output, lambda file: write_results(file, merged)))
    if parsed.junit:
        message = _message(merged, WIDE)
        asked.append(
            ("JUnit", parsed.junit, lambda file: write(file, junit(merged, missing, message)))
        )
    asked += [(form, file, report(form)) for form, file in parsed.report]
    written, failures = [], []
    for what, file, make in asked:
        try:
            make(file)
            written.append(f"{what}: {file}")
        except MlperfError as error:
            failures.append(error)
        except Exception as error:
            failures.append(MlperfError(unforeseen(f"{what} could not be written", error)))
    return written, failures


def _files(named: Sequence[Path], manifest: Path | None) -> list[Path]:
    """Return the results files that arguments name; a manifest beside them is none."""
    found: list[Path] = []
    for path in named:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise MlperfError(f"{path} holds no *.json; name the results files")
        found += inside
    of_plan = manifest.resolve() if manifest else None
    return [path for path in dict.fromkeys(found) if path.resolve() != of_plan]


def _merged(files: Sequence[Path], manifest: Manifest | None, inconclusive: str) -> Results:
    now = dt.datetime.now(dt.UTC)
    return merge(
        {str(path): read_results(path) for path in files},
        run=f"merged-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        pairs=manifest.pairs if manifest else 0,
        today=now.date(),
        strict=inconclusive == "fail",
    )


def _lines(merged: Results, missing: Sequence[Absent], manifest: Manifest | None) -> list[str]:
    """Return what is printed: what is missing first, then failures, then the table."""
    columns = width()
    lines: list[str] = []
    if missing and manifest:
        of = plural(len(manifest.tests), "planned test")
        lines += fold(f"INCOMPLETE: {len(missing)} of {of} have no result", columns)
        for one in missing[:NAMED]:
            lines += fold(f"  {one.test}: {one.why}", columns, rest="    ")
        if len(missing) > NAMED:
            lines.append(f"  and {len(missing) - NAMED} more")
        lines.append("")
    message = _message(merged, columns)
    for result in merged.cases:
        if result.failed:
            lines += [*message(result).splitlines(), ""]
    if unplanned := _unplanned(merged, manifest):
        lines += fold(f"{plural(unplanned, 'test')} of no plan: not in the manifest", columns)
    return [*lines, *text.summary(merged, columns, colour=False)]


def _unplanned(merged: Results, manifest: Manifest | None) -> int:
    if manifest is None:
        return 0
    planned = {one.test for one in manifest.tests}
    return sum(result.test not in planned for result in merged.cases)


def _message(merged: Results, columns: int) -> Callable[[CaseResult], str]:
    verdicts = Siblings(result.verdict for result in merged.cases)

    def message(result: CaseResult) -> str:
        found = causes(result.verdict, None, verdicts)
        return text.failure(result.verdict, result, columns, found)

    return message


def _report(text: str) -> tuple[str, Path]:
    form, _, file = text.partition("=")
    if form not in FORMATS or not file:
        known = ", ".join(FORMATS)
        raise argparse.ArgumentTypeError(f"{text!r} is not FORMAT=FILE with one of {known}")
    return form, Path(file)
