"""What earlier sessions left: their results, how long a case took, and the noise to expect."""

from __future__ import annotations

import argparse
import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from pytest_mlperf.bench.case import nearest_baselines
from pytest_mlperf.bench.policy import calibrated_rule, rule_for
from pytest_mlperf.core.baseline import Property
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import moment_of
from pytest_mlperf.core.numbers import percent
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.judge.rule_r import RuleR
from pytest_mlperf.reports.terminal.selection import CaseCost
from pytest_mlperf.run.project import git_text
from pytest_mlperf.stores.foreign import content_of
from pytest_mlperf.stores.results import TITLE, digest_of, read_results
from pytest_mlperf.stores.signatures import verified

RUNS_DIR = Path(".mlperf")

STORE = RUNS_DIR / "results.db"

MAX_SESSIONS = 50
CaseKey = tuple[str, str]
"""Case id and profile."""


@dataclass
class Sessions:
    """The sessions of a runs folder, newest first; read one at a time, each once.

    `unreadable` has one sentence per results file that could not be read.
    """

    folder: Path
    unreadable: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[Path, Results]]:
        """Yield each results file with its content; a damaged one is noted and left out."""
        self.unreadable.clear()
        for path in results_files(self.folder)[:MAX_SESSIONS]:
            try:
                yield path, read_results(path)
            except MlperfError as error:
                self.unreadable.append(str(error))

    @property
    def notes(self) -> list[str]:
        """What to tell about files that were not read."""
        notes = [f"left out: {reason}" for reason in self.unreadable]
        count = len(results_files(self.folder))
        return (
            [*notes, f"only the newest {MAX_SESSIONS} of {count} sessions"]
            if count > MAX_SESSIONS
            else notes
        )


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """Give a parser the option `--runs-dir`."""
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=RUNS_DIR,
        metavar="DIR",
        help=f"folder of results and logs (default {RUNS_DIR})",
    )


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Give a parser the option `--verify`."""
    parser.add_argument(
        "--verify",
        type=Path,
        metavar="FILE",
        help="take only results that are signed (pytest --mlperf-sign) by somebody whom this file "
        "of allowed signers names (man ssh-keygen), and whose suites are those that are here",
    )


def whole_results(path: Path, allowed: Path | None) -> tuple[Results, list[str]]:
    """Return an unchanged results file, and a line on its signer if `allowed` names signers."""
    if allowed is None:
        return read_results(path), []
    content = content_of(path, TITLE)  # once: the bytes that were signed are those that are used
    signer = verified(path, content, allowed)
    results = read_results(path, content)
    for case in results.cases:
        here, then = digest_of(Path(case.suite)), case.rests_on.get(case.suite)
        if here and here != then:
            raise MlperfError(
                f"{path}: {case.test} was measured by another {case.suite} than the one that is "
                "here: check out what was measured, or measure again"
            )
    return results, [f"{path}: signed by {signer}"]


def results_files(runs_dir: Path) -> list[Path]:
    """Return the results files below a runs folder, newest first: names begin with the time."""
    return sorted((runs_dir / "runs").glob("*/results.json"), reverse=True)


def performance(results: Results) -> list[CaseResult]:
    """Return the performance tests of a session."""
    return [result for result in results.cases if result.verdict.kind == "performance"]


def costs(sessions: Iterable[tuple[Path, Results]]) -> dict[CaseKey, CaseCost]:
    """Return how long each case took in earlier sessions, wall-clock, medians over them.

    A process lasts until the next one of its session starts, so loading, warm-up, accuracy pass
    and scoring count; waiting for others does not. Sessions whose processes overlapped tell
    nothing and are left out, as are slowed and pretended measurements.
    """
    first: dict[CaseKey, list[float]] = defaultdict(list)
    more: dict[CaseKey, list[float]] = defaultdict(list)
    for _, results in sessions:
        try:
            walls = _walls(results)
        except (ValueError, OverflowError):
            continue  # a time that is none: a file from elsewhere
        for result in performance(results):
            runs = [walls[run.folder] for run in result.verdict.runs if run.folder in walls]
            if result.verdict.interleaved and result.verdict.interleaved.runs:
                runs = runs[:-1]  # those in turns came behind it
            if not runs or result.handicap or result.pretended:
                continue
            key = (result.verdict.case.id, result.profile)
            first[key].append(runs[0])
            more[key] += runs[1:]
    return {
        key: CaseCost(
            first_s=median(taken),
            more_s=median(more[key]) if more[key] else median(taken),
            sessions=len(taken),
        )
        for key, taken in first.items()
    }


def _walls(results: Results) -> dict[str, float]:
    """Return the wall-clock seconds of each process by its folder; {} if some overlapped."""
    verdicts = [result.verdict for result in performance(results)]
    runs = {run.folder: run for one in verdicts for run in (*one.runs, *one.invalid_runs)}
    ordered = sorted(runs.values(), key=lambda run: _moment(run.started))
    begin = _moment(results.started)
    if not ordered or _moment(ordered[0].started) < begin:
        return {}
    end = begin + dt.timedelta(seconds=results.seconds)
    waits = [dt.timedelta(seconds=run.load.waited_s or 0.0) for run in ordered]
    begins = [_moment(run.started) - wait for run, wait in zip(ordered, waits, strict=True)]
    ends = [*begins[1:], end]
    walls = {}
    for run, until in zip(ordered, ends, strict=True):
        seconds = (until - _moment(run.started)).total_seconds()
        if seconds < run.duration_s - 1:  # times are kept in whole seconds
            return {}
        walls[run.folder] = max(seconds, run.duration_s)
    return walls


def _moment(started: str) -> dt.datetime:
    moment = moment_of(started)
    if moment is None:
        raise ValueError(started)
    return moment


BASELINES = Path("baselines")


def rule_here(
    roots: Iterable[Path], accelerator: str, identity: Mapping[str, Property]
) -> tuple[RuleR, str]:
    """Return the rule for exactly this hardware, and where its noise comes from.

    The roots are folders of baselines that may hold a calibration, the nearest first.
    """
    usual = rule_for(accelerator)
    for root in roots:
        rule, words = calibrated_rule(root, accelerator, identity, usual.max_runs)
        if words:
            return rule, words
    return usual, not_calibrated(usual)


def not_calibrated(rule: RuleR) -> str:
    """Return where the noise of a rule comes from that nobody calibrated."""
    return f"noise as is usual, nobody calibrated this machine: {percent(rule.prior_sd)} a run"


def calibrated_roots(
    folder: Path | None, suites: Iterable[Path], results: Iterable[Path]
) -> list[Path]:
    """Return the folders that belong to a comparison: the one that the user named, else all."""
    return [folder] if folder else list(dict.fromkeys(_roots(suites, results)))


def _roots(suites: Iterable[Path], results: Iterable[Path]) -> Iterator[Path]:
    yield from (nearest_baselines(suite) for suite in suites)
    yield BASELINES.resolve()
    for file in results:
        yield from (folder / BASELINES for folder in file.resolve().parents)
    tracked = git_text("ls-files", "-z", "--", ":(top,glob)**/baselines/calibration/*.json")
    for name in filter(None, tracked.split("\0")):
        yield Path(name).resolve().parents[1]


def add_store(parser: argparse.ArgumentParser) -> None:
    """Give a parser the option `--store`."""
    parser.add_argument(
        "--store",
        default=str(STORE),
        metavar="URL",
        help=f"file, sqlite:///FILE or postgresql://USER@HOST/DATABASE (default {STORE})",
    )


def store_here(url: str) -> str:
    """Return the store that `--store` names; "": it is the usual one, which is not there yet."""
    return url if url != str(STORE) or STORE.exists() else ""
