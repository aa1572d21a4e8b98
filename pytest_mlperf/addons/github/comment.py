"""Write results as the comment of a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_mlperf import MlperfError, Outcome
from pytest_mlperf.addons.github import markdown
from pytest_mlperf.addons.github.markdown import code
from pytest_mlperf.core.results import UNVERIFIED_LABEL
from pytest_mlperf.extension import ReportedSession, Results, plural
from pytest_mlperf.reports.terminal.advice import commands
from pytest_mlperf.stores.foreign import read_foreign
from pytest_mlperf.stores.results import digest_of

MARKER = "<!-- pytest-mlperf -->"
"""First line of the comment, by which the next run finds the comment to replace."""

COMMENT_LIMIT = 65_536
"""GitHub's maximum length of a comment [characters]."""

PATHS_SHOWN, PATH_LENGTH = 20, 200
"""Maximum number of files named above the verdict, and maximum characters of a path."""

MAX_LISTED_FAILURES = 10
"""Maximum failures per cause with numbers and command; the table has all failures."""

FOLDED_OUTCOMES = frozenset({Outcome.OK, Outcome.IMPROVED, Outcome.RECORDED})


def report(session: ReportedSession) -> str:
    """Return a comment for a pull request: the verdict, then tests that need attention.

    The other tests are in a collapsed section. The comment has at most `COMMENT_LIMIT` bytes, and
    says how many rows are left out.
    """
    results = session.results
    loud = [result for result in results.cases if result.verdict.outcome not in FOLDED_OUTCOMES]
    quiet = [result for result in results.cases if result.verdict.outcome in FOLDED_OUTCOMES]
    blocks = [
        *markdown.opening(
            session, f"{MARKER}\n{_judged_by(changed_judging_files(session))}**", "**"
        ),
        *markdown.section("What failed", markdown.failures(results, MAX_LISTED_FAILURES)),
        *markdown.results_table("Not ok", loud, open_=True),
        *markdown.settling_lines(results),
        *_accepting(results),
        *markdown.results_table(f"{plural(len(quiet), 'test')} without a drop", quiet, open_=False),
    ]
    return markdown.within(
        blocks, [_further(session.arguments), f"\n{UNVERIFIED_LABEL}\n"], COMMENT_LIMIT
    )


def changed_judging_files(session: ReportedSession) -> list[str]:
    """Return the files that affect verdicts and differ from those in the target branch."""
    branch, listed = session.arguments.get("branch"), session.arguments.get("judged_by")
    paths = _listed_files(listed) if listed else set[str]()
    digests = {item for case in session.results.cases for item in case.rests_on.items()}
    if branch:
        paths |= {path for path, digest in digests if _differs(branch, path, digest)}
    return sorted(paths)


def _differs(branch: Path, path: str, digest: str) -> bool:
    """Return whether a file differs from the target branch; always true for a path outside it.

    `branch` is a checkout of the target branch, `digest` the digest of the file as used.
    """
    inside = not Path(path).is_absolute() and ".." not in Path(path).parts
    return not inside or digest_of(branch / path) != digest


def _listed_files(file: Path) -> set[str]:
    raw = read_foreign(file, "list of files")
    paths = raw.get("judged_by_other") if isinstance(raw, dict) else None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise MlperfError(f"{file} is not a list of files from .github/scripts/take_suites.py")
    return set(paths)


def _judged_by(paths: Sequence[str]) -> str:
    if not paths:
        return ""
    listed = [f"- {code(path[:PATH_LENGTH])}\n" for path in paths[:PATHS_SHOWN]]
    rest = len(paths) - len(listed)
    more = [f"- and {rest} more\n"] if rest else []
    return (
        "**This pull request changes files that decide its own verdicts "
        f"({plural(len(paths), 'file')}).** Review them first:\n\n{''.join(listed + more)}\n"
    )


def _accepting(results: Results) -> Iterator[str]:
    fell = [r for r in results.cases if r.failed and "accept" in dict(commands(r))]
    if fell:
        yield "\nTo accept an intended drop, record it with a reason, for review:\n\n"
    for suite in sorted({result.suite for result in fell}):
        options = '--mlperf-update=replace --mlperf-accept-regression --mlperf-reason "why"'
        yield f"- {code(f'pytest {suite} {options}')}\n"


def _further(arguments: Mapping[str, str | None]) -> str:
    linked = [
        f"[{name}]({url})"
        for name, url in (
            ("the run", arguments.get("run_url")),
            ("the report", arguments.get("report_url")),
        )
        if url and url.startswith("https://") and not set(url) & set("()<>[] \n\"'")
    ]
    return f"\nDetails: {' and '.join(linked)}.\n" if linked else ""
