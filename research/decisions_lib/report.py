"""The page, the rows behind it and what is required, but for the promises of speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from decisions_lib import further
from decisions_lib.accuracies import CORRELATION, Row
from decisions_lib.everything import CORRELATIONS, Found
from decisions_lib.performance import DROPS, SWEEP, first
from decisions_lib.promises import FIRST_DAY, MOST_RUNS, NOTICED, RUNS
from decisions_lib.required import FURTHER, Required, one
from decisions_lib.suites import Sessions
from decisions_lib.tables import Prose, Table, percent, span

OTHERS = {
    "pytest-benchmark mean:5%": "pytest-benchmark, 5 %: one run with one",
    "TensorRT-LLM, after merge 5 %": "TensorRT-LLM, 5 %: one run with 30 days",
    "Bencher t-test 0.99": "Bencher, t-test: one run with 10",
    "criterion.rs": "criterion.rs: windows of two runs",
    "Google Benchmark U test": "Google Benchmark, U test: repetitions of two runs",
}
"""Rules of other tools that the page shows, in its words."""


def required(found: Found) -> list[Required]:
    """Return the requirements with the figures found."""
    return [*_speed(found), *further.required(found.further), *_scores(found), *_many(found)]


def _speed(found: Found) -> Iterator[Required]:
    for name, own in found.ours.items():
        same = own.cells[0.0]
        line = "six more noises: unchanged code is warned of"
        yield one(line, f"unchanged fails, noise: {name}", same.found, 0.01, cases=same.cases)
    typical = found.ours["typical"].cells
    fell, same = typical[0.03], typical[0.0]
    text = "typical noise: a 3 % drop is found"
    yield one(FIRST_DAY, text, fell.found, NOTICED, at_most=False, cases=fell.cases)
    text = "typical noise: a 3 % drop passes"
    yield one(FURTHER, text, fell.passed, 0.02, cases=fell.cases)
    text = "typical noise: runs when nothing changed"
    yield one(RUNS, text, same.runs, MOST_RUNS, share=False)


def _scores(found: Found) -> Iterator[Required]:
    for shape, of in (
        ("every sample a little", found.little),
        ("few outputs broken", found.broken),
    ):
        yield from _accuracy(shape, {row.drop: row for row in of})


def _many(found: Found) -> Iterator[Required]:
    drops, share = "200 cases: dropped ones are red", "200 cases: unchanged ones among the red"
    for r in CORRELATIONS:
        nothing, fell = found.sessions[r, "nothing"], found.sessions[r, "all"]
        name, count = f"200 cases, correlation {r:g}", fell.count
        red = f"{name}: a false red in a session"
        yield one(further.FALSE_RED, red, nothing.false_red, 0.05, cases=nothing.count)
        for what, of in (("cases", fell.found), ("pairs", fell.found_pairs)):
            text = f"{name}: dropped {what} found"
            yield one(drops, text, of or 0.0, 0.80, at_most=False, cases=count)
        yield one(share, f"{name}: false share of the red", fell.false_share, 0.05, cases=count)


def _accuracy(shape: str, by_drop: Mapping[float, Row]) -> Iterator[Required]:
    nothing, quarter, half = by_drop[0.0], by_drop[0.25], by_drop[0.5]
    text, cases = f"{shape}: unchanged fails", nothing.passes
    yield one(further.UNCHANGED_FAILS, text, max(nothing.fail.values()), 0.01, cases=cases)
    for margin, row, least in ((0.5, half, 0.96), (0.25, quarter, 0.94)):
        line = "accuracy: a drop of the margin fails"
        text = f"{shape}: margin {margin:g}, {margin:g} points fail"
        yield one(line, text, row.fail[margin], least, at_most=False, cases=cases)
        text = f"{shape}: margin {margin:g}, {margin:g} points pass"
        yield one(further.MARGIN_PASSES, text, row.passed[margin], 0.05, cases=cases)
    text = f"{shape}: unchanged, plain paired test"
    yield one(FURTHER, text, nothing.plain, 0.015, cases=cases)
    text = f"{shape}: 0.25 points, plain paired test"
    yield one(FURTHER, text, quarter.plain, 0.99, at_most=False, cases=cases)
    text = f"{shape}: unchanged, samples at margin 0.5"
    yield one(FURTHER, text, nothing.samples[0.5], 0.12, cases=cases)


# --- the page ------------------------------------------------------------------------------------


def page(found: Found) -> dict[str, Table | Prose]:
    """Return the parts of the page by name."""
    return {
        **further.page(found.further),
        "unlucky": _unlucky(found),
        "accuracy": Prose(f"{_few_accuracies(found).markdown}\n\n{_broken(found)}"),
        "many-cases": _few_sessions(found),
        "others": _few_others(found),
    }


def _unlucky(found: Found) -> Prose:
    return Prose(
        "- *One in a hundred is an average over baselines.* A baseline whose runs happened to be "
        "fast makes more false alarms until you record it again. Five baselines in a hundred have "
        f"{_unluckiest(found)} % or more warnings, if sessions differ by 0.5 %."
    )


def _unluckiest(found: Found) -> str:
    return percent(found.ours["session"].unlucky_baseline)


def _broken(found: Found) -> str:
    by_drop = {row.drop: row for row in found.broken}
    margins = by_drop[0.5].fail[0.5], by_drop[0.25].fail[0.25]
    return (
        f"If few outputs are broken instead, {span(margins)} % of drops of the margin fail. "
        f"{further.of_scores(found.further.rare, found.further.whole)}"
    )


def _few_accuracies(found: Found) -> Table:
    rows = [
        (
            f"{row.drop:g}",
            *(f"{percent(row.fail[m])} / {percent(row.passed[m])}" for m in (0.5, 0.25)),
            percent(row.plain),
            percent(row.trt["ROUGE"]),
        )
        for row in found.little
        if row.drop <= 1
    ]
    head = (
        "points lost",
        "margin 0.5: fails / passes",
        "margin 0.25",
        "plain paired test",
        "TensorRT-LLM's test",
    )
    return Table(head, rows)


def _few_sessions(found: Found) -> Prose:
    nothing, fell, alone = (
        [of for (_, name), of in found.sessions.items() if name == "nothing"],
        [of for (_, name), of in found.sessions.items() if name == "all"],
        found.alone.values(),
    )
    noises = [row.red for row in found.further.many if row.interval is not None and row.red]
    return Prose(
        f"With 200 unchanged cases of 3 metrics, {span(of.false_red for of in nothing)} % of the "
        f"sessions have a red test, and at most {percent(max(noises))} % in 13 more noises. If "
        f"each metric were judged alone, {span(alone)} % would. If 5 cases fall by 3 %, "
        f"{span(of.found or 0.0 for of in fell)} % of them are red on day 1, and "
        f"{span(of.suspected or 0.0 for of in fell)} % of their metrics are SUSPECT. "
        f"{span(of.false_share for of in fell)} % of the red tests are then unchanged. If all 200 "
        f"fall by 3 %, {_all_fell(found)} % are red."
    )


def _all_fell(found: Found) -> str:
    return span(row.found or 0.0 for row in found.further.many if row.name == "200 cases −3 %")


def _few_others(found: Found) -> Table:
    ours, noisy = (found.ours[name] for name in ("typical", "noisy"))
    own = ours.false_alarms, noisy.false_alarms, ours.cells[0.03].found
    words = "**pytest-mlperf**, 3 %: 1 to 5 runs with 8"
    rows = [(words, *map(percent, own), _drop(ours.detected))]
    typical, beside = (found.others[name] for name in ("typical", "noisy"))
    for name, words in OTHERS.items():
        curve = typical[name]
        shares = curve[0], beside[name][0], curve[SWEEP.index(0.03)]
        rows.append((words, *map(percent, shares), _drop(first(curve))))
    head = ("rule", "unchanged, typical", "unchanged, noisy", "-3 %", "95 % from")
    return Table(head, rows)


# --- every row -----------------------------------------------------------------------------------


def tables(found: Found) -> dict[str, Table]:
    """Return every row by the name of its table."""
    return {
        "ours": _ours(found),
        **further.tables(found.further),
        "detectable": _detectable(found),
        "others": _others(found),
        "false alarms": _false_alarms(found),
        "accuracy": _accuracies(found),
        "sessions": _sessions(found),
    }


def _drop(drop: float | None) -> str:
    return f"{100 * drop:g} %" if drop is not None else f"over {100 * SWEEP[-1]:g} %"


def _ours(found: Found) -> Table:
    rows = []
    for name, own in found.ours.items():
        cells = [
            f"{percent(c.found)} / {percent(c.passed)} / {percent(c.inconclusive)}; {c.runs:.2f}"
            for c in (own.cells[drop] for drop in DROPS)
        ]
        last = own.cells[DROPS[-1]]
        rows.append((name, *cells, f"{percent(own.cells[0.0].ok)} / {percent(last.fail)}"))
    head = ("noise", *(_drop(drop) for drop in DROPS), "final: ok at 0 %, drop at 10 %")
    return Table(head, rows)


def _detectable(found: Found) -> Table:
    rows = [
        (
            name,
            _drop(own.detected),
            _drop(own.smallest_limit),
            f"{100 * own.told:.1f} %",
            f"{percent(own.false_alarms)} %",
            f"{percent(own.typical_baseline)} %",
            f"{percent(own.unlucky_baseline)} %",
        )
        for name, own in found.ours.items()
    ]
    head = (
        "noise",
        "found at limit 3 %",
        "smallest limit",
        "told when recorded",
        "false alarms",
        "of the median baseline",
        "of an unlucky one",
    )
    return Table(head, rows)


def _others(found: Found) -> Table:
    ours = found.ours["typical"]
    rows = [
        (
            "**pytest-mlperf**, limit 3 %",
            "1 to 5 runs with 8",
            *(percent(ours.cells[drop].found) for drop in DROPS),
            _drop(ours.detected),
        )
    ]
    for name, curve in found.others["typical"].items():
        shares = (percent(curve[SWEEP.index(drop)]) for drop in DROPS)
        rows.append((name, found.compares[name], *shares, _drop(first(curve))))
    return Table(("rule", "compares", *(_drop(d) for d in DROPS), "found 95 %"), rows)


def _false_alarms(found: Found) -> Table:
    models = list(found.others)
    rows = [
        (
            "**pytest-mlperf**, limit 3 %",
            *(percent(found.ours[model].false_alarms) for model in models),
            *(_drop(found.ours[model].detected) for model in models),
        )
    ]
    for name in found.compares:
        curves = [found.others[model][name] for model in models]
        alarms = (percent(curve[0]) for curve in curves)
        rows.append((name, *alarms, *(_drop(first(curve)) for curve in curves)))
    head = ("rule", *(f"{m}: false" for m in models), *(f"{m}: found" for m in models))
    return Table(head, rows)


def _accuracies(found: Found) -> Table:
    rows = []
    for shape, of in (("every sample", found.little), ("few broken", found.broken)):
        rows += [
            (
                f"{row.drop:g} points, {shape}",
                *(
                    f"{percent(row.fail[m])} / {percent(row.passed[m])}; {percent(row.samples[m])}"
                    for m in (0.5, 0.25)
                ),
                percent(row.plain),
                *(percent(share) for share in row.trt.values()),
            )
            for row in of
        ]
    head = (
        f"drop (r = {CORRELATION:g})",
        "margin 0.5",
        "margin 0.25",
        "plain paired test",
        *(f"TensorRT-LLM, {name}" for name in found.little[0].trt),
    )
    return Table(head, rows)


def _sessions(found: Found) -> Table:
    words = {
        "nothing": "nothing",
        "all": "5 of 200 cases, 3 metrics each",
        "one": "5 of 200 cases, 1 metric each",
    }
    rows = []
    for (r, fell), own in found.sessions.items():
        rows.append((f"{words[fell]}, correlation {r:g}", *_session(own)))
    for r, own in found.few.items():
        rows.append((f"nothing, 6 cases, correlation {r:g}", *_session(own)))
    for r, red in found.alone.items():
        none = ("",) * 6
        rows.append((f"nothing, each pair judged alone, correlation {r:g}", percent(red), *none))
    head = (
        "what fell by 3 %",
        "sessions with a false red",
        "false share of the red",
        "cases found",
        "pairs found",
        "pairs suspect",
        "false suspects per session",
        "runs per case",
    )
    return Table(head, rows)


def _session(own: Sessions) -> tuple[str, ...]:
    return (
        percent(own.false_red),
        percent(own.false_share),
        percent(own.found) if own.found is not None else "",
        percent(own.found_pairs) if own.found_pairs is not None else "",
        percent(own.suspected) if own.suspected is not None else "",
        f"{own.false_suspect:.2f}",
        f"{own.runs:.2f}",
    )
