"""Build the plots of the whole session: changes, accuracy, noise, energy, cost and time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from statistics import fmean, geometric_mean, stdev

from pytest_mlperf import Outcome, Verdict
from pytest_mlperf.addons.html._precisions import precision_points
from pytest_mlperf.addons.html.model import (
    TIME_PARTS,
    TONES,
    Figure,
    Grouped,
    Row,
    RunFiles,
    judged_metrics,
    per_cent,
    rounded,
    tone,
)
from pytest_mlperf.core.metrics import title
from pytest_mlperf.core.numbers import quantity
from pytest_mlperf.extension import (
    METRICS,
    CaseResult,
    Kind,
    MetricVerdict,
    PairedVerdict,
    Scenario,
    duration,
    percent,
)
from pytest_mlperf.reports.rows import cells_of, facts_of

_TITLES = {metric.title for metric in METRICS.values()}

MAX_DRAWN_LIMITS = 4
"""Changes beyond this multiple of their limit are drawn at the edge of the plot."""


def forest(cases: Sequence[Grouped]) -> Figure:
    """Return a forest plot: every change with its interval, relative to its limit."""
    rows = [row for index, group in enumerate(cases) for row in _changes(index, group)]
    rows.sort(key=lambda row: (TONES.index(row["tone"]), row["used"] or 0.0))
    return Figure(
        name="forest",
        title="Changes against the baseline",
        says=(
            "Each line is the confidence interval of a change, divided by its limit: right is "
            "better, the shaded band is within the limit, and the mark at −1 is the limit. "
            "Diamonds failed, triangles are undecided, circles are ok. Changes of more than "
            f"{MAX_DRAWN_LIMITS} times the limit are drawn at the edge."
        ),
        rows=rows,
        without="No test has a baseline to be compared with: record one (--mlperf-update=missing).",
        open=True,
    )


def _changes(index: int, group: Grouped) -> Iterator[Row]:
    for result in group.results:
        verdict = result.verdict
        if verdict.kind.compares_runs:
            for metric in verdict.metrics:
                if metric.change is not None and metric.outcome is not None:
                    yield _change(
                        index, metric, _displayed_outcome(verdict, metric), failed=result.failed
                    )
        for paired in verdict.paired:
            if paired.outcome is not None and paired.baseline:
                yield _paired_change(index, paired, failed=result.failed)


def _displayed_outcome(verdict: Verdict, metric: MetricVerdict) -> Outcome | None:
    """Return the outcome to show for `metric`: its own, or the test's if no metric has that one."""
    outcomes = {each.outcome for each in verdict.metrics}
    return metric.outcome if verdict.outcome in outcomes else verdict.outcome


def _change(index: int, metric: MetricVerdict, outcome: Outcome | None, *, failed: bool) -> Row:
    cells = cells_of(metric)
    return {
        "case": index,
        "row": title(metric.metric),
        "tone": tone(outcome, failed=failed and metric.fails),
        "outcome": str(outcome),
        **_limit_multiples(metric, metric.limit, lower_is_better=_falls(metric.metric)),
        "change": cells["change"],
        "effect": cells["effect"],
        "interval": cells["interval"],
        "allowed": cells["limit"],
    }


def _paired_change(index: int, paired: PairedVerdict, *, failed: bool) -> Row:
    cells = cells_of(paired)
    fails = failed and paired.outcome is not None and paired.outcome.fails
    return {
        "case": index,
        "row": paired.metric,
        "tone": tone(paired.outcome, failed=fails),
        "outcome": cells["verdict"],
        **_limit_multiples(paired, paired.margin, lower_is_better=paired.lower),
        "change": f"{cells['points']} points",
        "effect": cells["effect"],
        "interval": cells["interval"],
        "allowed": cells["margin"],
    }


def _falls(metric: str) -> bool:
    definition = METRICS.get(metric)
    return definition is not None and definition.falls


def _limit_multiples(
    change: MetricVerdict | PairedVerdict, limit: float | None, *, lower_is_better: bool
) -> dict[str, float | None]:
    """Return a change ("used") and its interval ("low", "high") in multiples of the limit.

    -1 is a drop by the limit; values above 0 are better; None if a value or the limit is missing.
    """
    unit = abs(limit or 0.0) * (-1 if lower_is_better else 1)
    used, low, high = (
        None if share is None or not unit else round(share / unit, 3) + 0.0
        for share in (change.change, change.low, change.high)
    )
    return {
        "used": used,
        "low": high if lower_is_better else low,
        "high": low if lower_is_better else high,
    }


