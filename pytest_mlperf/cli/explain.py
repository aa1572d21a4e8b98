"""`pytest-mlperf explain`: show how a verdict was reached, step by step."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pytest_mlperf.bench.case import nearest_baselines
from pytest_mlperf.bench.files import JudgedBaseline, suite_of
from pytest_mlperf.bench.interleaved import NotComparable, ratios_of
from pytest_mlperf.bench.policy import calibrated_rule, rule_for, rule_of_baseline
from pytest_mlperf.cli import stored_results
from pytest_mlperf.cli.arguments import add
from pytest_mlperf.cli.output import show, width
from pytest_mlperf.core.baseline import Record
from pytest_mlperf.core.errors import MlperfError
from pytest_mlperf.core.measurement import Run
from pytest_mlperf.core.metrics import METRICS, title
from pytest_mlperf.core.numbers import change, interval, limit, percent, plural, quantity, times
from pytest_mlperf.core.results import CaseResult, Results
from pytest_mlperf.core.rulings.multiplicity import DROP_OUTCOMES
from pytest_mlperf.core.rulings.ruling import is_worse, rule_values
from pytest_mlperf.core.verdict import MetricVerdict, RatioVerdict, Verdict
from pytest_mlperf.judge.decision import Answer
from pytest_mlperf.judge.inputs import Direction, better_known
from pytest_mlperf.judge.multiplicity import rule_among
from pytest_mlperf.judge.ratio import FIRST_LOOK, Ratio
from pytest_mlperf.judge.rule_r import GATING_RUNS, Judged, RuleR, judge
from pytest_mlperf.reports.causes import causes
from pytest_mlperf.reports.rows import cause_lines
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.reports.terminal import text
from pytest_mlperf.reports.terminal.explanation import INDENT, environment, evidence, wrapped
from pytest_mlperf.reports.terminal.layout import relative, table
from pytest_mlperf.stores.results import read_results
from pytest_mlperf.stores.sessions import Sessions

HELP = """\
Prints the verdict on a case and how it was reached: every run, every interim
analysis with its bounds, the change that would have altered the verdict,
accuracy, likely causes with evidence, machine, engine and all files.

needs: results of a session; the baseline in git for the interim analyses

examples:
  $ pytest-mlperf explain tiny-resnet50-Offline-onnxruntime-fp32-cpu
      all tests of the case, from the newest session that has it
  $ pytest-mlperf explain Offline r.json
      a part of the id that matches only one case; from this file
  $ pytest-mlperf explain .mlperf/runs/20261121-044418-1ce8
      a session of one case; if it has several, lists them
  $ pytest-mlperf explain "test_performance[demo-Offline-null-fp32-cpu]"
      only this test of the case
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "case",
        nargs="?",
        default="",
        metavar="CASE",
        help="id of a case or test, or a part that matches only one case (default: the only case "
        "of the session)",
    )
    add(parser, "results", "--runs-dir")
    parser.add_argument("--results", dest="file", help=argparse.SUPPRESS)  # its former name


def run(parsed: argparse.Namespace) -> int:
    """Explain the verdicts on one case; the exit code does not depend on them."""
    sessions = Sessions(parsed.runs_dir)
    name, text = parsed.case, parsed.results or parsed.file
    alone = name and text is None
    if alone and (name.endswith(".json") or stored_results.results_file(name, parsed.runs_dir)):
        name, text = "", name
    file = stored_results.results_path(text, parsed.runs_dir) if text else None
    try:
        path, results, tests = newest_session_with(
            name, [(file, read_results(file))] if file else sessions
        )
    except MlperfError as error:
        raise MlperfError("\n".join([str(error), *sessions.notes])) from None
    for result in tests:
        try:
            show([*_explain(result, path, results), ""])
        except ValueError as error:  # a file from elsewhere may hold what no run can measure
            raise MlperfError(f"{path}: {result.test}: {error}") from None
    show(environment(tests[-1].verdict, width()))
    show(sessions.notes)
    return 0


def newest_session_with(
    name: str, sessions: Iterable[tuple[Path, Results]]
) -> tuple[Path, Results, list[CaseResult]]:
    """Return the newest session with a case or test `name`: (file, results, tests of the case)."""
    measured: list[str] = []
    for path, results in sessions:
        tests = [one for one in results.cases if f"::{one.test}".endswith(f"::{name}")]
        ids = [one.verdict.case.id for one in results.cases]
        measured += ids
        if not tests and stored_results.matching(name, ids):
            case = stored_results.case_named(name, ids, f" of {relative(path)}")
            tests = [one for one in results.cases if one.verdict.case.id == case]
        if tests:
            return path, results, tests
    if not measured:
        raise MlperfError("no results to explain; measure first: pytest suites")
    raise stored_results.not_one_case(name, measured)


