"""Format a verdict for reports: its tables, cells, notes and facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import geometric_mean

from pytest_mlperf.core.case import Case, Kind
from pytest_mlperf.core.measurement import GpuRun, ReplicaRun, Run, repeat_note
from pytest_mlperf.core.metrics import METRICS, title
from pytest_mlperf.core.numbers import (
    change,
    interval,
    limit,
    percent,
    plural,
    points,
    quantity,
    times,
)
from pytest_mlperf.core.results import CaseResult
from pytest_mlperf.core.roofline import share_reached
from pytest_mlperf.core.roofline.gpu import PerDollar
from pytest_mlperf.core.rulings.ruling import noted_in_headline
from pytest_mlperf.core.server.changes import QUANTITIES, points_of, server_figures
from pytest_mlperf.core.untrusted_text import some
from pytest_mlperf.core.verdict import (
    MetricVerdict,
    Outcome,
    PairedVerdict,
    RatioVerdict,
    Verdict,
)
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.reports.causes import OTHER_FILES, Cause, Strength, shortened
from pytest_mlperf.reports.promises import final_word
from pytest_mlperf.reports.sentences import (
    first_line,
    gate_result,
    machine_speed,
    search_result,
    sentence,
)
from pytest_mlperf.reports.terminal.layout import TextTable, fold


def verdict_tables(verdict: Verdict) -> Iterator[TextTable]:
    """Yield a verdict's tables: of paired scores, of metrics, and of a claimed speed ratio."""
    left = ("side", "metric", "verdict")
    if verdict.paired:
        columns = ("metric", "baseline", "now", "points", "interval", "margin", "verdict")
        rows = [*map(paired_cells, verdict.paired)]
        yield TextTable(rows=rows, left=left, spare=("interval", "baseline"), columns=columns)
    if verdict.metrics and verdict.kind == Kind.ACCURACY:
        rows = [*map(score_cells, verdict.metrics)]
        yield TextTable(rows=rows, left=left, spare=("change",))
    elif verdict.metrics:
        columns = ("metric", "baseline", "now", "change", "interval", "limit", "verdict")
        rows = [metric_cells(metric) for metric in verdict.metrics if _is_shown(metric)]
        yield TextTable(rows=rows, left=left, spare=("interval", "baseline"), columns=columns)
    if verdict.ratio:
        rows = [*_sides(verdict.case, verdict.ratio)]
        yield TextTable(rows=rows, left=left, spare=("verdict", "metric", "interval"))


def replica_table(runs: Sequence[Run]) -> TextTable | None:
    """Return a table of the last run's replicas and their GPUs; None for a single process."""
    if not (runs and runs[-1].replicas):
        return None
    gpus = {gpu.uuid: gpu for gpu in runs[-1].hardware.gpus}
    return TextTable(
        rows=[
            _replica_cells(one, [gpus[uuid] for uuid in one.gpus if uuid in gpus])
            for one in runs[-1].replicas
        ],
        left=("replica",),
        spare=("SM clock", "heat", "power"),
    )


def gpu_table(runs: Sequence[Run]) -> TextTable | None:
    """Return a table of the last run's GPUs; None for a single GPU, or if none was sampled.

    Energy has its uncertainty; NVLink is the traffic sent and received during the run.
    """
    if not (runs and runs[-1].hardware.gpus):
        return None
    rows = [_gpu_cells(gpu) for gpu in runs[-1].hardware.gpus]
    return TextTable(rows=rows, left=("GPU",), spare=("SM clock", "heat"))


def server_table(runs: Sequence[Run]) -> TextTable | None:
    """Return a table of the last run's server metrics; None if there are none.

    Each point of a curve has a row. Values are means over the measured time, gauges also maxima.
    """
    server = runs[-1].serving.server if runs else {}
    if not server:
        return None
    rows = []
    for point in points_of([server]):
        cells = {"server": "" if point is None else f"at {point:,}"}
        for name, value, most in server_figures(server, point):
            cells[name] = f"{value}, {most}" if most else value
        rows.append(cells)
    columns = ("server", *QUANTITIES.values())
    return TextTable(columns=columns, rows=rows, left=("server",))


def all_tables(verdict: Verdict) -> Iterator[TextTable]:
    """Yield the tables of a verdict, then of its last run's replicas, GPUs and server."""
    yield from verdict_tables(verdict)
    for make in (replica_table, gpu_table, server_table):
        if table := make(verdict.runs):
            yield table