def heat_map(cases: Sequence[Grouped]) -> Figure:
    """Return a heat map of the worst change, relative to its limit, by workload and accelerator."""
    worst: dict[tuple[str, str], tuple[float, Row]] = {}
    for index, group in enumerate(cases):
        where = (f"{group.case.workload} {group.case.scenario}", group.case.accelerator)
        row = _cell(index, group, *where)
        used = row["used"] or 0.0
        if where not in worst or used < worst[where][0]:
            worst[where] = used, row
    return Figure(
        name="heat",
        title="Workload × accelerator",
        says=(
            "For each workload and accelerator, the worst change in speed or energy relative to "
            "its limit, or what failed. The colour is full at the limit and beyond. Without a "
            "comparison, the verdict is shown."
        ),
        rows=[worst[where][1] for where in sorted(worst)],
        without="Nothing was judged.",
        open=True,
    )


def _cell(index: int, group: Grouped, workload: str, accelerator: str) -> Row:
    changes = [row for row in _changes(index, group) if row["used"] is not None]
    outcome = str(group.worst.verdict.outcome)
    row = {"case": index, "workload": workload, "accelerator": accelerator, "outcome": outcome}
    speed = [change for change in changes if change["row"] in _TITLES]
    judged = [change for change in changes if change["tone"] == "fail"] or speed
    if not judged:
        return {**row, "used": None, "text": outcome, "worst": "", "allowed": ""}
    worst = min(judged, key=itemgetter("used"))
    return {
        **row,
        "used": round(max(-1.0, min(worst["used"], 1.0)), 2),
        "text": worst["effect"] + (f" {outcome}" if group.tone == "fail" else ""),
        "worst": f"{worst['row']} {worst['change']}",
        "allowed": worst["allowed"],
    }


def relative(cases: Sequence[Grouped]) -> Figure:
    """Return a plot of each workload's speed by accelerator, relative to the fastest one."""
    rates: dict[str, dict[str, tuple[float, str, int]]] = {}
    for index, group in enumerate(cases):
        if rated := _rate(group):
            metric, rate = rated
            row = rates.setdefault(
                f"{group.case.workload} {group.case.scenario} {title(metric)}", {}
            )
            if group.case.accelerator not in row or rate > row[group.case.accelerator][0]:
                row[group.case.accelerator] = rate, quantity(metric, rate), index
    rows = [
        {
            "case": index,
            "workload": workload,
            "accelerator": accelerator,
            "share": (share := round(100 * rate / max(row.values())[0], 1)),
            "value": value,
            "text": f"{share:.0f} %",
        }
        for workload, row in sorted(rates.items())
        if len(row) > 1
        for accelerator, (rate, value, index) in row.items()
    ]
    return Figure(
        name="relative",
        title="Throughput by accelerator",
        says="The fastest case of each workload on each accelerator, in % of the fastest of all.",
        rows=rows,
        without="No workload was measured on two accelerators.",
    )


def _rate(group: Grouped) -> tuple[str, float] | None:
    # Elsewhere throughput is the rate that was offered.
    if group.case.scenario != Scenario.OFFLINE:
        return None
    for result in group.results:
        runs = [run for run in result.verdict.runs if not run.invalid]
        for metric in ("tokens_per_second", "throughput"):
            values = [run.metrics[metric] for run in runs if metric in run.metrics]
            if values:
                return metric, sum(values) / len(values)
    return None


def accuracy(cases: Sequence[Grouped]) -> Figure:
    """Return a plot of each score relative to its reference, with the minimum for passing."""
    return Figure(
        name="accuracy",
        title="Accuracy",
        says=(
            "Scores in % of their reference; the mark is the gate. The line is the interval of "
            "the comparison with the accuracy baseline, sample by sample, where there is one."
        ),
        rows=[row for index, group in enumerate(cases) for row in _scores(index, group)],
        without="No accuracy run was compared with a reference score.",
    )


