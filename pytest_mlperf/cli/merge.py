"""`pytest-mlperf merge`: join results of the parts of a plan into one session and judge it."""

from __future__ import annotations

import argparse
import datetime as dt
import secrets
from collections.abc import Sequence
from pathlib import Path

from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.cli.stored_results import results_path, verified_results
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.results import Absent, Results, merge, unjudged_tests
from pytest_mlperf.reports import formats
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.reports.terminal.layout import fold
from pytest_mlperf.stores.atomic import unforeseen
from pytest_mlperf.stores.results import Manifest, read_manifest, write_results
from pytest_mlperf.stores.signatures import sign

MAX_LISTED_MISSING = 20
HELP = """\
Combines the results of the parts of a plan, judges all of them together, and
lists planned tests without a result. Undecided verdicts of a part
(INCONCLUSIVE, SUSPECT) are decided here. Run each part with --mlperf-manifest:
without it, a part may fail a drop that is only SUSPECT among all parts.

Exit 1 if a test failed, or if a planned test has no result because it was
deselected or skipped, or because its machine returned no results.

needs: the results.json of every part (pytest --mlperf-json FILE)

examples:
  $ pytest-mlperf merge parts --manifest plan.json -o all.json --junit all.xml
      the final verdicts, as a results file and as JUnit XML
  $ pytest-mlperf merge results/
      every *.json in a folder; without a manifest gaps are not reported
  $ pytest-mlperf merge parts --verify .github/allowed_signers
      only parts signed by a machine that the project knows
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    text = "results files, folders of them, or session ids (default: newest session)"
    add(parser, "results", nargs="*", help=text)
    add(parser, "--manifest")
    add(parser, "--output", help="results file to write")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write them as JUnit XML")
    parser.add_argument(
        "--report",
        type=_report,
        action="append",
        default=[],
        metavar="FORMAT=FILE",
        help="also write a report (see `report`), e.g. html=page.html; repeatable",
    )
    parser.add_argument(
        "--fail-on",
        choices=["inconclusive", "provisional"],
        help="also fail INCONCLUSIVE tests, or PROVISIONAL drops on their first day",
    )
    add(parser, "--verify", "--runs-dir")
    parser.add_argument(
        "--sign", type=Path, metavar="KEY", help="SSH key to sign the file of -o with"
    )


def run(parsed: argparse.Namespace) -> int:
    """Merge and report results; return 1 if a test failed or is missing."""
    if parsed.sign and not parsed.output:
        raise MlperfError("--sign needs the file to sign; add -o FILE")
    manifest = read_manifest(parsed.manifest) if parsed.manifest else None
    time = dt.datetime.now(dt.UTC)
    parts, signed = {}, []
    files = _files(parsed.results or [None], parsed.runs_dir, parsed.manifest)
    for path in files:
        parts[str(path)], lines = verified_results(path, parsed.verify)
        signed += lines
    merged = merge(
        parts,
        run=f"merged-{time:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        pairs=manifest.pairs if manifest else 0,
        today=time.date(),
        fail_on={parsed.fail_on} - {None},
    )
    missing = unjudged_tests((one.test for one in manifest.tests), merged) if manifest else []
    file = parsed.output or files[0]
    whole = formats.ReportedSession(results=merged, file=file, absent=missing, columns=width())
    written, failures = _write_each(parsed, whole)
    show([*signed, *_lines(merged, missing, manifest), *written])
    if failures:
        raise failures[0] if len(failures) == 1 else MlperfError("\n".join(map(str, failures)))
    return int(bool(missing) or any(result.failed for result in merged.cases))


def _write_each(
    parsed: argparse.Namespace, whole: formats.ReportedSession
) -> tuple[list[str], list[MlperfError]]:
    requested = [("results", "", parsed.output), ("JUnit", "junit", parsed.junit)]
    requested += [(form, form, file) for form, file in parsed.report]
    written, failures = [], []
    for title, form, file in requested:
        if file is None:
            continue
        try:
            if form:
                formats.write_report(form, file, whole)
            else:
                write_results(file, whole.results)
            written.append(f"{title}: {file}")
            if parsed.sign and not form:
                written.append(f"signature: {sign(file, parsed.sign)}")
        except MlperfError as error:
            failures.append(error)
        except Exception as error:
            failures.append(MlperfError(unforeseen(f"{title} cannot be written", error)))
    return written, failures


def _files(named: Sequence[str | None], runs_dir: Path, manifest: Path | None) -> list[Path]:
    files: list[Path] = []
    for name in named:
        is_folder = name is not None and Path(name).is_dir()
        inside = sorted(Path(name or "").glob("*.json")) if is_folder else []
        if is_folder and not inside:
            raise MlperfError(f"no *.json in {name}; name results files or another folder")
        files += inside or [results_path(name, runs_dir)]
    of_plan = manifest.resolve() if manifest else None
    return [path for path in dict.fromkeys(files) if path.resolve() != of_plan]


def _lines(merged: Results, missing: Sequence[Absent], manifest: Manifest | None) -> list[str]:
    columns = width()
    lines: list[str] = []
    if missing and manifest:
        of = plural(len(manifest.tests), "planned test")
        lines += fold(f"INCOMPLETE: {len(missing)} of {of} have no result", columns)
        for test in missing[:MAX_LISTED_MISSING]:
            lines += fold(f"  {test.test}: {test.reason}", columns, rest="    ")
        if len(missing) > MAX_LISTED_MISSING:
            lines.append(f"  and {len(missing) - MAX_LISTED_MISSING} more")
        lines.append("")
    message = text.failure_message(merged, columns)
    for result in merged.cases:
        if result.failed:
            lines += [*message(result).splitlines(), ""]
    if manifest:
        planned = {test.test for test in manifest.tests}
        if unplanned := sum(result.test not in planned for result in merged.cases):
            lines += fold(f"not in the manifest: {plural(unplanned, 'result')}", columns)
    return [*lines, *text.summary(merged, columns, colour=False)]


def _report(words: str) -> tuple[str, Path]:
    try:
        return formats.parse_report(words)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
