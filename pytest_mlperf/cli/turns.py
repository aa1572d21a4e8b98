"""`pytest-mlperf turns`: compare two engine entries by interleaved runs."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pytest_mlperf.bench.case import CaseRuns
from pytest_mlperf.bench.interleaved import Interleaved, NotComparable
from pytest_mlperf.bench.policy import Policy
from pytest_mlperf.bench.runner import Unjudgeable
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import progress, show, width
from pytest_mlperf.cli.stored_results import case_named, default_noise_text, folder_in
from pytest_mlperf.cli.suites import find_suites
from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.metrics import METRICS
from pytest_mlperf.core.numbers import limit as shown_limit
from pytest_mlperf.core.numbers import quantity, times
from pytest_mlperf.core.rulings.outcomes import outcome_of
from pytest_mlperf.core.verdict import SEVERITY, Outcome
from pytest_mlperf.hardware.machine import Machine, detect, split
from pytest_mlperf.judge.ratio import Ratio
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.reports.terminal.layout import Row, fold, paragraphs, table, unbroken
from pytest_mlperf.run.conditions import WARM_FOLDER, Conditions, WarmUps
from pytest_mlperf.run.project import new_id
from pytest_mlperf.suite.claims import Side, accelerators_of, side_of
from pytest_mlperf.suite.plan import Planned, plan_suite, url_of
from pytest_mlperf.suite.resolve import dataset_of, settings_of

PAIRS = 5


@dataclass(frozen=True, kw_only=True)
class TurnsResult:
    """Hold the result of one case's interleaved runs.

    Attributes:
        rows: Outcome and table row of each metric; a single row without values if not judged.
        reason: Why the case was not judged, or "".
    """

    name: str
    sides: Interleaved
    noise: str
    rows: Sequence[tuple[Outcome, Row]]
    reason: str = ""


HELP = """\
Measures the cases of A and B in pairs of interleaved runs, each run a new
process, in random order, and judges B against A by the limits of B. Changes of
the machine affect both sides alike.
A and B are each one of
  FILE             a suite's only engine entry
  FILE::LABEL      an engine entry: torch, torch-fp32 or torch-fp32-H200

Accuracy is not measured. For two builds of one engine entry, use pytest with
--mlperf-against, which measures accuracy too. Sides with different workloads,
data sets or numbers of GPUs are refused.

Exit 1 if a drop is proven, 2 if no case could be judged.

needs: two engine entries that can run here, with models and data

