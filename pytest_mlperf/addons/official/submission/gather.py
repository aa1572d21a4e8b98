"""Collect a submission's entries (scenario of a benchmark) from sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.submission.layout import ANSWERS_LOG, DETAIL_LOG, SUMMARY_LOG
from pytest_mlperf.core.measurement import Accuracy, median_run
from pytest_mlperf.extension import CaseResult, Kind, Results, Run, Scenario, nearest, sentence
from pytest_mlperf.rounds import Round, RoundScenario, RoundWorkload
from pytest_mlperf.rounds.compliance import TESTS

Session = tuple[Path, Results]
"""Results file and its content."""

REHEARSE = "--rehearsal writes a tree for practice, which cannot be submitted"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Hold the results of one scenario of one benchmark.

    Attributes:
        benchmark: Name of the benchmark in MLPerf's checker.
        mapped: The suite's name of the workload if it differs from MLPerf's, else "".
        run: Log folder of the performance run.
        answers: Log folder of the accuracy run.
        audits: Folders of the compliance tests by name.
    """

    result: CaseResult
    rules: RoundWorkload
    benchmark: str
    mapped: str
    chosen: Run
    accuracy: Accuracy
    run: Path
    answers: Path
    audits: Mapping[str, Path] = field(default_factory=dict)

    @property
    def scenario(self) -> Scenario:
        """Scenario of the result."""
        return self.result.verdict.case.scenario

    @property
    def constants(self) -> RoundScenario:
        """MLPerf's requirements for this scenario in this round."""
        return self.rules.scenarios[self.scenario]


def gather(
    sessions: Sequence[Session], rules: Round, benchmarks: Mapping[str, str], *, rehearsal: bool
) -> list[Entry]:
    """Return the entries of sessions; raise MlperfError for a result that cannot be submitted.

    `benchmarks` maps workload names of the suites to MLPerf's names. With `rehearsal`, runs of the
    quick profile are accepted.
    """
    timed = list(_of_kinds(sessions, Kind.PERFORMANCE))
    if not timed:
        raise MlperfError(f"{sessions[0][0]}: these results have no performance test")
    _require_one_system(timed)
    entries: dict[tuple[str, str], Entry] = {}
    for file, result in timed:
        entry = _entry(file, result, sessions, rules, benchmarks, rehearsal=rehearsal)
        there = entries.setdefault((entry.benchmark, entry.scenario), entry)
        if there is not entry:
            raise MlperfError(
                f"{entry.benchmark} {entry.scenario} occurs twice, as "
                f"{there.result.verdict.case.id} and {entry.result.verdict.case.id}: a system "
                "has one result of each; name the results of one engine and of one session"
            )
    return list(entries.values())


def _of_kinds(sessions: Iterable[Session], *kinds: str) -> Iterator[tuple[Path, CaseResult]]:
    for file, results in sessions:
        for result in results.cases:
            if result.verdict.kind in kinds:
                yield file, result


def _require_one_system(timed: Sequence[tuple[Path, CaseResult]]) -> None:
    (first_file, first), *others = timed
    for file, result in others:
        ours, theirs = (
            {**(one.verdict.subject.identity if one.verdict.subject else {})}
            for one in (first, result)
        )
        ours |= {"accelerator": first.verdict.case.accelerator}
        theirs |= {"accelerator": result.verdict.case.accelerator}
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                raise MlperfError(
                    f"{first_file} and {file} are of two systems: {name} is {ours.get(name)!r} "
                    f"and {theirs.get(name)!r}; export each system by itself"
                )