def _explain(result: CaseResult, path: Path, results: Results) -> Iterator[str]:
    verdict = result.verdict
    runs = tuple(replace(run, folder=relative(Path(run.folder))) for run in verdict.runs)
    if accuracy := verdict.accuracy:
        accuracy = replace(accuracy, folder=relative(Path(accuracy.folder)))
    verdict = replace(verdict, runs=runs, accuracy=accuracy)
    result = replace(result, verdict=verdict)
    folders = (Path(), *path.resolve().parents)
    baseline = JudgedBaseline(result, folders)
    file, record = baseline.file, baseline.record
    gated = [metric for metric in verdict.metrics if metric.metric in result.limits]
    if verdict.other_runs:
        limits = {m.metric: m.limit for m in gated if m.limit and m.outcome}
        pairs = sum(len(one.limits) for one in results.cases if one.verdict.kind in DROP_OUTCOMES)
        rule = rule_among(rule_of_pair(result, folders), pairs)
        compared = [metric for metric in gated if metric.metric in limits]
        judged = [interleaved_lines(verdict, metric, limits, rule, width()) for metric in compared]
    elif verdict.ratio:
        judged = [explain_pairs(verdict, verdict.ratio, rule_of_pair(result, folders), width())]
    else:
        rule = rule_for(verdict.case.accelerator, result.max_runs)
        if file and verdict.subject:
            identity = verdict.subject.identity
            rule = rule_of_baseline(file, verdict.case.accelerator, identity, result.max_runs)[0]
        judged = [explain_analyses(metric, verdict.runs, record, rule, width()) for metric in gated]
    same = record if verdict.baseline.source and not baseline.was_replaced else None
    others = [one.verdict for one in results.cases if one.verdict.case != verdict.case]
    likely = cause_lines(causes(verdict, same, others), len(others), width())
    yield f"{result.test}"
    at = f" at commit {results.commit}" if results.commit else ""
    yield f"{results.started[:16].replace('T', ' ')} UTC{at}, profile {result.profile}"
    yield f"from {relative(path.absolute())}"
    yield ""
    yield from text.failure(result, width()).splitlines()
    yield from evidence(result, record.runs if record else (), judged, width(), likely)


def rule_of_pair(result: CaseResult, folders: Iterable[Path]) -> RuleR:
    """Return rule R for a pair's speed ratio, with the calibrated noise of its machine if known."""
    verdict, suite = result.verdict, suite_of(result, folders)
    if suite is None or verdict.subject is None:
        return rule_for(verdict.case.accelerator, result.max_runs)
    root, identity = nearest_baselines(suite), verdict.subject.identity
    return calibrated_rule(root, verdict.case.accelerator, identity, result.max_runs)[0]


PAIR_SAYS = {Answer.PASS: "proven", Answer.FAIL: "refuted", Answer.MORE: "another pair"}
DROP_SAYS = {Answer.PASS: "ok", Answer.FAIL: "drop", Answer.MORE: "another pair"}


def explain_analyses(
    metric: MetricVerdict, runs: Sequence[Run], record: Record | None, rule: RuleR, width: int
) -> list[str]:
    """Return lines on a metric's interim analyses; raise ValueError if a value is impossible."""
    about = METRICS[metric.metric]
    bound = limit(metric.metric, metric.limit) if metric.limit else ""
    head = f"{title(metric.metric)}: {about.direction} is better, limit {bound}; {metric.outcome}"
    old_values = rule_values(record.runs, metric.metric, rule.tolerated) if record else []
    new_values = rule_values(runs, metric.metric, rule.tolerated)
    if metric.outcome is None or metric.low is None or metric.limit is None:
        note = sentence(metric.note or "no baseline")
        return [head.replace("None", "only reported"), *wrapped(f"Not judged: {note}", width)]
    if not old_values or not new_values:
        whose = "session" if old_values else "baseline"
        note = f"The {whose}'s runs are missing, so the interim analyses cannot be repeated."
        return [head, *wrapped(note, width)]
    noise = record.noise_of(metric.metric) if record else None
    rule = replace(rule, session_noise=better_known(noise, rule.session_noise))
    made = [
        judge(old_values, new_values[:k], direction=about.direction, limit=metric.limit, rule=rule)
        for k in range(1, min(len(new_values), rule.max_runs) + 1)
    ]
    made = made[: made[-1].runs_used]
    last = made[-1]
    df = last.runs_baseline + last.runs_used - 2
    noise_line = (
        f"Noise: standard deviation {percent(last.sd)} between runs ({last.df:g} degrees of "
        f"freedom: {df} from these runs, {rule.prior_df:g} from the expected "
        f"{percent(rule.prior_sd)})."
    )
    lines = [head, *wrapped(noise_line, width)]
    rows = [_look(look, metric.metric, rule) for look in made]
    lines += table(rows, width, left=["decision"], indent=INDENT)
    for remark in _remarks(metric, last, rule):
        lines += wrapped(remark, width)
    return lines


