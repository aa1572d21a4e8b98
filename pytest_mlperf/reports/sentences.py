"""Format notes as sentences: a template for each note key, filled with the note's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from pytest_mlperf.core.contention import NOT_MEASURED
from pytest_mlperf.core.metrics import (
    DRAFT_ACCEPTANCE,
    DRAFT_LENGTH,
    METRICS,
    PREFIX_HIT_SHARE,
    title,
)
from pytest_mlperf.core.notes import Note, NoteKey, Words
from pytest_mlperf.core.numbers import change, interval, limit, percent, plural, points, quantity
from pytest_mlperf.core.verdict import Gate, GateState, Outcome, Unchecked, Verdict
from pytest_mlperf.judge.inputs import Direction

BUFFERED = "answers came in one read, or in few, as through a proxy that buffers"

_ZERO = {
    "goodput": "no request met its limits",
    DRAFT_ACCEPTANCE: "no drafted token was accepted",
    DRAFT_LENGTH: "nothing was drafted",
    PREFIX_HIT_SHARE: "no token of a prompt was in the cache",
}
_UNCHECKED = {
    Unchecked.DUMMY: "accuracy not evaluated (dummy weights)",
    Unchecked.SCORER_BROKE: "accuracy not checked: the scorer failed",
    Unchecked.NOT_CHECKED: "accuracy not checked",
}


def first_line(verdict: Verdict) -> str:
    """Return the outcome and headline of a verdict."""
    return f"{verdict.outcome} {sentence(verdict.headline)}"


def unchecked(state: Unchecked) -> str:
    """Return why accuracy was not checked."""
    return _UNCHECKED[state]


def runs_named(numbers: Sequence[int], of: int) -> str:
    """Return run numbers as text: "run 2 of 3", "runs 2 and 3 of 5", "every run"."""
    if len(numbers) == of:
        return "every run"
    *first, last = map(str, numbers)
    listing = f"{', '.join(first)} and {last}" if first else last
    return f"run{'s' if first else ''} {listing} of {of}"


def _bounds(low: float, high: float, write: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys((write(low), write(high))))


def _metric(of: Mapping[str, Any]) -> str:
    """Return the headline of a metric: change, interval and the reason for its outcome."""
    metric, note = of["metric"], sentence(of["note"] or "")
    subject = title(metric)
    if of.get("condition"):
        least = "at least " if of["at_least"] else ""
        subject = f"{least}{quantity(metric, of['now'])} {subject} at {of['condition']}"
    if of["change"] is None:
        return f"{subject}: {note or 'no record of this machine'}"
    bound = limit(metric, of["limit"])
    if of["outcome"] in {Outcome.OK, Outcome.IMPROVED}:
        reason = f"inside {bound}"
    elif of["outcome"] == Outcome.PROVISIONAL:
        reason = f"{of['direction']} {note}"
    elif of["outcome"] == Outcome.INCONCLUSIVE:
        reason = note or f"{bound} undecided"
    else:
        higher = METRICS[metric].direction is Direction.HIGHER
        beyond = of["high"] < -of["limit"] if higher else of["low"] > of["limit"]
        reason = note or f"{bound} {'exceeded' if beyond else 'not excluded'}"
    return f"{subject} {change(of['change'])} ({interval(of['low'], of['high'])}); {reason}"


def _other_count(of: Mapping[str, Any]) -> str:
    way = "less" if of["value"] < of["low"] else "more"
    baseline = _bounds(of["low"], of["high"], "{:.7g}".format)
    return f"{of['value']:.7g} {title(of['metric'])}, {way} than in the baseline ({baseline})"


def _cached(against: str) -> Callable[[Mapping[str, Any]], str]:
    def write(of: Mapping[str, Any]) -> str:
        at = "" if of["point"] is None else f"at {of['point']:,.10g}: "
        ours, theirs = (_bounds(low, high, percent) for low, high in (of["now"], of["other"]))
        return f"{at}{ours} of the prompts' tokens were in the server's cache, {theirs} {against}"

    return write


def _missing(of: Mapping[str, Any]) -> str:
    runs = of["runs"]
    where = "" if len(runs) == of["of"] else f" in {runs_named(runs, of['of'])}"
    return f"not measured{where}{f': {BUFFERED}' if of['buffered'] else ''}"


def _zero(of: Mapping[str, Any]) -> str:
    metric, baseline = of["metric"], of.get("baseline")
    text = f"{_ZERO[metric.partition('@')[0]]} in {of['count']} of {plural(of['of'], 'run')}"
    if baseline is None:
        return text
    unit = "/s" if METRICS[metric].unit == "1/s" else ""
    return f"{text}; {quantity(metric, baseline)}{unit} in the baseline"


def _which(of: Mapping[str, Any]) -> str:
    return "the only drop" if of["drops"] == 1 else f"one of {of['drops']} drops"


def _sessions_unknown(of: Mapping[str, Any]) -> str:
    heads = {"ok": "probably ok: ", "drop": "probably a regression: ", None: ""}
    return (
        f"{heads[of['direction']]}{of['sessions']} sessions do not show the day-to-day variation; "
        f"record {of['more']} more on other days to be sure"
    )


def _gate(of: Mapping[str, Any]) -> str:
    if of["state"] == GateState.NONE:
        return "gate: no reference score is known"
    part = f" of {of['total']:,}" if of["samples"] < of["total"] else ""
    lacks = f", without {', '.join(of['unscored'])}" if of["unscored"] else ""
    return f"{of['state']} on {of['samples']:,}{part} samples{lacks}"


def _gate_score(of: Mapping[str, Any]) -> str:
    score, bound, missed, digits = of["score"], of["bound"], of["missed"], 3
    signs = {(False, False): "≥", (False, True): "≤", (True, False): "<", (True, True): ">"}
    if missed:  # enough digits to show the miss
        digits = next((d for d in range(3, 12) if f"{score:.{d}f}" != f"{bound:.{d}f}"), 12)
    return (
        f"{of['metric']} {score:.{digits}f} {signs[missed, of['upper']]} {bound:.{digits}f}, "
        f"{of['share'] * 100:.4g} % of {of['whose']} reference"
    )


def _score_change(of: Mapping[str, Any]) -> str:
    text, bound = f"{of['metric']} {points(of['change'])} points", points(of["bound"])
    if of["low"] is not None and of["high"] is not None:
        text += f" ({points(of['low'])} to {points(of['high'])})"
    if of["outcome"] == Outcome.OK:
        return f"{text}; inside {bound}"
    if of["outcome"] == Outcome.ACC_DROP:
        return f"{text}; {bound} {'exceeded' if of['beyond'] else 'not excluded'}"
    return f"{text}; {bound} undecided"


def _most(of: Mapping[str, Any]) -> str:
    return f"max_new_tokens = {of['limit']}" if of["limit"] else "their most tokens"


def _reasoning(of: Mapping[str, Any]) -> str:
    cut = of["reasoning"]
    some = "" if cut == of["count"] else f"{cut:,} "
    return f": {some}cut at {_most(of)} while reasoning" if cut else ""


def _risen(of: Mapping[str, Any]) -> str:
    return f"{of['count']:,} of {of['of']:,} answers"


def _in_baseline(of: Mapping[str, Any]) -> str:
    return f", {of['baseline']:,} of {of['baseline_of']:,} in the baseline"


def gate_result(gate: Gate) -> str:
    """Return the result of a gate after a label: "kept on 50,000 samples"."""
    return (
        "none: no reference score is known"
        if gate.state is GateState.NONE
        else _gate(gate.note.values)
    )


_SENTENCES: Mapping[NoteKey, str | Callable[[Mapping[str, Any]], str]] = {
    "metric": _metric,
    "nothing_gated": "no metric is gated",
    "unchecked": lambda of: _UNCHECKED[Unchecked(of["state"])],
    "with_unchecked": "{headline}, {note}",
    "of_case": "{case}: {note}",
    "accuracy_of_failed": "not judged: accuracy of {case} failed, {outcome} {headline}",
    "not_grown": "no session added to the baseline ({days} of {needed} days): {note}",
    "until": "{outcome} {headline}; until {until}: {reason}",
    "unexpected": "remove the expected failure ({reason}): {headline}",
    "not_judged": "not judged: {outcome} {headline}",
    "accuracy_failed": "not judged: accuracy failed, {outcome} {headline}",
    "against_baseline": "against the baseline: {outcome} {headline}",
    "against_stored": "against the stored baseline: {outcome} {headline}",
    "beside_baseline": "against its baseline: {outcome} {headline}",
    "alone": "against the baseline alone: {outcome} {headline}",
    "alone_recorded": "recorded anyway, do not commit it: {outcome} {headline}",
    "compared_before": lambda of: (
        f"compared{_by(of)} before it was added: {of['outcome']} {sentence(of['headline'])}"
    ),
    "not_recorded": "nothing recorded: {note}",
    "no_metric": "not in the baseline",
    "no_metric_in_a": "not in A",
    "if_sessions": "if day-to-day variation < {robust_to:percent}",
    "advisory": "advisory: {runs} of {needed} baseline runs",
    "drop_whatever": "a drop, whatever the verdicts on the other {others:,} pairs, p={p:.1g}",
    "load_explains": (
        "load may have cost up to {now:percent} now and {before:percent} in the baseline: measure "
        "on an idle machine, or interleaved"
    ),
    "load_explains_sides": (
        "load may have cost B up to {now:percent} and A {before:percent}: measure on an idle "
        "machine, or interleaved"
    ),
    "in_some_runs": "in {count} of {of:plural run}",
    "other_count": _other_count,
    "other_cached": _cached("in the baseline"),
    "cached_unevenly": _cached("in the first run"),
    "missing": _missing,
    "zero": _zero,
    "few_queries": "under {needed:,} queries a run, only reported",
    "fewer_queries": lambda of: (
        f"{of['count']:,} of {of['needed']:,} queries a run"
        + ("" if of["baseline"] is None else f" ({of['baseline']:,} in the baseline)")
    ),
    "of_metric": "{metric:title}: {note}",
    "not_gated": f"{{metrics:titles}}: not gated, {BUFFERED}",
    "only_reported": "{metric:title} is only reported: a gate needs {needed:,} queries a run",
    "in_part": (
        "{metric:title}: {count} of {of:plural run} of the baseline have it; only these are "
        "compared"
    ),
    "gated_buffered": (
        f"{{metrics:titles}}: gated, but not measured: {BUFFERED}. Let each event pass at once, or "
        'gate what is known: limits = {{ latency_p50 = {{ max_rise = "5%" }} }}'
    ),
    "gated_missing": (
        "{metric:title}: gated, but {note}. Read the notes and the log of that run "
        "({folder}), or remove the metric from the limits."
    ),
    "left_out": (
        "{metric:title}: {note}; left out unless its drop is proven. A slower run that is bounded "
        "by time has fewer queries: raise min_query_count or min_duration, or record again with "
        "--mlperf-update=replace."
    ),
    "energy_in_part": lambda of: (
        f"{title(of['metric'])}: energy unknown in {runs_named(of['runs'], of['of'])}"
    ),
    "interrupted": "the session ended before it was decided",
    "scatter": "within the variation of unchanged pairs in this session, p={p:.1g}",
    "drop_among": lambda of: (
        f"{_which(of)} among {of['among']:,} {of.get('noun', 'pairs')} judged together, "
        f"p={of['p']:.1g}"
    ),
    "suspect_among": lambda of: (
        f"a drop if judged alone, none among {of['among']:,} {of.get('noun', 'pairs')} judged "
        f"together, p={of['p']:.1g}"
    ),
    "suspect_again": "SUSPECT since {since} and again now, p={p:.1g}",
    "still_suspect": "SUSPECT since {since}, p={p:.1g}; a drop below p={needed:.2g}",
    "few_sessions": lambda of: (
        "judged with all other pairs, whose baselines have too few sessions"
        + (f"; SUSPECT since {of['since']}" if of["since"] else "")
    ),
    "one_run": "one run is never enough to fail",
    "sessions_unknown": _sessions_unknown,
    "missing_on_side": (
        "{metric:title} is missing in {count} of {of:plural run} of {side}, first in that of "
        "{started}"
    ),
    "score": "{metric} {score:.3f}",
    "scores": lambda of: f"{', '.join(map(sentence, of['scores']))}; {sentence(of['gate'])}",
    "gate": lambda of: f"gate {_gate(of)}" if of["state"] != GateState.NONE else f"no {_gate(of)}",
    "gate_score": _gate_score,
    "proven_miss": "{note}; proven on {samples:,} of {total:,} samples",
    "near_gate": lambda of: (
        f"NEAR-GATE: {of['metric']} is {of['distance']:.2g} points "
        f"{'short of' if of['missed'] else 'inside'} its gate, {of['distance'] / of['sd']:.1f} "
        f"re-run standard deviations ({of['sd']:.2g} points): another pass of this build may fall "
        "on the other side; repeat it before you call it a change"
    ),
    "only_gate": "only the gate was checked: {note}",
    "score_change": _score_change,
    "unchanged_scores": lambda of: (
        f"{of['metric']} {of['score']:.3f}, every sample"
        + (f" of {of['samples']:,}" if of["samples"] < of["total"] else "")
        + " scored as in the baseline"
    ),
    "no_scores": "the baseline has no scores by sample",
    "whole_only": lambda of: f"{', '.join(of['metrics'])}: only for the whole data set",
    "score_added": "{metric}: sample {sample} has a score, but none in the baseline: other data?",
    "score_lost": "{metric}: sample {sample} has no score, but one in the baseline: other data?",
    "below_chance": (
        "{metric} {score:.3f} is worse than guessing ({chance:.3f}): check the order of the labels "
        "and the preprocessing"
    ),
    "empty_answers": lambda of: (
        f"{of['count']:,} of {of['of']:,} answers are empty{_reasoning(of)}"
    ),
    "cut_answers": lambda of: (
        f"{of['count']:,} of {of['of']:,} answers are cut at {_most(of)} "
        f"({percent(of['allowed'])} allowed)"
    ),
    "more_empty": lambda of: f"{_risen(of)} are empty{_in_baseline(of)}{_reasoning(of)}",
    "more_cut": lambda of: f"{_risen(of)} are cut{_in_baseline(of)}, at {_most(of)}",
    "outputs_only": "{changed:,} of {of:,} outputs changed, no score did",
    "outputs_changed": "{changed:,} of {of:,} outputs changed, and the scores of {rescored:,}",
    "unfit_answers": (
        "nothing recorded: {note}; raise max_new_tokens, or accept it with --mlperf-accept-cut"
    ),
    "scores_only": (
        "{rescored:,} scores changed, no output did: the scorer, or a library that it uses, changed"
    ),
    "scored_alike": (
        "{metric}: all {samples:,} samples scored as in the baseline; on other samples, a drop "
        "below {unseen:.2f} points could go unnoticed"
    ),
    "chance_unseen": (
        "{metric}: these {samples:,} samples show {seen:percent} of the variance by chance "
        "({needed:percent} needed): too many classes have one sample, or few samples hold most of "
        "the data. Score more samples."
    ),
    "grouped": (
        "{metric}: samples of one group change together. Judged by the {groups:,} groups of the "
        "data set, the interval is {widened:.1f} times as wide."
    ),
    "small_drop": "{metric}: a drop smaller than the margin is proven (paired test, p={p:.2g})",
    "sampled_answers": (
        "{metric}: answers are sampled, and with {samples:,} of them a drop below {margin:.2f} "
        "points may be chance: that is the margin. More repeats of each question make it smaller."
    ),
    "passes_disagree": lambda of: (
        f"{of['metric']}: scores of the two passes differ sample by sample (correlation "
        f"{of['correlation']:.2f}): {'' if of['same_build'] else 'changed outputs, or '}"
        "nondeterministic generation"
    ),
    "near_deterministic": (
        "{metric}: {changed:,} of {samples:,} scores differ from the baseline of the same build: "
        "near-deterministic (correlation {correlation:.4f})"
    ),
    "value": lambda of: (
        f"{quantity(of['metric'], of['value'])} {title(of['metric'])}"
        if of["metric"]
        else "no value"
    ),
    "first_run_differs": (
        "the first run of a session differs by {change:change} in {metric:title}: not "
        "recorded; later sessions make one warm-up run that does not count"
    ),
    "first_run_skipped": "the first run does not count, as in the baseline: {value}",
    "outlier": "run {run} of {of} is an outlier, {value}: not recorded",
    "limit_missed": "{count} of {of:plural run} missed their latency limit",
    "client_late": "the client sent requests late: see the notes of its runs",
    "busy": "load may have cost up to {share:percent}: {load}",
    "not_idle": lambda of: (
        f"load may have cost up to {percent(of['share'])} of "
        + ("1 run" if of["of"] == 1 else f"one of {of['of']} runs")
        + f": {of['load']}"
    ),
    "load_unknown": "load unknown in {count} of {of:plural run}",
    "load_not_measured": f"load unknown in {{count}} of {{of:plural run}}: {NOT_MEASURED}",
    "load_not_recorded": (
        "load not recorded in {count} of {of:plural run} of the baseline: they count as undisturbed"
    ),
    "load_missed_limit": "a latency limit was missed, but {load}",
    "load_invalid": "the runs are INVALID, perhaps by load: {load}",
    "recorded_under_load": "recorded under load: an idle machine detects smaller regressions",
    "replaced": lambda of: f"replaced: {'; '.join(of['steps'])}",
    "second_day": "for the second day in a row (since {since})",
    "first_day": "{note}; it fails on the first day (fail-on provisional)",
    "clock_set": (
        "the last session was on {day}, later than this one: a clock was set; this drop counts as "
        "the first"
    ),
    "expectation_over": "this failure was expected until {until} ({reason}); that day is over",
    "expectation_missed": (
        "the expected failure ({reason}) did not occur; it is not strict, so this passes"
    ),
    "expectation_stale": "remove the expected failure ({reason}): its last day was {until}",
}
"""Sentence of each key: a template, in which `_Templates` writes the values, or a function."""


def _by(of: Mapping[str, Any]) -> str:
    return "" if of["judged"] >= of["of"] else f" {of['judged']} of these {of['of']} runs"


class _Templates(Formatter):
    """Fill a template; a field's format names a function of `core.numbers`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        kind, _, noun = format_spec.partition(" ")
        if kind == "plural":
            return plural(value, noun)
        write = _WRITERS.get(format_spec)
        return write(value) if write else str(super().format_field(value, format_spec))


_WRITERS: Mapping[str, Callable[[Any], str]] = {
    "": lambda value: sentence(value) if isinstance(value, Note) else str(value),
    "percent": percent,
    "change": change,
    "title": title,
    "titles": lambda names: ", ".join(dict.fromkeys(title(n.partition("@")[0]) for n in names)),
}
_TEMPLATES = _Templates()


def sentence(words: Words) -> str:
    """Return the sentence of a note; a text is returned unchanged."""
    if isinstance(words, str):
        return words
    template = _SENTENCES[words.key]
    try:
        if isinstance(template, str):
            return _TEMPLATES.vformat(template, (), words.values)
        return template(words.values)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        # The values are those of a file, which may lack one.
        return " ".join([words.key, *(f"{name}={value}" for name, value in words.values.items())])
