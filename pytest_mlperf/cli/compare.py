"""`pytest-mlperf compare`: judge two sessions, commits or engine versions by rule R."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_mlperf.bench.files import baseline_at, case_of
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.cli.stored_results import calibrated_roots, results_file, rule_here
from pytest_mlperf.cli.suites import find_suites, read_suites
from pytest_mlperf.core.baseline import (
    Baseline,
    Property,
    Record,
    changed_keys,
    differences,
    unknown_facts,
)
from pytest_mlperf.core.case import Case, Scenario
from pytest_mlperf.core.contention import tolerated_load_share
from pytest_mlperf.core.errors import BaselineError, MlperfError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS, curve_metrics, gated_metrics
from pytest_mlperf.core.numbers import plural
from pytest_mlperf.core.recording import changes
from pytest_mlperf.core.results import CaseResult, Results, performance
from pytest_mlperf.core.roofline.gpu import GpuPrice
from pytest_mlperf.core.rulings.ruling import length_change, ruling_of
from pytest_mlperf.core.rulings.sides import judge_sides, judge_together
from pytest_mlperf.core.search import other_condition
from pytest_mlperf.core.verdict import Outcome
from pytest_mlperf.judge.rule_r import GATING_RUNS, RuleR
from pytest_mlperf.reports.sentences import first_line, sentence
from pytest_mlperf.reports.terminal.comparison import ComparedCase, comparison
from pytest_mlperf.run.project import git_text
from pytest_mlperf.stores import baselines
from pytest_mlperf.stores.results import read_results
from pytest_mlperf.stores.sessions import Sessions
from pytest_mlperf.suite.plan import Planned

Limits = Mapping[str, float]

HELP = f"""\
Judges all runs of B against all runs of A once, session by session, by the
limits and the noise of the tests. A and B are each one of
  results    r.json, .mlperf/runs/20261121-031500-ab12, or 20261121-0315
  version    onnxruntime==1.31.1: all its runs in the runs folder, pooled
  git ref    git:v1.2, or main: the baselines committed there

Different hardware, offered rates or profiles are INVALID, with the reason.
If A has fewer than {GATING_RUNS} runs, a drop is only INCONCLUSIVE. With fewer than 4
sessions in total it is PROVISIONAL, unless no session variance explains it.
False alarms: at most 1 metric in 100, and at most 1 comparison in 20, whatever
the number of cases.

Exit 1 if a drop is proven, 2 if no case could be judged.

needs: two measurements of the same cases; git for refs

examples:
  $ pytest-mlperf compare onnxruntime==1.30.0 onnxruntime==1.31.1
      did the upgrade make anything slower? Uses every session of both
  $ pytest-mlperf compare git:HEAD .mlperf/runs/20261121-031500-ab12
      a session against baselines
  $ pytest-mlperf compare v1.0 HEAD
      how baselines moved between two commits
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add_sides(parser, a="the old results", b="the new results")


def add_sides(parser: argparse.ArgumentParser, *, optional: bool = False, **sides: str) -> None:
    """Declare the arguments in `sides` (A, B) with help texts, and options for search folders."""
    for name, text in sides.items():
        nargs = "?" if optional else None
        parser.add_argument(name, metavar=name.upper(), nargs=nargs, help=text)
    text = "for git refs: only this folder (default: all folders named baselines)"
    add(parser, "--baselines", help=text)
    add(parser, "--runs-dir")


def run(parsed: argparse.Namespace) -> int:
    """Compare A and B; return 1 for a proven drop, 2 if nothing was judged, else 0."""
    planned = planned_here()
    a, b, roots = two_sides(parsed, planned)
    limits = _limits_of({(one.case.id, one.suite.profile): one.limits for one in planned})
    both = [case for case in a.cases if case in b.cases]
    compared = judge_jointly(
        [compare_case(*pair(a.cases[case], b.cases[case]), limits, roots) for case in both]
    )
    alone = {
        "A": [case for case in a.cases if case not in b.cases],
        "B": [case for case in b.cases if case not in a.cases],
    }
    notes = [*judged_how(compared), *a.notes, *b.notes]
    show(comparison(compared, (a.name, b.name), alone, notes, width()))
    if any(one.outcome is Outcome.PERF_DROP for one in compared):
        return 1
    if all(one.outcome is Outcome.INVALID for one in compared):
        show(["no case could be judged"])
        return 2
    return 0


