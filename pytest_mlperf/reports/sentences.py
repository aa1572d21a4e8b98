"""Format notes as sentences: a template or function for each key, filled with the values."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
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
from pytest_mlperf.core.numbers import (
    change,
    duration,
    interval,
    limit,
    percent,
    plural,
    points,
    quantity,
)
from pytest_mlperf.core.reason import DURATION_PLACEHOLDER, of_gpus, ranges_of
from pytest_mlperf.core.verdict import Gate, GateState, Outcome, Unchecked, Verdict
from pytest_mlperf.judge.inputs import Direction
from pytest_mlperf.reports.run_sentences import RUN_SENTENCES, held

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
    """Return the result of an accuracy gate, without label: "kept on 50,000 samples"."""
    return (
        "none: no reference score is known"
        if gate.state is GateState.NONE
        else _gate(gate.note.values)
    )


def _sign(of: Mapping[str, Any]) -> str:
    """Return a warning about a run (`SignKey`) with its duration, concurrency or rate, and GPU."""
    text, seconds, share, name = sentence(of["text"]), of["seconds"], of["share"], of["name"]
    if share is not None:
        lasted = f"{share:.0%}" if seconds is None else f"{seconds:.2f} s, {share:.1%} of the run"
        text = text.replace(DURATION_PLACEHOLDER, lasted)
    text = text if of["point"] is None else f"at {of['point']:,.10g}: {text}"
    return f"{name}: {text}" if name else text


def _signs(of: Mapping[str, Any]) -> str:
    """Return one sentence for equal warnings about several GPUs, or several loads of a curve."""
    signs = [note.values for note in of["signs"]]
    if len({sentence(sign["text"]) for sign in signs}) > 1 and not _alike(signs):
        return "; ".join(map(_sign, signs))
    texts = [_sign({**sign, "name": "", "point": None}) for sign in signs]
    points = ", ".join(f"{sign['point']:,.10g}" for sign in signs if sign["point"] is not None)
    if points:
        ((_, text),) = ranges_of([("", text) for text in texts])
        return f"at {points}: {text}"
    if not any(sign["name"] for sign in signs):
        return "; ".join(texts)
    names = [sign["name"] for sign in signs]
    return "; ".join(of_gpus(list(zip(names, texts, strict=True)), max(of["gpus"], len(signs))))


def _alike(signs: Sequence[Mapping[str, Any]]) -> bool:
    return len(ranges_of([("", sentence(sign["text"])) for sign in signs])) == 1


def _of_gpus(of: Mapping[str, Any]) -> str:
    texts = list(zip(of["gpus"], map(sentence, of["notes"]), strict=True))
    return "; ".join(of_gpus(texts, of["of"]))


def _reasons(of: Mapping[str, Any]) -> str:
    return "; ".join(map(sentence, of["reasons"]))


def _interleaved(of: Mapping[str, Any]) -> str:
    folder = f"runs in {of['folder']}"
    parts = (f"interleaved with {of['build']}", of["again"], of["left_out"], folder)
    return "; ".join(sentence(part) for part in parts if part)


_SENTENCES: Mapping[NoteKey, str | Callable[[Mapping[str, Any]], str]] = {
    **RUN_SENTENCES,
    "sign": _sign,
    "signs": _signs,
    "of_gpus": _of_gpus,
    "reasons": _reasons,
    "measured_again": lambda of: (
        f"{plural(of['count'], 'run')} INVALID, measured again: {_reasons(of)}"
    ),
    "not_held": lambda of: f"{held(of)}: {sentence(of['users'])}",
    "interleaved": _interleaved,
    "ab_not_compared": lambda of: (
        f"not confirmed by A/B: {sentence(of['reason'])}"
        + (f"; {of['more']}" if of["more"] else "")
    ),
    "metric": _metric,
    "unchecked": lambda of: _UNCHECKED[Unchecked(of["state"])],
    "compared_before": lambda of: (
        f"compared{_by(of)} before it was added: {of['outcome']} {sentence(of['headline'])}"
    ),
    "other_count": _other_count,
    "other_cached": _cached("in the baseline"),
    "cached_unevenly": _cached("in the first run"),
    "missing": _missing,
    "zero": _zero,
    "fewer_queries": lambda of: (
        f"{of['count']:,} of {of['needed']:,} queries a run"
        + ("" if of["baseline"] is None else f" ({of['baseline']:,} in the baseline)")
    ),
    "not_gated": f"{{metrics:titles}}: not gated, {BUFFERED}",
    "gated_buffered": (
        f"{{metrics:titles}}: gated, but not measured: {BUFFERED}. Let each event pass at once, or "
        'gate what is known: limits = {{ latency_p50 = {{ max_rise = "5%" }} }}'
    ),
    "energy_in_part": lambda of: (
        f"{title(of['metric'])}: energy unknown in {runs_named(of['runs'], of['of'])}"
    ),
    "drop_among": lambda of: (
        f"{_which(of)} among {of['among']:,} {of.get('noun', 'pairs')} judged together, "
        f"p={of['p']:.1g}"
    ),
    "suspect_among": lambda of: (
        f"a drop if judged alone, none among {of['among']:,} {of.get('noun', 'pairs')} judged "
        f"together, p={of['p']:.1g}"
    ),
    "few_sessions": lambda of: (
        "judged with all other pairs, whose baselines have too few sessions"
        + (f"; SUSPECT since {of['since']}" if of["since"] else "")
    ),
    "sessions_unknown": _sessions_unknown,
    "scores": lambda of: f"{', '.join(map(sentence, of['scores']))}; {sentence(of['gate'])}",
    "gate": lambda of: f"gate {_gate(of)}" if of["state"] != GateState.NONE else f"no {_gate(of)}",
    "gate_score": _gate_score,
    "near_gate": lambda of: (
        f"NEAR-GATE: {of['metric']} is {of['distance']:.2g} points "
        f"{'short of' if of['missed'] else 'inside'} its gate, {of['distance'] / of['sd']:.1f} "
        f"re-run standard deviations ({of['sd']:.2g} points): another pass of this build may fall "
        "on the other side; repeat it before you call it a change"
    ),
    "score_change": _score_change,
    "unchanged_scores": lambda of: (
        f"{of['metric']} {of['score']:.3f}, every sample"
        + (f" of {of['samples']:,}" if of["samples"] < of["total"] else "")
        + " scored as in the baseline"
    ),
    "whole_only": lambda of: f"{', '.join(of['metrics'])}: only for the whole data set",
    "empty_answers": lambda of: (
        f"{of['count']:,} of {of['of']:,} answers are empty{_reasoning(of)}"
    ),
    "cut_answers": lambda of: (
        f"{of['count']:,} of {of['of']:,} answers are cut at {_most(of)} "
        f"({percent(of['allowed'])} allowed)"
    ),
    "more_empty": lambda of: f"{_risen(of)} are empty{_in_baseline(of)}{_reasoning(of)}",
    "more_cut": lambda of: f"{_risen(of)} are cut{_in_baseline(of)}, at {_most(of)}",
    "passes_disagree": lambda of: (
        f"{of['metric']}: scores of the two passes differ sample by sample (correlation "
        f"{of['correlation']:.2f}): {'' if of['same_build'] else 'changed outputs, or '}"
        "nondeterministic generation"
    ),
    "value": lambda of: (
        f"{quantity(of['metric'], of['value'])} {title(of['metric'])}"
        if of["metric"]
        else "no value"
    ),
    "not_idle": lambda of: (
        f"load may have cost up to {percent(of['share'])} of "
        + ("1 run" if of["of"] == 1 else f"one of {of['of']} runs")
        + f": {of['load']}"
    ),
    "load_not_measured": f"load unknown in {{count}} of {{of:plural run}}: {NOT_MEASURED}",
    "replaced": lambda of: f"replaced: {'; '.join(of['steps'])}",
}
"""Functions of sentences with conditions, by key; `_templates` has all others."""


def _by(of: Mapping[str, Any]) -> str:
    return "" if of["judged"] >= of["of"] else f" {of['judged']} of these {of['of']} runs"


@cache
def _templates() -> Mapping[str, str]:
    """Return the sentences without conditions, in which `_Templates` writes the values."""
    return tomllib.loads(files(__package__).joinpath("sentences.toml").read_text("utf-8"))


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
    "duration": duration,
    "titles": lambda names: ", ".join(dict.fromkeys(title(n.partition("@")[0]) for n in names)),
}
_TEMPLATES = _Templates()


def sentence(words: Words) -> str:
    """Return the sentence of a note; a text is returned unchanged."""
    if isinstance(words, str):
        return words
    template = _SENTENCES.get(words.key) or _templates()[words.key]
    try:
        if isinstance(template, str):
            return _TEMPLATES.vformat(template, (), words.values)
        return template(words.values)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        # The values are those of a file, which may lack one.
        return " ".join([words.key, *(f"{name}={value}" for name, value in words.values.items())])