def _gpu_cells(gpu: GpuRun) -> dict[str, str]:
    energy = number_text(gpu.joules, "{:,.0f} J".format)
    if gpu.uncertainty_j is not None:
        energy += f" ± {gpu.uncertainty_j:,.0f}"
    links = [gpu.state.get(f"nvlink_{way}") for way in ("sent", "received")]
    return {
        "GPU": gpu.name or gpu.uuid,
        "energy": energy,
        "power": number_text(gpu.mean_w, "{:.0f} W".format),
        "SM clock": number_text(gpu.state.get("sm_mhz"), "{:.0f} MHz".format),
        "heat": number_text(gpu.state.get("temperature_c"), "{:.0f} °C".format),
        "power capped": number_text(gpu.state.get("power_cap_share"), percent),
        "NVLink sent / received": " / ".join(
            f"{rate / 1e9:.3g} GB/s" for rate in links if rate is not None
        ),
    }


def _replica_cells(one: ReplicaRun, gpus: Sequence[GpuRun]) -> dict[str, str]:
    def of(name: str, most: Callable[[list[float]], float]) -> float | None:
        values = [gpu.state[name] for gpu in gpus if name in gpu.state]
        return most(values) if values else None

    watts = [gpu.mean_w for gpu in gpus if gpu.mean_w is not None]
    return {
        "replica": one.name,
        "samples": f"{one.samples:,}",
        "samples/s": quantity("throughput", one.throughput),
        "mean latency": quantity("latency_p50", one.latency_s),
        "of the median": number_text(one.share, percent),
        "power": number_text(sum(watts) if watts else None, "{:.0f} W".format),
        "SM clock": number_text(of("sm_mhz", min), "{:.0f} MHz".format),
        "heat": number_text(of("temperature_c", max), "{:.0f} °C".format),
        "power capped": number_text(of("power_cap_share", max), percent),
    }


def _is_shown(metric: MetricVerdict) -> bool:
    definition = METRICS.get(metric.metric)
    gated = metric.outcome is not None or metric.limit is not None
    return gated or definition is None or definition.shown


def _sides(case: Case, ratio: RatioVerdict) -> Iterator[dict[str, str]]:
    both = f"{case.workload}-{case.scenario}-"
    yield {"side": ratio.a.removeprefix(both), **ratio_cells(ratio)}
    yield {
        "side": ratio.b.removeprefix(both),
        "metric": title(ratio.metric),
        "now": quantity(ratio.metric, ratio.value_b),
    }


def notes_of(verdict: Verdict) -> list[str]:
    """Return the notes of a verdict and of its metrics, without the note in its first line."""
    by_note: dict[str, list[str]] = {}
    for metric in verdict.metrics:
        by_note.setdefault(sentence(metric.note or ""), []).append(title(metric.metric))
    deciding = noted_in_headline(verdict)
    for note in (None, deciding.note if deciding else None):
        by_note.pop(sentence(note or ""), None)
    of_metrics = (f"{name}: {note}" for note, names in by_note.items() for name in names)
    return list(dict.fromkeys([*map(sentence, verdict.notes), *of_metrics]))


def number_text(value: float | None, write: Callable[[float], str] = "{:.3f}".format) -> str:
    """Format a number by `write`; return "" for None."""
    return "" if value is None else write(value)


def span(low: float | None, high: float | None, write: Callable[[float], str]) -> str:
    """Return the interval "LOW to HIGH" in the number format `write`; "" if an end is None."""
    return "" if low is None or high is None else f"{write(low)} to {write(high)}"


def paired_cells(metric: PairedVerdict) -> dict[str, str]:
    """Return the table cells, by column, of a score that was compared sample by sample."""
    size, is_better = points(metric.change)[1:], (metric.change < 0) is metric.lower
    direction = (" better" if is_better else " worse") if float(size) else ""
    return {
        "metric": metric.metric,
        "baseline": number_text(metric.baseline),
        "now": number_text(metric.now),
        "points": points(metric.change),
        "effect": f"{size} points{direction}",
        "interval": span(metric.low, metric.high, points),
        "margin": number_text(metric.bound, points),
        "verdict": str(metric.outcome or "reported"),
    }


def ratio_cells(ratio: RatioVerdict) -> dict[str, str]:
    """Return the table cells, by column, of a claimed ratio of two engine entries."""
    return {
        "metric": title(ratio.metric),
        "now": quantity(ratio.metric, ratio.value_a),
        "ratio": times(ratio.ratio),
        "interval": span(ratio.low, ratio.high, times),
        "claim": f">= {ratio.least:g}x",
        "verdict": str(ratio.outcome),
    }


