"""Figures about the whole session: what changed, where, and how accurate it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_mlperf.core.metrics import METRICS, Direction
from pytest_mlperf.core.numbers import change, points, quantity
from pytest_mlperf.core.verdict import MetricVerdict, Outcome, PairedVerdict, Verdict
from pytest_mlperf.reports.cells import metric_cells, paired_cells, score_cells, title
from pytest_mlperf.reports.html.model import TONES, Cell, Figure, Grouped, per_cent, rounded, tone
from pytest_mlperf.reports.html.specs import ACCURACY, CHANGES, FOREST, RELATIVE

_TITLES = {metric.title for metric in METRICS.values()}

_FOREST = (
    *("case", "row", "tone", "outcome", "better", "low", "high", "limit"),
    *("change", "interval", "allowed"),
)

_ACCURACY = (
    *("case", "row", "tone", "outcome", "share", "gate", "low", "high"),
    *("now", "reference", "needed", "points"),
)


def forest(cases: Sequence[Grouped]) -> Figure:
    """Return every change with its interval beside what is tolerated."""
    found = [row for place, one in enumerate(cases) for row in _changes(place, one)]
    order: Sequence[str] = TONES
    found.sort(key=lambda row: (order.index(str(row[2])), _used(row)))
    return Figure(
        name="forest",
        title="Changes against the baseline",
        says=(
            "Each line is the interval of a change, better to the right whatever the metric's "
            "direction; the shaded band is what the limit tolerates, the mark at its end the "
            "limit. Diamonds failed, triangles are undecided, circles are fine. Lines that reach "
            "the edge go on."
        ),
        fields=_FOREST,
        rows=found,
        columns=(
            ("case", "case"),
            ("row", "metric"),
            ("outcome", "verdict"),
            ("change", "change"),
            ("interval", "interval"),
            ("allowed", "limit"),
        ),
        spec=FOREST,
        without="No test has a baseline to be compared with: record one (--mlperf-update=missing).",
        open=True,
    )


def _changes(place: int, one: Grouped) -> Iterator[tuple[Cell, ...]]:
    for result in one.results:
        verdict = result.verdict
        if verdict.kind in {"performance", "efficiency"}:
            for metric in verdict.metrics:
                if metric.change is not None and metric.outcome is not None:
                    yield _change(place, metric, _whole(verdict, metric), failed=result.failed)
        for paired in verdict.paired:
            if paired.outcome is not None and paired.baseline:
                yield _paired_change(place, paired, failed=result.failed)


def _whole(verdict: Verdict, metric: MetricVerdict) -> Outcome | None:
    """Return a metric's word: the test's, where that is none of its metrics'."""
    own = {each.outcome for each in verdict.metrics}
    return metric.outcome if verdict.outcome in own else verdict.outcome


def _change(
    place: int, metric: MetricVerdict, outcome: Outcome | None, *, failed: bool
) -> tuple[Cell, ...]:
    known = METRICS.get(metric.metric)
    falls = known is not None and known.direction is Direction.LOWER
    cells = metric_cells(metric)
    ends = [_signed(end, falls=falls) for end in (metric.low, metric.high)]
    return (
        place,
        title(metric.metric),
        tone(outcome, failed=failed and outcome is not None and outcome.fails),
        str(outcome),
        _signed(metric.change, falls=falls),
        *(reversed(ends) if falls else ends),
        None if metric.limit is None else -per_cent(metric.limit),
        cells["change"],
        cells["interval"],
        cells["limit"],
    )


def _paired_change(place: int, paired: PairedVerdict, *, failed: bool) -> tuple[Cell, ...]:
    """Return a score's change in per cent of the baseline's; the table has its points."""
    base, cells = abs(paired.baseline), paired_cells(paired)
    ends = [
        None if end is None else _signed(end / base, falls=paired.lower)
        for end in (paired.low, paired.high)
    ]
    fails = failed and paired.outcome is not None and paired.outcome.fails
    return (
        place,
        paired.metric,
        tone(paired.outcome, failed=fails),
        cells["verdict"],
        _signed(paired.change / base, falls=paired.lower),
        *(reversed(ends) if paired.lower else ends),
        None if paired.margin is None else -per_cent(paired.margin / base),
        f"{cells['points']} points",
        cells["interval"],
        cells["margin"],
    )


def _signed(share: float | None, *, falls: bool) -> float | None:
    """Return a change in per cent with the sign of better, where less is better or more is."""
    if share is None:
        return None
    return per_cent(-share if falls else share) + 0.0


# --- workload x accelerator ------------------------------------------------------------------


def heat_map(cases: Sequence[Grouped]) -> Figure:
    """Return the worst change of each workload on each accelerator."""
    best: dict[tuple[str, str], tuple[Cell, ...]] = {}
    for place, one in enumerate(cases):
        where = (f"{one.case.workload} {one.case.scenario}", one.case.accelerator)
        row = _cell(place, one, *where)
        kept = best.get(where)
        if kept is None or _badness(row) < _badness(kept):
            best[where] = row
    rows = sorted(best.values(), key=lambda row: (str(row[1]), str(row[2])))
    return Figure(
        name="heat",
        title="Workload × accelerator",
        says=(
            "The change in speed or energy of each workload on each accelerator that is worst for "
            "its limit, or what failed; better is counted upwards. Colours are full from the limit "
            "on; where nothing was compared the verdict stands instead."
        ),
        fields=("case", "workload", "accelerator", "outcome", "used", "text", "worst", "allowed"),
        rows=rows,
        columns=(
            ("workload", "workload"),
            ("accelerator", "accelerator"),
            ("outcome", "verdict"),
            ("worst", "worst change"),
            ("allowed", "limit"),
            ("case", "case"),
        ),
        spec=CHANGES,
        without="Nothing was judged.",
        open=True,
    )