def _look(look: Judged, metric: str, rule: RuleR) -> dict[str, str]:
    worst, best = _ends(look, metric)
    return {
        "runs": str(look.runs_used),
        "change": change(look.change),
        "at worst": change(worst),
        "at best": change(best),
        "decision": _says(look, metric, rule),
    }


def _says(look: Judged, metric: str, rule: RuleR) -> str:
    match look.outcome:
        case Answer.PASS:
            better = "; improvement proven" if look.improved else ""
            return f"ok: worst case within the limit {limit(metric, look.limit)}{better}"
        case Answer.FAIL:
            return "drop: whole interval worse than 0"
        case Answer.PROVISIONAL:
            differ = percent(look.robust_to or 0.0)
            return f"provisional {look.direction}: holds if day-to-day variation < {differ}"
    return f"undecided: {_open(look, metric, rule)}"


def _open(look: Judged, metric: str, rule: RuleR) -> str:
    worst, best = _ends(look, metric)
    if look.robust_to is not None:
        return f"drop if day-to-day variation < {percent(look.robust_to)}"
    if look.runs_used == 1 and is_worse(metric, 0.0, best):
        return "one run is never enough to fail"
    if look.runs_used == 1 and not is_worse(metric, _signed(look.limit, metric), worst):
        return "improvement needs a second run"
    last = "; no runs left" if look.runs_used == rule.max_runs else ""
    return f"no change and the limit {limit(metric, look.limit)} are both possible{last}"


def _remarks(metric: MetricVerdict, last: Judged, rule: RuleR) -> Iterator[str]:
    assert metric.low is not None
    assert metric.high is not None
    ends = ((metric.low, last.low), (metric.high, last.high))
    if not all(math.isclose(one, now, rel_tol=1e-6, abs_tol=1e-9) for one, now in ends):
        seen = interval(metric.low, metric.high)
        yield f"The baseline has changed since the verdict, whose interval was {seen}."
    if last.advisory:
        yield (
            f"The baseline has {last.runs_baseline} of the {GATING_RUNS} runs that a failure "
            "needs: a drop is only reported."
        )
    if last.outcome is Answer.PROVISIONAL and last.robust_to is not None:
        days = plural(metric.baseline.days, "day")
        reasons = {
            "few sessions": f"the baseline has only {days}",
            "old": "the baseline is too old",
            None: "the baseline's sessions vary too much",
        }
        word = "a drop" if last.direction == "drop" else "ok"
        yield (
            f"Provisional: it is {word} only if the standard deviation between sessions is below "
            f"{percent(last.robust_to)}. That is unproven: {reasons[last.lacks]}."
        )
    yield _otherwise(last, metric.metric)
    yield (
        'The bounds are one-sided. Over all interim analyses, "at worst" is wrong with a '
        f'probability of at most {percent(rule.beta)} ({rule.max_runs} analyses), "at best" of at '
        f"most {percent(rule.alpha)} ({rule.max_runs - 1} analyses)."
    )


def thresholds(judged: Judged, metric: str) -> tuple[float, float]:
    """Return (largest drop that would pass, smallest drop that would be proven) as shares.

    The width of the confidence interval is assumed constant, because it depends on noise only.
    """
    worst, best = _ends(judged, metric)
    change_, bound = math.log1p(judged.change), math.log1p(_signed(judged.limit, metric))
    passes = math.expm1(bound + change_ - math.log1p(worst))
    fails = math.expm1(change_ - math.log1p(best))
    # What passes is never a drop, although it may be proven to be worse than 0.
    return passes, fails if is_worse(metric, passes, fails) else passes