def _scores(index: int, group: Grouped) -> Iterator[Row]:
    for result in group.results:
        verdict = result.verdict
        if verdict.kind != Kind.ACCURACY:
            continue
        paired = {each.metric: each for each in verdict.paired}
        for metric in verdict.metrics:
            if not metric.baseline.value or metric.now is None:
                continue
            cells, pair = cells_of(metric, Kind.ACCURACY), paired.get(metric.metric)
            low, high = _around(metric.baseline.value, pair)
            outcome = metric.outcome if metric.outcome is Outcome.GATE_FAIL else verdict.outcome
            yield {
                "case": index,
                "row": metric.metric,
                "tone": tone(outcome, failed=result.failed and outcome.fails),
                "outcome": str(outcome),
                "share": rounded(100 * metric.now / metric.baseline.value),
                "gate": None if metric.limit is None else rounded(100 * (1 - metric.limit)),
                "low": low,
                "high": high,
                **{name: cells[name] for name in ("now", "reference", "needed")},
                "points": f"{cells_of(pair)['points']} points" if pair else "",
            }


def _around(reference: float, paired: PairedVerdict | None) -> list[float | None]:
    if paired is None or paired.low is None or paired.high is None:
        return [None, None]
    return [rounded(100 * (paired.baseline + end) / reference) for end in (paired.low, paired.high)]


def spread(cases: Sequence[Grouped], files: RunFiles) -> Figure:
    """Return a plot of the standard deviation between runs, in this session and the baseline."""
    return Figure(
        name="spread",
        title="Run-to-run spread",
        says=(
            "Standard deviation of the runs of one build in % of their mean: filled dots are this "
            "session, circles the baseline. The square is the smallest change that the baseline "
            "can prove; a limit (mark) to the left of it cannot be proven."
        ),
        rows=[row for found in _judged(cases) if (row := _variations(*found, files))],
        without="A spread needs two runs of a case, or a baseline with two.",
    )


def _judged(cases: Sequence[Grouped]) -> Iterator[tuple[int, CaseResult, MetricVerdict]]:
    for index, group in enumerate(cases):
        for result in group.results:
            runs = [run for run in result.verdict.runs if not run.invalid]
            for metric in judged_metrics(result):
                if runs and all(metric.metric in run.metrics for run in runs):
                    yield index, result, metric


def _variations(
    index: int, result: CaseResult, metric: MetricVerdict, files: RunFiles
) -> Row | None:
    now = [run.metrics[metric.metric] for run in result.verdict.runs if not run.invalid]
    record = files.records.get(result.test)
    others = record.runs if record else result.verdict.other_runs
    before = [run.metrics.get(metric.metric, 0.0) for run in others]
    shares = {
        "now": _variation(now),
        "before": _variation([value for value in before if value]),
        "detectable": metric.baseline.detectable,
    }
    if all(share is None for share in shares.values()):
        return None
    shares["limit"] = metric.limit
    return {
        "case": index,
        "row": title(metric.metric),
        **{name: None if share is None else per_cent(share) for name, share in shares.items()},
        **{f"{n}_text": "" if share is None else percent(share) for n, share in shares.items()},
    }


def _variation(values: Sequence[float]) -> float | None:
    return stdev(values) / fmean(values) if len(values) > 1 else None


def strip(cases: Sequence[Grouped]) -> Figure:
    """Return a strip plot: a dot for each run of a metric, in this session and the baseline."""
    rows = [
        {"case": index, "row": title(metric.metric), "falls": _falls(metric.metric)}
        for index, result, metric in _judged(cases)
        if any(run.metrics[metric.metric] > 0 for run in result.verdict.runs if not run.invalid)
    ]
    return Figure(
        name="strip",
        title="Every run",
        says=(
            "One dot for each run of this session (filled) and of the baseline, on a logarithmic "
            "axis: right is better, 0.5 is half as fast or twice the time. 1 is the mean of the "
            "baseline, or of these runs if there is no baseline."
        ),
        rows=rows,
        without="No run could be judged.",
        runs=True,
    )


def energy(cases: Sequence[Grouped], files: RunFiles) -> Figure:
    """Return a plot of speed against energy, in this session and the baseline."""
    rows: list[Row] = []
    for index, group in enumerate(cases):
        result = max(group.results, key=lambda each: len(each.verdict.runs))
        record = next(filter(None, (files.records.get(each.test) for each in group.results)), None)
        before = [run.metrics for run in record.runs] if record else []
        rows += _efficiency(index, "baseline", before)
        rows += _efficiency(index, "now", [r.metrics for r in result.verdict.runs if not r.invalid])
    return Figure(
        name="energy",
        title="Speed and energy",
        says=(
            "Speed against the energy per token (per sample if no tokens are counted): GPU board "
            "energy measured by NVML, not MLPerf Power. Up and to the left is better. A dashed "
            "line leads from the baseline to this session."
        ),
        rows=rows,
        without="Energy is known only if NVML sampled the GPUs (mlperf_power).",
    )


