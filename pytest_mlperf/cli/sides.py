"""One side of a comparison: the runs of each case, from results, from git, or pooled by version."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mlperf.cli.committed import commit_of, from_git
from pytest_mlperf.cli.history import Sessions, performance
from pytest_mlperf.cli.measured import LOADED, Measured, Side
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.reports.layout import plural
from pytest_mlperf.stores.results import read_results


def side(text: str, runs_dir: Path, folder: Path | None) -> Side:
    """Return what an argument names.

    A file or folder with results, else a run id, else LIBRARY==VERSION, else a git ref.

    Args:
        text: The argument.
        runs_dir: Where run ids and pools are looked for.
        folder: Folder of baselines in git; None: every folder called baselines.

    Raises:
        MlperfError: It names nothing, or what it names cannot be read.
    """
    if text.startswith("git:"):
        return from_git(text.removeprefix("git:"), folder)
    if found := results_file(text, runs_dir):
        return from_results(found, read_results(found))
    if named := re.fullmatch(r"([A-Za-z0-9_.-]+)==(\S+)", text):
        return from_version(named[1], named[2], Sessions(runs_dir))
    if commit_of(text):
        return from_git(text, folder)
    raise MlperfError(
        f"{text!r} is no results file, no run in {runs_dir}/runs, no LIBRARY==VERSION and no git "
        "ref; see pytest-mlperf compare --help"
    )


def results_file(text: str, runs_dir: Path) -> Path | None:
    """Return the results file that a path or a run id names, or None.

    Raises:
        MlperfError: The beginning of a run id fits several runs.
    """
    place = Path(text)
    if place.is_file():
        return place
    if (place / "results.json").is_file():
        return place / "results.json"
    if not re.fullmatch(r"[0-9][0-9A-Za-z-]*", text):
        return None
    found = sorted((runs_dir / "runs").glob(f"{text}*/results.json"))
    if len(found) > 1:
        names = ", ".join(path.parent.name for path in found)
        raise MlperfError(f"{text!r} fits {len(found)} runs: {names}")
    return found[0] if found else None


# --- results ---------------------------------------------------------------------------------


def from_results(path: Path, results: Results) -> Side:
    """Return the performance cases of one session."""
    cases: dict[str, list[Measured]] = defaultdict(list)
    for result in performance(results):
        cases[result.verdict.case.id].append(_measured(result))
    counted = plural(len(cases), "case")
    return Side(name=f"{path}: session {results.run}, {counted}", cases=cases)


def from_version(library: str, version: str, sessions: Sessions) -> Side:
    """Return the pooled runs of every session whose engine says LIBRARY == VERSION.

    Runs of one case are pooled where hardware, rate, profile and the whole fingerprint are equal.

    Raises:
        MlperfError: There are none.
    """
    pools: dict[str, dict[str, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    seen, versions = 0, set()
    for _, results in sessions:
        mine = [one for one in performance(results) if not (one.handicap or one.pretended)]
        found = [_measured(one) for one in mine if one.verdict.subject]
        versions |= {one.fingerprint[key] for one in found for key in _keys(library, one)}
        fitting = [
            one
            for one in found
            if one.runs and version in {one.fingerprint[key] for key in _keys(library, one)}
        ]
        seen += bool(fitting)
        for one in fitting:
            pools[one.case.id][_conditions(one)].append(one)
    if not pools:
        known = ", ".join(sorted(versions)) or "none"
        raise MlperfError(
            f"no session in {sessions.folder}/runs ran {library}=={version}; versions of "
            f"{library} there: {known}"
        )
    return Side(
        name=f"{library}=={version}: {plural(len(pools), 'case')} of {plural(seen, 'session')}",
        cases={case: [_pooled(parts) for parts in pool.values()] for case, pool in pools.items()},
        notes=tuple(sessions.notes),
    )


def _keys(library: str, one: Measured) -> list[str]:
    """Return the keys of a fingerprint that hold a library's version."""
    return [key for key in (f"engine.{library}", library) if key in one.fingerprint]


def _conditions(one: Measured) -> str:
    return repr(
        (one.profile, one.rate, sorted(one.identity.items()), sorted(one.fingerprint.items()))
    )


def _pooled(parts: Sequence[Measured]) -> Measured:
    """Return the runs of several sessions as one measurement; the newest session comes first."""
    newest = parts[0]
    runs = sorted((run for part in parts for run in part.runs), key=lambda run: run.started)
    return replace(newest, runs=tuple(runs))


def _measured(result: CaseResult) -> Measured:
    verdict, subject = result.verdict, result.verdict.subject
    why = ""
    if not verdict.runs:
        why = f"{verdict.outcome} {verdict.headline}"
    elif result.handicap:
        why = f"measured with --mlperf-handicap {result.handicap:.0%}"
    elif result.pretended:
        why = f"{verdict.case.accelerator} was only pretended"
    return Measured(
        case=verdict.case,
        profile=result.profile,
        identity=subject.identity if subject else {},
        fingerprint=subject.fingerprint if subject else {},
        surroundings=subject.surroundings if subject else {},
        rate=result.target_qps if verdict.case.scenario in LOADED else None,
        runs=verdict.runs,
        limits=result.limits,
        why=why,
    )


def only_in(one: Iterable[str], other: Iterable[str]) -> list[str]:
    """Return the names that only the first has, in its order."""
    known = set(other)
    return [name for name in one if name not in known]