def _otherwise(last: Judged, metric: str) -> str:
    passes, fails = thresholds(last, metric)
    higher = METRICS[metric].direction is Direction.HIGHER
    better, worse = ("above", "below") if higher else ("below", "above")
    text = f"At this noise, a change {better} {change(passes)} passes"
    final = ""
    if last.outcome is Answer.PROVISIONAL or last.lacks:
        final = " Both verdicts are provisional while day-to-day variation could reverse them."
    if last.runs_used == 1:
        return f"{text}; a drop needs two runs.{final}"
    if math.isclose(passes, fails):
        return f"{text}, any other is a drop.{final}"
    return (
        f"{text}, one {worse} {change(fails)} is a drop, and between them it is undecided.{final}"
    )


def _ends(look: Judged, metric: str) -> tuple[float, float]:
    if METRICS[metric].direction is Direction.HIGHER:
        return look.low, look.high
    return look.high, look.low


def _signed(share: float, metric: str) -> float:
    return -share if METRICS[metric].direction is Direction.HIGHER else share


def explain_pairs(verdict: Verdict, claim: RatioVerdict, rule: RuleR, width: int) -> list[str]:
    """Explain a claimed ratio: list the interleaved pairs, with the interval after each pair."""
    name = claim.metric
    head = f"{title(name)}: claimed >= {claim.least:g}x; {plural(claim.pairs, 'pair')} of runs"
    sides = [verdict.runs[side::2][: claim.pairs] for side in (0, 1)]
    judged = partial(ratios_of, limits={name: 0.0}, rule=rule, claim=claim.least)
    ends = (
        "the claim is proven if the whole interval is at or above it, and refuted if the whole "
        "interval is below it"
    )
    table_lines = _pairs(name, sides, judged, PAIR_SAYS, ends, width)
    return [head, *table_lines, *(f"{INDENT}{run.folder}" for run in verdict.runs)]


def interleaved_lines(
    verdict: Verdict, metric: MetricVerdict, limits: Mapping[str, float], rule: RuleR, width: int
) -> list[str]:
    """Return lines: a heading, the pairs of runs (a: this build, b: the other), and run times.

    `limits` are those of all judged metrics. A run time is the run's start, "12:30:59 FOLDER".
    """
    name, bound = metric.metric, limit(metric.metric, limits[metric.metric])
    head = f"{title(name)}: a is this build, b the other; limit {bound}; {metric.outcome}"
    sides = [one[: metric.runs] for one in (verdict.runs, verdict.other_runs)]
    judged = partial(ratios_of, limits=limits, rule=rule)
    ends = f"ok if the whole interval is above the limit {bound}, drop if it is below 1"
    both = [run for pair in zip(verdict.runs, verdict.other_runs, strict=False) for run in pair]
    times_of_day = [
        f"{INDENT}{run.started[11:19]} {run.folder}"
        for run in sorted(both, key=lambda run: run.started)
    ]
    return [head, *_pairs(name, sides, judged, DROP_SAYS, ends, width), *times_of_day]


def _pairs(
    name: str,
    sides: Sequence[Sequence[Run]],
    judged: Callable[..., Mapping[str, Ratio]],
    says: Mapping[Answer, str],
    ends: str,
    width: int,
) -> list[str]:
    count = min(map(len, sides))
    try:
        looks = [judged(*(runs[:k] for runs in sides))[name] for k in range(1, count + 1)]
    except (NotComparable, KeyError):  # a file from elsewhere may lack values
        looks = []
    if not looks:
        return [f"{INDENT}These results do not contain the runs."]
    rows = [
        {
            "pair": str(k),
            "a": quantity(name, a.metrics[name]),
            "b": quantity(name, b.metrics[name]),
            "ratio": times(look.ratio),
            "interval": f"{times(look.low)} to {times(look.high)}" if k >= FIRST_LOOK else "",
            "decision": says.get(look.outcome, "undecided"),
        }
        for k, (look, a, b) in enumerate(zip(looks, *sides, strict=False), start=1)
    ]
    table_lines = table(rows, width, left=["decision"], spare=["ratio"], indent=INDENT)
    noise = (
        f"Each row covers all pairs so far; the standard deviation between pairs is "
        f"{percent(looks[-1].sd)}. From pair {FIRST_LOOK} on, {ends}."
    )
    return [*wrapped(noise, width), *table_lines]
