"""`pytest-mlperf judge`: judge result files of other tools against old ones or a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mlperf import MlperfError, Outcome
from pytest_mlperf.addons.judge import accepted, report
from pytest_mlperf.addons.judge.files import Reader, Side, read_side, reader_of_file, refuse_shared
from pytest_mlperf.addons.judge.judging import IMPLAUSIBLE, compare
from pytest_mlperf.addons.judge.model import BASES, named, split
from pytest_mlperf.addons.judge.planning import pairs_text, plans, schedule
from pytest_mlperf.addons.judge.readers.table import column_of, reader_of
from pytest_mlperf.addons.judge.rows import FileComparison, Settings, session_of
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.extension import ReportedSession, nearest, parse_report, plural, write_report
from pytest_mlperf.reports.terminal.layout import fold, relative

HELP = """\
Judges result files of other tools: vLLM, SGLang, AIPerf, GuideLLM, lm-eval,
pytest-benchmark, Google Benchmark, hyperfine and others, recognised by their
content. One file is one run; requests and rounds inside it are not.
Give several runs per side, from several days: with one session per side nothing
is proven, and the verdict is PROVISIONAL. Runs of both builds that alternated
on one host are judged in pairs; their verdict is final at once (--plan).
If nothing changed, 1 comparison of 100 shows a drop.

Exit 1 for a drop or INVALID runs, 2 for wrong usage or files, 3 for a reader
that cannot be loaded.

needs: files of the same measurement, of two builds