def two_sides(
    parsed: argparse.Namespace, planned: Sequence[Planned]
) -> tuple[ComparedSide, ComparedSide, list[Path]]:
    """Return sides A and B of a command line, and the folders that may hold a calibration."""
    words = (parsed.a, parsed.b)
    a, b = (side(text, parsed.runs_dir, parsed.baselines) for text in words)
    results = filter(None, (results_file(text, parsed.runs_dir) for text in words))
    suites = (one.path for one in planned)
    return a, b, calibrated_roots(parsed.baselines, suites, results)


def pair(old: Sequence[Measured], new: Sequence[Measured]) -> tuple[Measured, Measured]:
    """Return the most comparable pair (old, new): by conditions, then hardware, then build."""

    def distance(two: tuple[Measured, Measured]) -> tuple[bool, int, int]:
        a, b = two
        hardware = differences(a.identity, b.identity)
        return bool(why_not(a, b)), len(hardware), len(changed_keys(a.fingerprint, b.fingerprint))

    return min(((a, b) for a in old for b in new), key=distance)


def compare_case(
    a: Measured,
    b: Measured,
    limits: Callable[[Measured, Measured], Limits],
    roots: Sequence[Path] = (),
) -> ComparedCase:
    """Judge B against baseline A by the limits of `limits(a, b)`; `roots`: calibration folders."""
    case = b.case.id
    notes = [f"{label}: {one.reason}" for label, one in (("A", a), ("B", b)) if one.reason]
    if reason := why_not(a, b) or sentence(length_change(b.runs, a.runs) or ""):
        return ComparedCase(case=case, outcome=Outcome.INVALID, reason=reason, notes=tuple(notes))
    rule, source = rule_here(roots, a.case.accelerator, a.identity)
    try:
        gated = limits(a, b)
        metrics = judge_sides(
            a.runs, b.runs, gated, replace(rule, tolerated=tolerated_load_share(gated))
        )
    except ValueError as error:  # a file from elsewhere may hold what no run can measure
        return ComparedCase(case=case, outcome=Outcome.INVALID, reason=str(error))
    if len(a.runs) < GATING_RUNS:
        notes.append(
            f"A has {plural(len(a.runs), 'run')}: a drop is reported, but not proven; a proof "
            f"needs at least {GATING_RUNS} runs in A"
        )
    changed = changes(a.fingerprint, b.fingerprint)
    if a.surroundings and b.surroundings:
        changed = (*changed, *changes(a.surroundings, b.surroundings))
    return ComparedCase(
        case=case,
        outcome=ruling_of(metrics).outcome,
        metrics=metrics,
        changed=(*changed, *unknown_facts(a.fingerprint, b.fingerprint, "A")),
        notes=(*notes, source),
    )


def judge_jointly(compared: Sequence[ComparedCase]) -> list[ComparedCase]:
    """Judge all cases jointly; the Benjamini-Hochberg procedure bounds the false discovery rate."""
    judged = judge_together([one.metrics for one in compared], RuleR().alpha)
    return [
        replace(one, outcome=ruling_of(metrics).outcome, metrics=metrics) if metrics else one
        for one, metrics in zip(compared, judged, strict=True)
    ]


def judged_how(compared: Sequence[ComparedCase]) -> list[str]:
    """Return a note on the method and its false alarm rate; empty if nothing was judged."""
    count = sum(metric.p is not None for one in compared for metric in one.metrics)
    if not count:
        return []
    among, of = ("", 100) if count == 1 else (f", {count} metrics together", 20)
    return [
        f"A and B were compared once, with all runs, by session{among}; false alarms: at most 1 "
        f"comparison in {of}"
    ]


def planned_here() -> Sequence[Planned]:
    """Return the cases of the suites in the working folder; empty without suites."""
    try:
        return read_suites(find_suites([]))
    except MlperfError:
        return ()


def _limits_of(suites: Mapping[tuple[str, str], Limits]) -> Callable[[Measured, Measured], Limits]:
    """Return a function of (A, B) that returns limits: B's, else A's, a suite's or defaults."""

    def limits(a: Measured, b: Measured) -> Limits:
        bounds = b.limits or a.limits or suites.get((b.case.id, b.profile))
        if bounds is None:
            measured = {name for run in b.runs for name in run.metrics}
            scenario = b.case.scenario
            timed = (
                scenario in {Scenario.INTERACTIVE, Scenario.CONCURRENCY} and "ttft_p50" in measured
            )
            usual = gated_metrics(scenario, tokens=timed, searched=bool(b.find))
            names = curve_metrics(scenario, measured) or usual
            bounds = {name: METRICS[name].limit for name in names}
        gated = [one.gated for one in (a, b) if one.gated is not None]
        return {name: bound for name, bound in bounds.items() if all(name in g for g in gated)}

    return limits