def score_cells(metric: MetricVerdict) -> dict[str, str]:
    """Return the table cells, by column, of a score that was compared with its gate."""
    gated = metric.baseline.value is not None and metric.limit is not None
    return {
        "metric": metric.metric,
        "reference": number_text(metric.baseline.value),
        "needed": number_text(
            (metric.baseline.value or 0) * (1 - (metric.limit or 0)) if gated else None
        ),
        "now": number_text(metric.now),
        "change": number_text(metric.change, change),
        "verdict": str(metric.outcome or "reported"),
    }


def metric_cells(metric: MetricVerdict) -> dict[str, str]:
    """Return the table cells of a performance metric, by column."""
    bounds = metric.low is not None and metric.high is not None
    of_metric = partial(quantity, metric.metric)
    return {
        "metric": title(metric.metric),
        "baseline": number_text(metric.baseline.value, of_metric),
        "now": number_text(metric.now, of_metric),
        "change": number_text(metric.change, change),
        "interval": interval(metric.low or 0.0, metric.high or 0.0) if bounds else "",
        "limit": number_text(metric.limit, partial(limit, metric.metric)),
        "verdict": metric.word,
        "effect": number_text(metric.change, partial(effect, metric.metric)),
        "outcome": str(metric.outcome or ""),
    }


MIN_TIMES = 1.5
"""Ratios from this on are written as "4.41x slower", smaller changes in per cent."""


def effect(metric: str, share: float) -> str:
    """Return a relative change in words: "4.41x slower", "6.3 % faster", "2.0 % worse".

    Rates and times are slower or faster, other metrics worse or better. A rate that falls to a
    half is "2.00x slower".
    """
    definition, ratio = METRICS.get(metric), 1 + share
    if definition is None or definition.direction is Direction.NEITHER or not 0 < ratio < math.inf:
        return change(share)
    factor, percents = max(ratio, 1 / ratio), change(abs(share))[1:]
    if float(percents.split()[0]) == 0:
        return percents
    worse, better = ("slower", "faster") if definition.unit in {"s", "1/s"} else ("worse", "better")
    word = worse if (ratio > 1) is definition.falls else better
    return f"{times(factor) if factor >= MIN_TIMES else percents} {word}"


def cells_of(
    metric: MetricVerdict | PairedVerdict, kind: Kind = Kind.PERFORMANCE
) -> dict[str, str]:
    """Return the table cells, by column, of a metric in a test of this kind."""
    if isinstance(metric, PairedVerdict):
        return paired_cells(metric)
    return score_cells(metric) if kind == Kind.ACCURACY else metric_cells(metric)


def rows(result: CaseResult) -> Iterator[dict[str, str]]:
    """Yield one row of cells per gated metric, at least one per test.

    The first row has the kind of the test, and for an accuracy test the result of the gate. The row
    whose outcome failed the test has "yes" in the column "failed".
    """
    verdict = result.verdict
    answer = gate_result(verdict.gate) if verdict.kind == Kind.ACCURACY and verdict.gate else ""
    word = str(verdict.outcome)
    for place, row in enumerate(_rows(verdict)):
        first = {"gate": answer} if answer and not place else {}
        is_it = (row.get("outcome") or row["verdict"]) == word
        failed = {"failed": "yes"} if result.failed and is_it else {}
        yield {"test": "" if place else str(verdict.kind), **row, **first, **failed}


def _rows(verdict: Verdict) -> Iterator[dict[str, str]]:
    if verdict.paired:
        yield from _paired_rows(verdict)
        return
    if verdict.ratio:
        cells = ratio_cells(verdict.ratio)
        yield {**cells, "vs base": cells["ratio"], "limit": cells["claim"]}
        return
    named = [m for m in verdict.metrics if m.outcome is not None or m.limit is not None]
    gated = named or list(verdict.metrics)[:1]
    # A limit missed in LoadGen's sense, say, is the word of the test and of none of its metrics.
    whole = verdict.outcome not in {metric.outcome for metric in verdict.metrics}
    word = str(verdict.outcome)
    if not gated:
        yield {"verdict": word}
    for metric in gated:
        cells = metric_cells(metric)
        spoken, outcome = word, word
        if not whole:
            spoken, outcome = metric.word, str(metric.outcome or "")
        if verdict.kind == Kind.ACCURACY:
            scores = score_cells(metric)
            reference = f"ref {scores['reference']}" if scores["reference"] else ""
            cells |= {"now": scores["now"], "change": reference}
        yield {**cells, "verdict": spoken, "outcome": outcome, "vs base": cells["change"]}
        word = ""