examples:
  $ pytest-mlperf judge new/*.json --against old/*.json
      did the new build lose speed or accuracy?
  $ pytest-mlperf judge new/ --baseline llama --update missing --reason first
      record a baseline in baselines/judged; commit it
  $ pytest-mlperf judge old/*.json --plan --limit ttft_p99=10%
      how many runs would prove a drop?
  $ pytest-mlperf judge new.csv --against old.csv --column time_p50=p50:ms
      a table of your own
"""


REPEATED = {
    "limit": ("METRIC=SHARE", "smallest change that matters: ttft_p99=10%% or ttft=5%%"),
    "ignore": ("FACT", "judge although this condition differs or is unknown; the report says so"),
    "column": (
        "METRIC=COLUMN:UNIT:BETTER",
        "read a table: column and unit of a metric; BETTER is higher or lower",
    ),
    "point": ("COLUMN", "column of the table that identifies a case"),
    "report": (
        "FORMAT=FILE",
        "also write a report (see `report`), e.g. html=page.html, junit=judge.xml, or "
        "json=results.json for `store import`, `history` and `merge`",
    ),
}
"""Options that may stand several times: placeholder and help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.set_defaults(root=Path())
    parser.add_argument("files", nargs="+", type=_file, metavar="FILE", help="files or folders")
    side, add = parser.add_mutually_exclusive_group(), parser.add_argument
    text = "files or folders of the old build"
    side.add_argument("--against", nargs="+", type=_file, metavar="FILE", help=text)
    side.add_argument("--baseline", metavar="NAME", help="a baseline in baselines/judged")
    text = "show how many runs prove a drop, and their order"
    side.add_argument("--plan", action="store_true", help=text)
    text = "missing: record the baseline, or add a session to it; replace: replace it"
    add("--update", choices=("missing", "replace"), help=text)
    add("--reason", default="", metavar="TEXT", help="why --update accepts these runs")
    add("--metrics", default="", metavar="NAMES", help="judge only these: ttft_p50,goodput")
    text = "accept points that only one side has, or that failed on both sides"
    add("--allow-missing", action="store_true", help=text)
    text = (
        "what distinguishes sessions: file, folder, date, host, commit, label (default: date, host "
        "and commit, or the folder of files without a date)"
    )
    add("--session-by", metavar="FIELD", help=text)
    text = "exit 1 also for PROVISIONAL verdicts, or for these and INCONCLUSIVE ones"
    add("--fail-on", choices=("provisional", "inconclusive"), help=text)
    for name, (placeholder, text) in REPEATED.items():
        add(f"--{name}", action="append", default=[], metavar=placeholder, help=text)


def _file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a file name is empty: is a variable unset?")
    return Path(text)


def run(parsed: argparse.Namespace) -> int:
    """Judge result files; return 1 for a drop or INVALID, 2 if nothing can be judged, else 0."""
    try:
        parsed.report = list(map(parse_report, parsed.report))
    except ValueError as error:
        raise MlperfError(f"--report {error}") from None
    inputs = {file.resolve() for file in (*parsed.files, *(parsed.against or ()))}
    for _, file in parsed.report:
        if file.resolve() in inputs or (file.is_file() and reader_of_file(file)):
            raise MlperfError(f"--report: {file} is a result file; name another one to write")
    if parsed.update and not parsed.baseline:
        raise MlperfError("--update needs --baseline NAME: the baseline to write")
    if not (parsed.plan or parsed.against or parsed.baseline):
        raise MlperfError("add --against FILE ... or --baseline NAME to compare with, or --plan")
    now = side_of(parsed, parsed.files)
    if parsed.plan:
        plan = schedule(now.runs, _settings(parsed))
        show(line for text in plan for line in fold(text, width()))
        return 0
    if parsed.update:
        return _update(parsed, now)
    result, sides = compare_runs(parsed, now)
    try:  # before the text is shown, because a closed pipe may end this process
        _write_reports(parsed, result, sides)
    finally:
        show(report.lines(result, sides, width()))
    return _status(result, parsed)


def _write_reports(
    parsed: argparse.Namespace, result: FileComparison, sides: tuple[str, str]
) -> None:
    if parsed.report:
        from pytest_mlperf.addons.judge.results import results_of

        session = results_of(result, sides, failing(parsed, result))
    for form, file in parsed.report:
        write_report(form, file, ReportedSession(results=session, file=file, columns=width()))


def _status(result: FileComparison, parsed: argparse.Namespace) -> int:
    if result.outcome is Outcome.NOT_EVALUATED:
        return 2
    return int(result.outcome in failing(parsed, result))


def _update(parsed: argparse.Namespace, new_side: Side) -> int:
    """Judge new runs and add them to the baseline; return the exit code; refuse INVALID runs."""
    settings, lines = _settings(parsed), list[str]()
    result, sides = compare(new_side.runs, new_side.runs, settings), ("", "")
    if result.outcome is Outcome.INVALID:
        raise MlperfError(f"not recorded: {report.headline(result)}")
    replacing, exists = parsed.update == "replace", accepted.baseline_file(parsed.baseline).exists()
    kept = {run.digest for run in accepted.load(parsed.baseline)} if exists else set()
    fresh = tuple(run for run in new_side.runs if run.digest not in kept)
    if not (fresh or replacing):
        show([f"{accepted.baseline_file(parsed.baseline)}: not changed: it already has these runs"])
        return 0
    if judging := bool(kept and fresh):
        result, sides = compare_runs(parsed, replace(new_side, runs=fresh))
        lines = report.lines(result, sides, width())
    runs = new_side.runs if replacing else fresh
    try:
        text, recorded = accepted.update(
            parsed.baseline,
            runs,
            result if judging else None,
            action=parsed.update,
            reason=parsed.reason,
            session_by=parsed.session_by,
        )
        lines.append(text)
        _write_reports(parsed, replace(result, recorded=recorded), sides)
    finally:
        show(lines)
    return _status(result, parsed) if judging and not replacing else 0


def compare_runs(
    parsed: argparse.Namespace, new_side: Side
) -> tuple[FileComparison, tuple[str, str]]:
    """Compare new runs with --against or --baseline; return also the labels (baseline, new)."""
    settings = _settings(parsed)
    if parsed.against:
        base = side_of(parsed, parsed.against)
    else:
        runs = accepted.load(parsed.baseline, parsed.root)
        named_runs = (replace(run, source=f"{parsed.baseline}: {run.source}") for run in runs)
        base = Side(runs=tuple(named_runs))
    refuse_shared(base, new_side)
    sides = (
        _in_words(base, parsed.against or [parsed.baseline], settings),
        _in_words(new_side, parsed.files, settings),
    )
    return _compared(base, new_side, settings), sides


def _compared(base: Side, now: Side, settings: Settings) -> FileComparison:
    result = compare(base.runs, now.runs, settings)
    metrics = dict.fromkeys(row.metric for row in result.rows)
    bases = {split(metric)[0] for metric in metrics}
    for name in (*settings.metrics, *(limit for limit in settings.limits if not named(limit))):
        if name not in metrics and name not in bases:
            raise MlperfError(f"no metric {name!r} in these files{nearest(name, metrics)}")
    facts = {name for run in (*base.runs, *now.runs) for p in run.points for name in p.facts}
    for name in settings.ignored:
        if name not in (*facts, "host", IMPLAUSIBLE):
            raise MlperfError(f"--ignore {name!r}: no such condition{nearest(name, facts)}")
    notes = (*base.notes, *now.notes, *result.notes)
    if result.one_session:
        notes += (pairs_text(plans(base.runs, settings)),)
    return replace(result, notes=tuple(dict.fromkeys(filter(None, notes))))


def failing(parsed: argparse.Namespace, result: FileComparison) -> set[Outcome]:
    """Return the outcomes that fail: `report.FAILING`, and those that --fail-on adds."""
    open_ = (Outcome.PROVISIONAL, Outcome.SUSPECT) if parsed.fail_on else ()
    outcomes = {*report.FAILING, *open_}
    if parsed.fail_on == "inconclusive" or (parsed.fail_on and result.one_session):
        outcomes |= {Outcome.INCONCLUSIVE}
    return outcomes


def _in_words(side: Side, names: Sequence[object], settings: Settings) -> str:
    sessions = len({session_of(run, settings.session_by) for run in side.runs})
    listed = " ".join(relative(Path(str(name))) for name in names[:2])
    listed += f" and {len(names) - 2} more" if names[2:] else ""
    return f"{plural(len(side.runs), 'run')} of {plural(sessions, 'session')}: {listed}"


def side_of(parsed: argparse.Namespace, files: Sequence[Path]) -> Side:
    """Read the runs in result files with the options of a command line."""
    side, field = read_side(files, _table(parsed)), parsed.session_by
    for run in side.runs:
        try:
            session_of(run, field)
        except KeyError:
            similar = nearest(field, ["date", "file", "folder", "host", "commit", *run.details])
            raise MlperfError(
                f"{run.source}: no field {field!r} for --session-by{similar}"
            ) from None
    return side


def _settings(parsed: argparse.Namespace) -> Settings:
    metrics = tuple(filter(None, (name.strip() for name in parsed.metrics.split(","))))
    return Settings(
        limits={text.partition("=")[0]: _share(text) for text in parsed.limit},
        metrics=metrics,
        allow_missing=parsed.allow_missing,
        ignored=tuple(parsed.ignore),
        session_by=parsed.session_by,
    )


def _share(text: str) -> float:
    share = text.partition("=")[2]
    try:
        value = float(share.rstrip("% ")) / (100 if share.rstrip().endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise MlperfError(f"--limit {text} is not METRIC=SHARE, such as ttft_p99=10%")
    return value


def _table(parsed: argparse.Namespace) -> Reader | None:
    if not parsed.column:
        if parsed.point:
            raise MlperfError("--point needs --column, which names the metrics of the table")
        return None
    try:
        return reader_of(list(map(column_of, parsed.column)), parsed.point)
    except ValueError as error:
        raise MlperfError(f"--column {error}; metrics: {', '.join(BASES)}") from None