def _cell(place: int, one: Grouped, workload: str, accelerator: str) -> tuple[Cell, ...]:
    found = [row for row in _changes(place, one) if isinstance(row[4], float)]
    outcome = str(one.worst.verdict.outcome)
    speed = [row for row in found if str(row[1]) in _TITLES]
    judged = [row for row in found if row[2] == "fail"] or speed
    if not judged:
        return place, workload, accelerator, outcome, None, outcome, "", ""
    worst = min(judged, key=_used)
    share = worst[4]
    assert isinstance(share, float)
    text = change(share / 100) + (f" {outcome}" if one.tone == "fail" else "")
    used = round(max(-1.0, min(_used(worst), 1.0)), 2)
    return place, workload, accelerator, outcome, used, text, f"{worst[1]} {worst[8]}", worst[10]


def _used(row: Sequence[Cell]) -> float:
    """Return a change as a share of its limit, negative where it is worse."""
    share, limit = row[4], row[7]
    assert isinstance(share, float)
    return share / abs(limit) if isinstance(limit, float) and limit else share / 100


def _badness(row: Sequence[Cell]) -> float:
    return row[4] if isinstance(row[4], float) else 0.0


def relative(cases: Sequence[Grouped]) -> Figure:
    """Return how fast each workload is on each accelerator, beside the fastest."""
    rates: dict[str, dict[str, tuple[float, str, int]]] = {}
    for place, one in enumerate(cases):
        if found := _rate(one):
            metric, rate = found
            row = rates.setdefault(f"{one.case.workload} {one.case.scenario} {title(metric)}", {})
            kept = row.get(one.case.accelerator)
            if kept is None or rate > kept[0]:
                row[one.case.accelerator] = rate, quantity(metric, rate), place
    rows = [
        (place, workload, accelerator, round(100 * rate / max(r for r, _, _ in row.values()), 1), t)
        for workload, row in sorted(rates.items())
        if len(row) > 1
        for accelerator, (rate, t, place) in row.items()
    ]
    return Figure(
        name="relative",
        title="Throughput by accelerator",
        says="The fastest case of each workload on each accelerator, in % of the fastest of all.",
        fields=("case", "workload", "accelerator", "share", "value", "text"),
        rows=[(*row, f"{row[3]:.0f} %") for row in rows],
        columns=(
            ("workload", "workload"),
            ("accelerator", "accelerator"),
            ("value", "throughput"),
            ("text", "of the fastest"),
            ("case", "case"),
        ),
        spec=RELATIVE,
        without="No workload was measured on two accelerators.",
    )


def _rate(one: Grouped) -> tuple[str, float] | None:
    if one.case.scenario != "Offline":  # elsewhere throughput is the rate that was offered
        return None
    for result in one.results:
        runs = [run for run in result.verdict.runs if not run.invalid]
        for metric in ("tokens_per_second", "throughput"):
            values = [run.metrics[metric] for run in runs if metric in run.metrics]
            if values:
                return metric, sum(values) / len(values)
    return None


# --- accuracy --------------------------------------------------------------------------------


def accuracy(cases: Sequence[Grouped]) -> Figure:
    """Return every score beside its reference and what the gate asks for."""
    rows = [row for place, one in enumerate(cases) for row in _scores(place, one)]
    return Figure(
        name="accuracy",
        title="Accuracy",
        says=(
            "Scores in % of their reference; the mark is the gate. The line is the interval of "
            "the comparison with the accuracy baseline, sample by sample, where there is one."
        ),
        fields=_ACCURACY,
        rows=rows,
        columns=(
            ("case", "case"),
            ("row", "metric"),
            ("outcome", "verdict"),
            ("now", "score"),
            ("reference", "reference"),
            ("needed", "needed"),
            ("points", "against the accuracy baseline"),
        ),
        spec=ACCURACY,
        without="No accuracy pass was held against a reference score.",
    )


def _scores(place: int, one: Grouped) -> Iterator[tuple[Cell, ...]]:
    for result in one.results:
        verdict = result.verdict
        if verdict.kind != "accuracy":
            continue
        paired = {each.metric: each for each in verdict.paired}
        for metric in verdict.metrics:
            if not metric.baseline or metric.now is None:
                continue
            cells, beside = score_cells(metric), paired.get(metric.metric)
            low, high = _around(metric.baseline, beside)
            outcome = metric.outcome if metric.outcome is Outcome.GATE_FAIL else verdict.outcome
            yield (
                place,
                metric.metric,
                tone(outcome, failed=result.failed and outcome.fails),
                str(outcome),
                rounded(100 * metric.now / metric.baseline),
                None if metric.limit is None else rounded(100 * (1 - metric.limit)),
                low,
                high,
                cells["now"],
                cells["reference"],
                cells["needed"],
                f"{points(beside.change)} points" if beside else "",
            )


def _around(
    reference: float, paired: PairedVerdict | None
) -> tuple[float | int | None, float | int | None]:
    """Return the interval of a score in % of its reference."""
    if paired is None or paired.low is None or paired.high is None:
        return None, None
    low, high = (
        rounded(100 * (paired.baseline + end) / reference) for end in (paired.low, paired.high)
    )
    return low, high