def _paired_rows(verdict: Verdict) -> Iterator[dict[str, str]]:
    for gate in verdict.metrics:
        if gate.outcome is Outcome.GATE_FAIL:
            cells = score_cells(gate)
            shown = {name: cells[name] for name in ("verdict", "metric", "now")}
            yield {**shown, "vs base": f"gate {cells['needed']}"}
    for metric in verdict.paired:
        if metric.outcome is not None:
            cells = paired_cells(metric)
            shown = {name: cells[name] for name in ("verdict", "metric", "now", "interval")}
            yield {**shown, "vs base": cells["points"], "limit": cells["margin"]}


MACHINE = "machine."
"""Prefix of the machine's properties in "what changed"."""

MAX_LISTED_CHANGES = 4


def setup_rows(result: CaseResult) -> dict[str, str]:
    """Return table rows (text by label): open-division techniques, and the engine's own Python."""
    rows = {}
    if result.division == "open":
        rows["division"] = ": ".join(filter(None, ("open division", ", ".join(result.techniques))))
    if result.elsewhere:
        subject = result.verdict.subject
        version = subject.fingerprint.get("python") if subject else None
        rows["engine"] = f"runs in {result.elsewhere}" + (f" ({version})" if version else "")
    return rows


def facts_of(result: CaseResult) -> dict[str, str]:
    """Return the facts about a test as text by label; of several rate searches, only the last."""
    verdict = result.verdict
    judged = next((m for m in verdict.metrics if m.baseline.runs and m.outcome), None)
    scored = verdict.accuracy if verdict.kind == Kind.ACCURACY else None
    of = f" of {scored.total:,}" if scored and scored.total else ""
    facts = {
        **setup_rows(result),
        "search": next(iter(searched(verdict)[-1:]), None),
        "invalid": invalid_runs(verdict),
        "physics": roofline_text(verdict),
        "cost": cost(verdict),
        "runs": judged and f"{judged.runs} now, {judged.baseline.runs} in the baseline",
        "to settle it": final_word(verdict),
        "samples": scored and f"{scored.samples:,}{of}, {scored.source}",
        "answers": scored and scored.answers_in_words,
        "gate": gate_result(verdict.gate)
        if verdict.gate and verdict.kind == Kind.ACCURACY
        else None,
        "baseline": verdict.baseline.source,
        "baseline file": verdict.baseline.file,
        "machine": machine_speed_text(verdict),
        "files": verdict.logs.folder,
        "log": verdict.logs.file,
    }
    added = {
        f"{title} (add-on)" if title in facts else title: fact
        for title, fact in result.facts.items()
    }
    return {name: text for name, text in {**facts, **added}.items() if text}


def gate(verdict: Verdict) -> str | None:
    """Return a sentence on the accuracy gate and its number of samples; None without a gate."""
    return sentence(verdict.gate.note) if verdict.kind == Kind.ACCURACY and verdict.gate else None


def with_gate(verdict: Verdict) -> str:
    """Return the first line of a verdict, the gate's result, and advice if it is provisional."""
    words, gate_words = first_line(verdict), gate(verdict)
    repeats = gate_words is None or gate_words in words or verdict.outcome is Outcome.GATE_FAIL
    if missing := final_word(verdict):
        words = f"{words}; {missing}"
    return words if repeats else f"{words}; {gate_words}"


def roofline_text(verdict: Verdict) -> str | None:
    """Return how much of the roofline the runs reached, or why it is unknown; None without runs."""
    lights = [run.light[0] for run in verdict.runs if run.light]
    if verdict.ratio or not lights:
        return None
    last = lights[-1]
    most = last.estimated if last.estimated is not None else last.certain
    shares = [each.share for each in lights if each.share]
    if most is None or not shares:
        return sentence(last.says)
    share = geometric_mean(shares)  # as the value beside it is that of all runs
    text = sentence(share_reached(share, last.binds, estimated=last.estimated is not None))
    least = METRICS[last.metric].unit == "s"
    bound = f"{'at least' if least else 'at most'} {quantity(last.metric, most)}"
    return f"{METRICS[last.metric].title}: {text}; {bound}"