def _efficiency(index: int, when: str, runs: Sequence[Mapping[str, float]]) -> Iterator[Row]:
    for units, speed in (("tokens", "tokens_per_second"), ("samples", "throughput")):
        measured = [
            (run[speed], run[f"{units}_per_joule"])
            for run in runs
            if run.get(speed, 0) > 0 and run.get(f"{units}_per_joule", 0) > 0
        ]
        if measured:
            rate = geometric_mean(rate for rate, _ in measured)
            joules = 1 / geometric_mean(per for _, per in measured)
            yield {
                "case": index,
                "row": "",
                "when": when,
                "unit": units,
                "joules": rounded(joules),
                "rate": rounded(rate),
                "rate_text": f"{quantity('', rate)} {units}",
                "joules_text": quantity("", joules),
            }
            return


def cost(cases: Sequence[Grouped]) -> Figure:
    """Return a plot of the cost of a million tokens or samples."""
    rows: list[Row] = []
    for index, group in enumerate(cases):
        result = next((each for each in group.results if each.verdict.cost), None)
        per_usd = result.verdict.cost if result else None
        if result is None or per_usd is None or not 0 < per_usd.value < math.inf:
            continue
        usd = 1e6 / per_usd.value
        price = facts_of(result)["cost"].partition("(")[2].removesuffix(")")
        of = {"case": index, "row": per_usd.of, "of": per_usd.of}
        rows.append({**of, "usd": rounded(usd), "text": quantity("", usd), "price": price})
    return Figure(
        name="cost",
        title="Cost per million tokens or samples",
        says="Computed from the measured rate and the price of a GPU in the suite's [prices].",
        rows=rows,
        without="To see costs, add the price of a GPU to the suite: [prices].",
    )


def duration_plot(cases: Sequence[Grouped], files: RunFiles) -> Figure:
    """Return a plot of how long each case took, by phase (`TIME_PARTS`)."""
    rows: list[Row] = []
    for index, group in enumerate(cases):
        processes = max(
            (files.spent.get(each.test, ()) for each in group.results), key=len, default=()
        )
        sums = {part: math.fsum(each.get(part, 0.0) for each in processes) for part in TIME_PARTS}
        runs = max((result.verdict.runs for result in group.results), key=len)
        if not processes:
            sums["measured"] = math.fsum(run.duration_s for run in runs)
        turns = sum(r.verdict.interleaved.runs for r in group.results if r.verdict.interleaved)
        if own_s := math.fsum(sums[part] for part in TIME_PARTS[:-1]):
            sums["interleaved"] = turns * own_s / len(processes or runs)
        rows += [
            {
                "case": index,
                "row": "",
                "order": order,
                "part": part,
                "seconds": round(seconds, 1),
                "text": duration(seconds),
            }
            for order, (part, seconds) in enumerate(sums.items())
            if seconds > 0
        ]
    parts = "" if files.folder else " Only the measured part is known: the runs' logs are not here."
    return Figure(
        name="spent",
        title="Where the time went",
        says=(
            "The sum over all processes of a case. The time before LoadGen's window that is "
            "neither loading nor warm-up is waiting for the machine and starting. Each interleaved "
            f"run counts with the mean time of the case's own runs.{parts}"
        ),
        rows=rows,
        without="No run was made.",
    )


MAX_LISTED_ENTRIES = 20


def precisions(cases: Sequence[Grouped]) -> Figure:
    """Return a plot of score against speed by precision, relative to the reference precision."""
    places = {group.case: index for index, group in enumerate(cases)}
    points, absent = precision_points(result for group in cases for result in group.results)
    rows = [
        {"case": places[case], "row": "", **point, "speed": rounded(point["speed"])}
        for case, point in points
    ]
    more = f" Not drawn: {'; '.join(absent[:MAX_LISTED_ENTRIES])}." if absent else ""
    return Figure(
        name="precisions",
        title="Speed and accuracy of each precision",
        says=(
            "Right is faster, up is more accurate, both relative to the reference entry of the "
            "same session (fp32, else the widest precision). Bars are confidence intervals, marks "
            "the accuracy gates; crosses failed their accuracy test. The ratios of speed are not "
            f"judged here: use [[pairs]] in a suite to test one.{more}"
        ),
        rows=rows,
        without="This needs score and speed of one workload in two precisions or engines.",
    )