examples:
  $ pytest-mlperf turns a.mlperf.toml b.mlperf.toml
      measure both now: is B worse?
  $ pytest-mlperf turns s.mlperf.toml::torch s.mlperf.toml::onnx
      two engine entries of one suite
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `pytest-mlperf turns`."""
    parser.add_argument("a", metavar="A", help="the reference side")
    parser.add_argument("b", metavar="B", help="the side to judge")
    add(parser, "--case")
    text = f"maximum pairs of runs, at least 2 (default {PAIRS})"
    add(parser, "--pairs", default=PAIRS, help=text)
    add(parser, "--runs-dir")


def run(parsed: argparse.Namespace) -> int:
    """Interleave runs of A and B; return 1 for a proven drop, 2 if no case was judged, else 0."""
    a, b = argument(parsed.a), argument(parsed.b)
    pairs, machine = cases(a, b, parsed.case)
    folder = parsed.runs_dir / "runs" / new_id()
    results = []
    for x, y in pairs:
        both = interleaved({"A": x, "B": y}, machine, folder, parsed.pairs)
        both.begin()
        results.append(measure_interleaved(both))
    progress("")
    show(_page(results, (a.text, b.text), folder))
    if Outcome.PERF_DROP in _outcomes(results):
        return 1
    return 2 if all(one.reason for one in results) else 0


@dataclass(frozen=True, kw_only=True)
class InterleavedCases:
    """Hold the cases to interleave, and the conditions of their runs."""

    conditions: Conditions
    cases: Mapping[str, CaseRuns]

    @property
    def noisiest(self) -> CaseRuns:
        """Case with the largest expected standard deviation of a run."""
        return max(self.cases.values(), key=lambda case: case.rule.prior_sd)

    @property
    def noise(self) -> str:
        """Source of the noise assumed for the noisiest case, as text: calibration or default."""
        return self.noisiest.noise or default_noise_text(self.noisiest.rule)

    def begin(self) -> None:
        """Create the folder for the runs; raise EnvironmentFault if that fails."""
        folder = self.conditions.folder
        folder_in(folder.parents[1], *folder.parts[-2:])


def interleaved(
    planned: Mapping[str, Planned], machine: Machine, folder: Path, pairs: int
) -> InterleavedCases:
    """Create the cases to interleave, without energy measurement and micro-benchmark.

    Args:
        folder: Folder for these runs, two levels below the runs folder.
        pairs: Maximum number of run pairs.
    """
    conditions = Conditions(
        folder=folder,
        session=folder.name,
        machine=machine,
        power=False,
        control=False,
        watched=True,
        warmups=WarmUps("auto", folder / WARM_FOLDER),
    )
    policy = Policy(max_runs=pairs, accuracy=folder.parents[1] / "accuracy", root=Path.cwd())
    cases = {name: CaseRuns(case, conditions, policy, progress) for name, case in planned.items()}
    return InterleavedCases(conditions=conditions, cases=cases)


def measure_interleaved(both: InterleavedCases) -> TurnsResult:
    """Interleave runs of the cases A and B, and judge B by the limits of its suite."""
    a, b = (both.cases[side] for side in "AB")
    sides = Interleaved(old=a, new=b, rule=both.noisiest.rule)
    case, limits = a.job.case, b.job.limits
    machines = " and ".join(dict.fromkeys((case.accelerator, b.job.case.accelerator)))
    name, reason = f"{case.workload} {case.scenario} on {machines}", ""
    rows: list[tuple[Outcome, Row]]
    try:
        ratios = sides.judge(limits)
        rows = [_row(sides, metric, ratio, limits[metric]) for metric, ratio in ratios.items()]
    except NotComparable as error:
        rows, reason = [(error.outcome, {})], sentence(error.reason)
    except Unjudgeable as error:
        rows, reason = [(Outcome.INVALID, {})], sentence(error.note)
    return TurnsResult(name=name, sides=sides, noise=both.noise, rows=rows, reason=reason)


def _row(sides: Interleaved, metric: str, ratio: Ratio, limit: float) -> tuple[Outcome, Row]:
    a, b = (quantity(metric, mean) for mean in sides.means(metric, ratio.pairs))
    row = {
        "metric": METRICS[metric].title,
        "A": a,
        "B": b,
        "ratio": times(ratio.ratio),
        "interval": f"{times(ratio.low)} to {times(ratio.high)}",
        "limit": shown_limit(metric, limit),
        "pairs": str(ratio.pairs),
    }
    return outcome_of(ratio, Outcome.PERF_DROP), row


def _outcomes(results: Sequence[TurnsResult]) -> list[Outcome]:
    return [outcome for result in results for outcome, _ in result.rows]


def _page(results: Sequence[TurnsResult], names: tuple[str, str], folder: Path) -> list[str]:
    columns = width()
    lines = [*paragraphs("A", names[:1], columns), *paragraphs("B", names[1:], columns)]
    cells = [{"verdict": str(word), **row} for result in results for word, row in result.rows]
    left, spare = ["verdict", "metric"], ["pairs", "A", "limit"]
    rows = iter(table(cells, columns, left=left, spare=spare, indent="  "))
    lines += ["", next(rows)]
    for result in results:
        lines.append(result.name)
        # Where INVALID runs ended the case, its reason stands for them.
        again = sentence(result.sides.repeat_note or "")
        for line in filter(None, [] if result.reason else [again, result.sides.left_out]):
            lines += fold(line, columns, first="  ", rest="    ")
        lines += islice(rows, len(result.rows))
        lines += fold(result.reason, columns, first="    ", rest="    ") if result.reason else []
    notes = [
        "ratio: how many times better B is than A; the ends of its interval decide",
        "accuracy was not measured; check it: pytest -k accuracy",
        *dict.fromkeys(result.noise for result in results if not result.reason),
    ]
    lines += paragraphs("note", notes, columns)
    lines += paragraphs("runs", [str(folder)], columns)
    outcomes = _outcomes(results)
    counts = ", ".join(unbroken(f"{outcomes.count(w)} {w}") for w in SEVERITY if w in outcomes)
    return [*lines, *fold(counts, columns)]


@dataclass(frozen=True, kw_only=True)
class TurnsArgument:
    """Hold the engine entry that an argument names, and its cases by scenario and accelerator."""

    text: str
    cases: Mapping[tuple[Scenario, str], Planned]
    entry: Side

    @property
    def first_case(self) -> Planned:
        """First of the cases; suite and engine entry are the same for all of them."""
        return next(iter(self.cases.values()))


def argument(text: str) -> TurnsArgument:
    """Parse the argument SUITE[::LABEL], which names an engine entry."""
    file, _, label = text.partition("::")
    (path, *more) = find_suites([Path(file)])
    if more:
        raise MlperfError(f"{file} has {len(more) + 1} suites; name one of them")
    planned = plan_suite(path)
    suite = planned[0].suite
    if not label and len(suite.entries) > 1:
        names = ", ".join(entry.full_label for entry in suite.entries)
        raise MlperfError(
            f"{file} has {len(suite.entries)} engine entries; write {file}::LABEL with one of: "
            f"{names}"
        )
    try:
        entry = side_of(suite, label) if label else (suite.entries[0], None)
    except LookupError as error:
        raise MlperfError(f"{file}: {error.args[0]}") from None
    of_entry = [one for one in planned if one.engine is entry[0]]
    cases = {(one.case.scenario, one.case.accelerator): one for one in of_entry}
    return TurnsArgument(text=text, cases=cases, entry=entry)


def cases(
    a: TurnsArgument, b: TurnsArgument, name: str | None
) -> tuple[list[tuple[Planned, Planned]], Machine]:
    """Return the pairs (case of A, case of B) to compare, and this machine.

    Raises MlperfError if they are not comparable, EnvironmentFault if none can run here.
    """
    if reason := _suites_differ(a, b):
        raise MlperfError(f"A and B cannot be compared: {reason}")
    of_b = {scenario for scenario, _ in b.cases}
    both = [
        (a.cases[scenario, first], b.cases[scenario, second])
        for scenario in dict.fromkeys(scenario for scenario, _ in a.cases)
        if scenario in of_b
        for first, second in _accelerators(a, b)
    ]
    if not both:
        raise MlperfError("A and B have no scenario in common")
    same_file = a.first_case.path.samefile(b.first_case.path)
    if same_file and any(x.case == y.case for x, y in both):
        raise MlperfError("A and B are the same engine entry; name two different ones")
    named = dict.fromkeys(one.case.accelerator for two in both for one in two)
    machine = detect(gpus=any(split(accelerator)[1] != "cpu" for accelerator in named))
    both = [
        two for two in both if all(machine.has(one.case.accelerator) or url_of(one) for one in two)
    ]
    if not both:
        raise EnvironmentFault(
            f"accelerator {', '.join(named)} is not on this machine; available: {machine.seen}"
        )
    if name is not None:
        ids = [one.case.id for two in both for one in two]
        case = case_named(name, ids, " on both sides")
        both = [two for two in both if case in (one.case.id for one in two)]
    for x, y in both:
        if reason := _cases_differ(x, y):
            raise MlperfError(f"{x.case.id} and {y.case.id} cannot be compared: {reason}")
    return both, machine


def _accelerators(a: TurnsArgument, b: TurnsArgument) -> list[tuple[str, str]]:
    named = accelerators_of(a.entry, b.entry)
    if not named:
        # Not shared: what is there is told apart by its count, else by naming one.
        ours, theirs = ([e[1]] if e[1] else e[0].accelerators for e in (a.entry, b.entry))
        named = [(ours[0], theirs[0])] if len(ours) == len(theirs) == 1 else []
    if not named:
        raise MlperfError(
            f"A runs on {', '.join(a.entry[0].accelerators)}, B on "
            f"{', '.join(b.entry[0].accelerators)}; name one each: FILE::LABEL-ACCELERATOR"
        )
    for first, second in named:
        if split(first)[0] != split(second)[0]:
            raise MlperfError(
                f"A and B cannot be compared: {first} and {second} are different numbers of GPUs"
            )
    return named


def _suites_differ(a: TurnsArgument, b: TurnsArgument) -> str:
    first, second = (side.first_case.suite for side in (a, b))
    settings = {
        "workloads": (first.workload.name, second.workload.name),
        "MLPerf workloads": (first.workload.twin_of, second.workload.twin_of),
        "divisions": (first.division, second.division),
        "rounds": (first.round, second.round),
        "profiles": (first.profile, second.profile),
    }
    pairs = ((name, x, y) for name, (x, y) in settings.items() if x != y)
    return "; ".join(f"different {name}: {x} and {y}" for name, x, y in pairs)


def _cases_differ(x: Planned, y: Planned) -> str:
    if dataset_of(x) != dataset_of(y):
        return "different data sets, or different options of them"
    first, second = (
        {**dataclasses.asdict(settings_of(each)), "min_duration": each.scenario.min_duration}
        for each in (x, y)
    )
    # How long a run takes follows from its rate, too.
    unlike = [name for name in first if first[name] != second[name] and name != "fixed_work_s"]
    if unlike:
        return "; ".join(f"different {name}: {first[name]} and {second[name]}" for name in unlike)
    finds = [each.scenario.find.in_words if each.scenario.find else "none" for each in (x, y)]
    if finds[0] != finds[1]:
        return f"different find: {' and '.join(map(repr, finds))}"
    rates = [each.scenario.rate_on(each.case.accelerator) for each in (x, y)]
    if x.case.scenario.rate_is_condition and None not in rates and rates[0] != rates[1]:
        return f"different offered rates: {rates[0]:g}/s and {rates[1]:g}/s"
    return ""