@dataclass(frozen=True, kw_only=True)
class ComparedSide:
    """Hold one side of a comparison: by case id, groups of runs under equal conditions."""

    name: str
    cases: Mapping[str, Sequence[Measured]]
    notes: tuple[str, ...] = ()


def from_git(ref: str, folder: Path | None) -> ComparedSide:
    """Return the baselines committed at a git ref; with `folder`, only those below it."""
    commit = commit_of(ref)
    if commit is None:
        raise MlperfError(f"{ref!r} is not a commit of this git repository")
    tracked = git_text("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit).split("\0")
    names = [name for name in tracked if _is_baseline(name, folder)]
    if not names:
        where = folder or "any folder named baselines"
        raise MlperfError(f"commit {ref} has no performance baseline in {where}")
    cases: dict[str, list[Measured]] = defaultdict(list)
    notes = []
    for name in names:
        try:
            baseline = baseline_at(commit, name)
        except BaselineError as error:
            notes.append(f"left out: {error}")
            continue
        for record in baseline.records:
            measured = _recorded(baseline, record)
            cases[measured.case.id].append(measured)
    return ComparedSide(
        name=f"git:{ref}: {plural(len(cases), 'baseline')} at {commit[:12]}",
        cases=cases,
        notes=tuple(notes),
    )


def commit_of(ref: str) -> str | None:
    """Return the commit hash of a git ref; None if git does not know the ref."""
    if ref.startswith("-"):
        return None
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    return git_text(*words).strip() or None


def _is_baseline(name: str, folder: Path | None) -> bool:
    if not baselines.is_baseline_path(Path(name)):
        return False
    root = Path(name).parts[:-4]
    root = root[:-1] if root[-1] == "open" else root
    return root[-1:] == ("baselines",) if folder is None else _in_tree(folder) == root


def _in_tree(folder: Path) -> tuple[str, ...] | None:
    top = Path(git_text("rev-parse", "--show-toplevel").removesuffix("\n") or "/")
    resolved = folder.resolve()
    return resolved.relative_to(top).parts if resolved.is_relative_to(top) else None


def _recorded(file: Baseline, record: Record) -> Measured:
    case = case_of(file)
    runs = [
        Run(
            metrics=run.metrics,
            within_se=run.within_se,
            samples=run.samples,
            queries=run.samples,
            duration_s=run.duration_s,
            target_qps=record.target_qps or 0.0,
            session=run.session,
            started=run.started,
            commit=run.commit,
            folder="",
            serving=run.serving,
        )
        for run in record.runs
    ]
    return Measured(
        case=case,
        profile=file.profile,
        identity=record.identity,
        fingerprint=record.fingerprint,
        surroundings=record.surroundings,
        rate=record.target_qps if case.scenario.rate_is_condition else None,
        runs=tuple(runs),
        gated=frozenset(record.minimum_detectable_change),
    )


def side(text: str, runs_dir: Path, folder: Path | None) -> ComparedSide:
    """Resolve a command-line argument to one side of the comparison.

    Tried in this order: results file or folder, run id, LIBRARY==VERSION, git ref.
    """
    if text.startswith("git:"):
        return from_git(text.removeprefix("git:"), folder)
    if file := results_file(text, runs_dir):
        return from_results(file, read_results(file))
    if named := re.fullmatch(r"([A-Za-z0-9_.-]+)==(\S+)", text):
        return from_version(named[1], named[2], Sessions(runs_dir))
    if commit_of(text):
        return from_git(text, folder)
    raise MlperfError(
        f"{text!r} is not a results file, a session in {runs_dir}/runs, LIBRARY==VERSION or a git "
        "ref; see pytest-mlperf compare --help"
    )


def from_results(path: Path, results: Results) -> ComparedSide:
    """Return the performance cases of one session."""
    cases: dict[str, list[Measured]] = defaultdict(list)
    for result in performance(results):
        cases[result.verdict.case.id].append(_measured(result))
    counted = plural(len(cases), "case")
    return ComparedSide(name=f"{path}: session {results.run}, {counted}", cases=cases)


def from_version(library: str, version: str, sessions: Sessions) -> ComparedSide:
    """Pool the runs of all sessions with a library's version, by case and conditions."""
    pools: dict[str, dict[str, Measured]] = defaultdict(dict)
    seen = 0
    versions: set[str] = set()
    for _, results in sessions:
        fits = False
        for result in performance(results):
            if result.handicap or result.pretended or not result.verdict.subject:
                continue
            measured = _measured(result)
            versions |= _versions(library, measured)
            if measured.runs and version in _versions(library, measured):
                about = sorted(measured.identity.items()), sorted(measured.fingerprint.items())
                key, pool = repr((measured.profile, measured.rate, about)), pools[measured.case.id]
                both = (*(pool[key].runs if key in pool else ()), *measured.runs)
                runs = tuple(sorted(both, key=lambda run: run.started))
                pool[key] = replace(pool.get(key, measured), runs=runs)
                fits = True
        seen += fits
    if not pools:
        names = ", ".join(sorted(versions)) or "none"
        raise MlperfError(
            f"no session in {sessions.folder}/runs used {library}=={version}; versions there: "
            f"{names}"
        )
    return ComparedSide(
        name=f"{library}=={version}: {plural(len(pools), 'case')} of {plural(seen, 'session')}",
        cases={case: list(pool.values()) for case, pool in pools.items()},
        notes=tuple(sessions.notes),
    )


def _versions(library: str, measured: Measured) -> set[str]:
    return {
        measured.fingerprint[k] for k in (f"engine.{library}", library) if k in measured.fingerprint
    }


def _measured(result: CaseResult) -> Measured:
    verdict, subject = result.verdict, result.verdict.subject
    reason = ""
    if not verdict.runs:
        reason = first_line(verdict)
    elif result.handicap:
        reason = f"measured with --mlperf-handicap {result.handicap:.0%}"
    elif result.pretended:
        reason = f"measured with --mlperf-pretend {verdict.case.accelerator}"
    return Measured(
        case=verdict.case,
        profile=result.profile,
        identity=subject.identity if subject else {},
        fingerprint=subject.fingerprint if subject else {},
        surroundings=subject.surroundings if subject else {},
        rate=result.target_qps if verdict.case.scenario.rate_is_condition else None,
        runs=verdict.runs,
        limits=result.limits,
        reason=reason,
        price=verdict.cost.price if verdict.cost else None,
    )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Hold runs of one case on one machine, at one rate, of one build.

    Attributes:
        rate: Offered rate (queries per second); None if the scenario measures the rate.
        limits: Smallest relevant drops of gated metrics, as shares; None if unknown.
        gated: Metrics that a committed baseline can gate; None for the runs of sessions.
        reason: Handicap of the runs, or why there are no runs.
        price: Price of one GPU-hour; None if the suite states none.
    """

    case: Case
    profile: str
    identity: Mapping[str, Property]
    fingerprint: Mapping[str, str]
    rate: float | None
    runs: tuple[Run, ...]
    limits: Mapping[str, float] | None = None
    gated: frozenset[str] | None = None
    reason: str = ""
    surroundings: Mapping[str, str] = field(default_factory=dict)
    price: GpuPrice | None = None

    @property
    def find(self) -> str:
        """Conditions of the rate search, or "" if the rate was not searched."""
        return self.fingerprint.get("find", "")

    @property
    def division(self) -> str:
        """MLPerf division of the fingerprint, "closed" or "open"; default: "closed"."""
        return self.fingerprint.get("division", "closed")


def why_not(a: Measured, b: Measured, *, hardware: bool = True) -> str:
    """Return why A and B are not comparable, or ""; `hardware` False allows different hardware."""
    for label, side in (("A", a), ("B", b)):
        if not side.runs:
            return f"{label} has no runs: {side.reason}"
    if a.profile != b.profile:
        return f"different profiles: {a.profile} → {b.profile}"
    if a.division != b.division:
        return f"different divisions: {a.division} → {b.division}"
    if hardware and (others := differences(a.identity, b.identity)):
        return "different hardware: " + ", ".join(f"{d.name} {d.theirs} → {d.ours}" for d in others)
    if condition := other_condition(a.fingerprint, b.fingerprint):
        return condition
    old, new = ("unknown" if rate is None else f"{rate:g}/s" for rate in (a.rate, b.rate))
    return "" if a.rate == b.rate else f"offered rate differs: {old} → {new}"