def cost(verdict: Verdict) -> str | None:
    """Return "19.88 M samples/USD (8 GPUs at 3.29 USD an hour, DATE)"; None without a price."""
    per_usd = verdict.cost
    if per_usd is None:
        return None
    value = f"{per_usd.value / 1e6:.4g} M" if per_usd.value >= 1e6 else quantity("", per_usd.value)
    return f"{value} {per_usd.of}/USD ({price_of(per_usd, verdict.case)})"


def price_of(cost: PerDollar, case: Case) -> str:
    """Return the price of the hardware: "8 GPUs at 3.29 USD an hour, 2026-11-01"."""
    paid = "the machine" if case.accelerator == "cpu" else plural(cost.gpus, "GPU")
    price = cost.price
    source = f", {price.source}" if price.source else ""
    return f"{paid} at {price.usd_per_gpu_hour:g} USD an hour, {price.as_of}{source}"


def invalid_runs(verdict: Verdict) -> str | None:
    """Return how many INVALID runs were repeated, with the reasons; None if there are none."""
    again = verdict.measured_again
    keys = {reason.key for reason in verdict.reasons}
    if again and all(reason.key in keys for run in again for reason in run.invalid):
        return f"{plural(len(again), 'earlier run')} also INVALID for the same reason"
    note = repeat_note(again)
    return sentence(note) if note else None


def machine_speed_text(verdict: Verdict) -> str | None:
    """Return the speed change by the machine's micro-benchmark as text; None if it was not run."""
    if not verdict.machine:
        return None
    off = "" if verdict.steady else ", beyond chance"
    return f"fixed micro-benchmark{off}: {machine_speed(verdict.machine)}"


def changed(verdict: Verdict, *, apart: bool = False) -> str | None:
    """Return what changed since the baseline as text, machine first; None if nothing did.

    Changed files that the run did not load are omitted.

    Args:
        apart: Name the kind of baseline, because accuracy and performance may have different
            changes.
    """
    lines = [text for text in verdict.baseline.changed if text.split(" ", 1)[0] != OTHER_FILES]
    texts = sorted(map(shortened, lines), key=lambda text: not text.startswith(MACHINE))
    whose = f"{verdict.kind} baseline" if apart else "baseline"
    return f"{some(texts, MAX_LISTED_CHANGES)} since the {whose}" if texts else None


def searched(verdict: Verdict) -> list[str]:
    """Return the result and the precision of each search for the highest rate, as text."""
    return [search_result(run.search) for run in verdict.runs if run.search]


def extra_facts(result: CaseResult) -> list[str]:
    """Return the facts of a test that reports list below its table, such as search and cost."""
    facts = facts_of(result)
    added = [f"{title}: {fact}" for title, fact in result.facts.items()]
    first, last = (
        [facts.get(n) for n in ns] for ns in (("search", "physics"), ("cost", "invalid"))
    )
    return [text for text in (*first, *added, *last) if text]


def strongest_cause(causes: Sequence[Cause]) -> tuple[list[str], list[str]]:
    """Return [the strongest cause's text, or that none was found], and the texts of the others."""
    says = [cause.says for cause in causes]
    first = -1 if causes and causes[-1].strength is Strength.NONE else 0
    return says[first:][:1], says[:first] if first else says[1:]


def unexplained(changed: Sequence[str], causes: Sequence[Cause]) -> list[str]:
    """Return the recorded changes since the baseline that no cause mentions."""
    named = {text for cause in causes for text in cause.named}
    return [text for text in changed if text not in named]


def cause_lines(causes: Sequence[Cause], other_tests: int, width: int) -> list[str]:
    """Format likely causes under a heading with the number of tests compared; [] if no cause."""
    if not causes:
        return []
    beside = f", compared with {other_tests} other tests" if other_tests > 1 else ""
    lines = [
        line for text in _numbered(causes) for line in fold(text, width, first="  ", rest="    ")
    ]
    return [f"Likely causes, each with its evidence{beside}", *lines]


def _numbered(listed: Sequence[Cause]) -> list[str]:
    causes = [cause.says for cause in listed if cause.strength is not Strength.NONE]
    rest = [cause.says for cause in listed if cause.strength is Strength.NONE]
    if len(causes) < 2:
        return causes + rest
    return [f"{number}. {says}" for number, says in enumerate(causes, start=1)] + rest
