"""Tables of what was simulated, and what was required of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from decisions_lib import further
from decisions_lib.accuracies import CORRELATION, Row
from decisions_lib.everything import CORRELATIONS, Found
from decisions_lib.performance import DROPS, SWEEP, first
from decisions_lib.promises import Required, counted
from decisions_lib.suites import Sessions
from decisions_lib.tables import Table, percent


def required(found: Found) -> list[Required]:
    """Return the requirements with the figures found."""
    typical = found.ours["typical"].cells
    rows = [
        Required(f"unchanged fails, noise: {name}", own.false_alarms, 0.01)
        for name, own in found.ours.items()
    ]
    rows += [counted(what, count, bad) for what, count, bad in further.broken(found.further)]
    rows += [
        Required("typical noise: a 3 % drop is found", typical[0.03].found, 0.94, at_most=False),
        Required("typical noise: a 3 % drop passes", typical[0.03].passed, 0.02),
        Required("typical noise: runs when nothing changed", typical[0.0].runs, 1.5, share=False),
    ]
    for shape, of in (
        ("every sample a little", found.little),
        ("few outputs broken", found.broken),
    ):
        rows += _accuracy(shape, {row.drop: row for row in of})
    for r in CORRELATIONS:
        nothing, all_ = found.sessions[r, "nothing"], found.sessions[r, "all"]
        name = f"200 cases, correlation {r:g}"
        rows += [
            Required(f"{name}: a false red in a session", nothing.false_red, 0.05),
            Required(f"{name}: dropped cases found", all_.found or 0.0, 0.80, at_most=False),
            Required(f"{name}: dropped pairs found", all_.found_pairs or 0.0, 0.80, at_most=False),
            Required(f"{name}: false share of the red", all_.false_share, 0.05),
        ]
    return rows


def _accuracy(shape: str, by_drop: Mapping[float, Row]) -> list[Required]:
    nothing, quarter, half = by_drop[0.0], by_drop[0.25], by_drop[0.5]
    return [
        Required(f"{shape}: unchanged fails", max(nothing.fail.values()), 0.015),
        Required(f"{shape}: unchanged, plain paired test", nothing.plain, 0.015),
        Required(f"{shape}: margin 0.5, 0.5 points fail", half.fail[0.5], 0.96, at_most=False),
        Required(f"{shape}: margin 0.5, 0.5 points pass", half.passed[0.5], 0.05),
        Required(f"{shape}: margin 0.25, 0.25 points fail", quarter.fail[0.25], 0.94, False),
        Required(f"{shape}: margin 0.25, 0.25 points pass", quarter.passed[0.25], 0.05),
        Required(f"{shape}: 0.25 points, plain paired test", quarter.plain, 0.99, at_most=False),
        Required(f"{shape}: unchanged, samples at margin 0.5", nothing.samples[0.5], 0.12),
    ]


# --- tables ------------------------------------------------------------------------------------


def tables(found: Found) -> dict[str, Table]:
    """Return the tables of the page by name."""
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


def of_required(required: Sequence[Required]) -> Table:
    """Return what was required as a table."""
    rows = []
    for one in required:
        shown, bound = (
            (f"{percent(one.found)} %", f"{percent(one.bound)} %")
            if one.share
            else (f"{one.found:.2f}", f"{one.bound:g}")
        )
        sign = "at most" if one.at_most else "at least"
        rows.append((one.text, f"{sign} {bound}", shown, "yes" if one.met else "**no**"))
    return Table(("what", "required", "found", "met"), rows)


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