def _entry(
    file: Path,
    result: CaseResult,
    sessions: Sequence[Session],
    rules: Round,
    benchmarks: Mapping[str, str],
    *,
    rehearsal: bool,
) -> Entry:
    case = result.verdict.case
    where = f"{file}: {case.id}"
    _require_submittable(where, result, rules, rehearsal=rehearsal)
    workload, mapped = _workload(where, case.workload, rules, benchmarks)
    if case.scenario not in workload.scenarios:
        raise MlperfError(
            f"{where}: {workload.name} has no {case.scenario} in {rules.name}; it has "
            f"{', '.join(workload.scenarios)}"
        )
    if not result.verdict.runs:
        raise MlperfError(
            f"{where} has no run that may be judged: {sentence(result.verdict.headline)}; "
            "measure again"
        )
    chosen = median_run(result.verdict.runs, case.scenario)
    scored, accuracy = _accuracy(where, result, sessions)
    names = workload.checker_names
    interactive = case.scenario == Scenario.INTERACTIVE and workload.interactive_checker
    return Entry(
        result=result,
        rules=workload,
        benchmark=names[len(names) // 2] if interactive else names[0],
        mapped=mapped,
        chosen=chosen,
        accuracy=accuracy,
        run=_logs(where, _run_folder(file, chosen.folder, 2)),
        answers=_answers(where, _run_folder(scored, accuracy.folder, 1)),
        audits={
            one.verdict.kind: _run_folder(other, one.verdict.logs.folder, 1)
            for other, one in _of_kinds(sessions, *TESTS)
            if one.verdict.case == case and one.verdict.logs.folder
        },
    )


def _require_submittable(where: str, result: CaseResult, rules: Round, *, rehearsal: bool) -> None:
    if result.profile == "quick" and not rehearsal:
        raise MlperfError(
            f"{where} is of the quick profile, which shortens what MLPerf requires: measure "
            f"with --mlperf-profile official; {REHEARSE}"
        )
    if result.round != rules.name:
        raise MlperfError(
            f"{where} was measured by the rules of {result.round}, with its seeds: name "
            f'--round {result.round}, or set round = "{rules.name}" in the suite and measure again'
        )
    if result.handicap or result.pretended:
        reason = "was slowed by a handicap" if result.handicap else "only pretends its accelerator"
        raise MlperfError(f"{where} {reason}: it is not a measurement of this system")


def _workload(
    where: str, name: str, rules: Round, benchmarks: Mapping[str, str]
) -> tuple[RoundWorkload, str]:
    workload = rules.find(name)
    if workload is not None:
        return workload, ""
    if name not in benchmarks:
        raise MlperfError(
            f"{where}: {name} is not a workload of {rules.name}{nearest(name, rules.names)}; "
            f"name the workload it stands for: --benchmark {name}=resnet50"
        )
    workload = rules.find(benchmarks[name])
    if workload is None:
        raise MlperfError(
            f"--benchmark {name}={benchmarks[name]}: no workload of {rules.name}"
            f"{nearest(benchmarks[name], rules.names)}"
        )
    return workload, name


def _accuracy(where: str, result: CaseResult, sessions: Sequence[Session]) -> tuple[Path, Accuracy]:
    passes = [
        (file, one.verdict.accuracy)
        for file, one in _of_kinds(sessions, Kind.ACCURACY, Kind.PERFORMANCE)
        if one.verdict.case == result.verdict.case and one.verdict.accuracy
    ]
    whole = [(file, one) for file, one in passes if one.full]
    if whole:
        return whole[0]
    lack = "no accuracy run"
    if passes:
        lack = f"an accuracy run over {passes[0][1].samples:,} of {passes[0][1].total:,} samples"
    raise MlperfError(
        f"{where} has {lack}: a submission needs one over the whole data set, by test_accuracy "
        "with --mlperf-profile official"
    )


def _run_folder(file: Path, folder: str | None, parts: int) -> Path:
    """Return a run folder: next to `file` if there, by its last `parts` names; else `folder`."""
    named = Path(folder or "")
    near = file.resolve().parent.joinpath(*named.parts[-parts:])
    return near if near.is_dir() else named


def _logs(where: str, folder: Path) -> Path:
    for name in (DETAIL_LOG, SUMMARY_LOG, "run.json"):
        if not (folder / name).is_file():
            raise MlperfError(
                f"{where}: {folder} has no {name}: put the run's folder back as LoadGen left "
                "it, or measure again; after find, with the rate that it found as target_qps"
            )
    return folder


def _answers(where: str, folder: Path) -> Path:
    blocks = sorted((folder / "accuracy").glob("block-*"))
    if len(blocks) > 1:
        raise MlperfError(
            f"{where}: the accuracy run was made in {len(blocks)} parts, as in the quick profile "
            "with an accuracy baseline: measure it with --mlperf-profile official"
        )
    if not blocks or not all(
        (blocks[0] / name).is_file() for name in (DETAIL_LOG, SUMMARY_LOG, ANSWERS_LOG)
    ):
        raise MlperfError(
            f"{where}: {folder} has no logs of the accuracy run: put the runs' folders back "
            "there, or measure accuracy again"
        )
    return blocks[0]
