"""Format notes as sentences: each key has a template or a function that inserts the values."""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from string import Formatter
from typing import Any

from pytest_mlperf.core.contention import NOT_MEASURED
from pytest_mlperf.core.control import QUANTITIES, ControlComparison, with_prefix
from pytest_mlperf.core.metrics import (
    DRAFT_ACCEPTANCE,
    DRAFT_LENGTH,
    METRICS,
    PREFIX_HIT_SHARE,
    title,
)
from pytest_mlperf.core.notes import Note, NoteKey, Words
from pytest_mlperf.core.numbers import (
    MINUS,
    change,
    duration,
    interval,
    limit,
    percent,
    plural,
    points,
    quantity,
    times,
)
from pytest_mlperf.core.reason import DURATION_PLACEHOLDER, gpu_sentences, ranges_of
from pytest_mlperf.core.search import SearchOutcome, load_text
from pytest_mlperf.core.verdict import Gate, GateState, Outcome, Verdict
from pytest_mlperf.judge.inputs import Direction

BUFFERED = "answers arrived in one or a few reads, as behind a proxy that buffers"

_ZERO = {
    "goodput": "no request met its limits",
    DRAFT_ACCEPTANCE: "no drafted token was accepted",
    DRAFT_LENGTH: "nothing was drafted",
    PREFIX_HIT_SHARE: "no prompt token was in the prefix cache",
}
_SERVER_CAUSES = {
    "no page": "the server has no readable /metrics page. Measure a server that has one",
    "no count": "the server counted nothing between two readings. Make the run longer",
    "no counters": "the server's /metrics page lacks {counters}. Measure a server that has them",
}


@cache
def _templates() -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath("sentences.toml").read_text("utf-8"))


def first_line(verdict: Verdict) -> str:
    """Return the outcome and headline of a verdict."""
    return f"{verdict.outcome} {sentence(verdict.headline)}"


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
    """Return a metric's headline from a note's values `of`: change, interval, reason of outcome."""
    metric, note = of["metric"], sentence(of["note"] or "")
    subject = title(metric)
    if of.get("condition"):
        least = "at least " if of["at_least"] else ""
        subject = f"{least}{quantity(metric, of['now'])} {subject} at {of['condition']}"
    if of["change"] is None:
        return f"{subject}: {note or 'no record of this machine'}"
    bound = limit(metric, of["limit"])
    if of["outcome"] in {Outcome.OK, Outcome.IMPROVED}:
        reason = f"within limit {bound}"
    elif of["outcome"] == Outcome.PROVISIONAL:
        reason = f"{of['direction']} {note}"
    elif of["outcome"] == Outcome.INCONCLUSIVE:
        reason = note or f"undecided at {bound}"
    else:
        higher = METRICS[metric].direction is Direction.HIGHER
        beyond = of["high"] < -of["limit"] if higher else of["low"] > of["limit"]
        reason = note or f"limit {bound} {'' if beyond else 'possibly '}exceeded"
    return f"{subject} {change(of['change'])} ({interval(of['low'], of['high'])}); {reason}"


def _other_count(of: Mapping[str, Any]) -> str:
    way = "less" if of["value"] < of["low"] else "more"
    baseline = _bounds(of["low"], of["high"], "{:.7g}".format)
    return f"{of['value']:.7g} {title(of['metric'])}, {way} than in the baseline ({baseline})"


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


def _sessions_unknown(of: Mapping[str, Any]) -> str:
    heads = {"ok": "probably ok: ", "drop": "probably a regression: ", None: ""}
    return (
        f"{heads[of['direction']]}{of['sessions']} sessions are too few to know the day-to-day "
        f"variation; record {of['more']} more on other days"
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
        return f"{text}; within limit {bound}"
    if of["outcome"] == Outcome.ACC_DROP:
        return f"{text}; limit {bound} {'' if of['beyond'] else 'possibly '}exceeded"
    return f"{text}; undecided at {bound}"


def _most(of: Mapping[str, Any]) -> str:
    return f"max_new_tokens = {of['limit']}" if of["limit"] else "their token limit"


def _reasoning(of: Mapping[str, Any]) -> str:
    cut = of["reasoning"]
    some = "" if cut == of["count"] else f"{cut:,} "
    return f": {some}cut at {_most(of)} while reasoning" if cut else ""


def _unfit_answers(of: Mapping[str, Any]) -> str:
    note, advice = of["note"], "raise max_new_tokens"
    if isinstance(note, Note) and note.key == "empty_answers" and not note.values["reasoning"]:
        advice = "check the prompts and the chat template"
    return f"nothing recorded: {sentence(note)}; {advice}, or accept it with --mlperf-accept-cut"


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


def _sign_sentence(fields: Mapping[str, Any]) -> str:
    """Format a warning about a run, given a `Sign`'s fields, with its duration, load and GPU."""
    text, seconds, share, name = (
        sentence(fields["text"]),
        fields["seconds"],
        fields["share"],
        fields["name"],
    )
    if share is not None:
        lasted = f"{share:.0%}" if seconds is None else f"{seconds:.2f} s, {share:.1%} of the run"
        text = text.replace(DURATION_PLACEHOLDER, lasted)
    text = text if fields["point"] is None else f"at {fields['point']:,.10g}: {text}"
    return f"{name}: {text}" if name else text


def _joined_warnings(of: Mapping[str, Any]) -> str:
    """Join warnings `of["signs"]` into one text; merge equal ones of several GPUs or points."""
    signs = [note.values for note in of["signs"]]
    if len({sentence(sign["text"]) for sign in signs}) > 1 and not _alike(signs):
        return "; ".join(map(_sign_sentence, signs))
    texts = [_sign_sentence({**sign, "name": "", "point": None}) for sign in signs]
    points = ", ".join(f"{sign['point']:,.10g}" for sign in signs if sign["point"] is not None)
    if points:
        ((_, text),) = ranges_of([("", text) for text in texts])
        return f"at {points}: {text}"
    if not any(sign["name"] for sign in signs):
        return "; ".join(texts)
    names = [sign["name"] for sign in signs]
    return "; ".join(
        gpu_sentences(list(zip(names, texts, strict=True)), max(of["gpus"], len(signs)))
    )


def _alike(signs: Sequence[Mapping[str, Any]]) -> bool:
    return len(ranges_of([("", sentence(sign["text"])) for sign in signs])) == 1


def _of_gpus(of: Mapping[str, Any]) -> str:
    texts = list(zip(of["gpus"], map(sentence, of["notes"]), strict=True))
    return "; ".join(gpu_sentences(texts, of["of"]))


_time = partial(quantity, "latency_p99")


def _client_share(of: Mapping[str, Any]) -> str:
    metric, late_s = of["metric"], of["issue_s"] + of["loop_s"]
    return (
        f"{METRICS[metric].title} is {quantity(metric, of['value'])}; the client itself may have "
        f"added up to {_time(late_s)}: its requests began {_time(of['issue_s'])} late and its "
        f"event loop was {_time(of['loop_s'])} late ({metric.rpartition('_')[2]}). Give it CPU "
        "cores of its own, or run it on another machine"
    )


def _core_users(of: Mapping[str, Any]) -> str:
    names = f" ({of['names']})" if of["names"] else ""
    unseen = ", or the server, if it runs here," if of["serves"] is False else ""
    users = {
        f"the {'server' if of['serves'] else 'engine'}'s processes": (
            of["own"],
            "start the client on cores of its own (taskset), or on another machine",
        ),
        "this client": (of["client"], "lower the requests in flight, or use a faster machine"),
        f"other processes{names}{unseen}": (
            of["others"],
            "close them, or measure on an idle machine",
        ),
    }
    figures = [f"{name} used {used:.2g}" for name, (used, _) in users.items() if used > 0.005]
    _, advice = max(users.values())
    if of["idle"]:
        advice = "cores were idle: raise the engine's own limit of concurrent requests"
    return f"{', '.join(figures) or 'no process used any'} of {of['cores']} cores: {advice}"


def _turns(of: Mapping[str, Any]) -> str:
    low, high = (f"{1e3 * of[name]:.3g}" for name in ("low_s", "high_s"))
    later = " and later" if of["more"] else ""
    waited = f"; {of['paused']:.3g} conversations paused on average" if of["paused"] else ""
    return (
        f"median {'TTFT' if of['ttft'] else 'latency'} {1e3 * of['first_s']:.3g} ms of first "
        f"turns, {low} to {high} ms of turns 2 to {of['last']}{later}{waited}"
    )


def _prefix_share(of: Mapping[str, Any]) -> str:
    cause = "prompts were sent again (use more samples), or share more than the data set states"
    if of["fewer"]:
        cause = "the cache is off or too small, or another server answered earlier requests"
    return (
        "{} of the prompts' tokens were in the server's prefix cache; the prompts share "
        f"{of['shared']:.0%} with earlier ones: {cause}"
    )


def _server_metric(of: Mapping[str, Any]) -> str:
    cause = _SERVER_CAUSES[of["cause"]].format(counters=of["counters"])
    return (
        f"{METRICS[of['metric']].title} has a limit, but was not measured: {cause}, or remove the "
        "limit"
    )


_SENTENCES: Mapping[NoteKey, str | Callable[[Mapping[str, Any]], str]] = {
    "step": lambda of: (
        f"{of['metric']} new {quantity(of['metric'], of['new'])}"
        if of["old"] is None
        else f"{of['metric']} {quantity(of['metric'], of['old'])} -> "
        f"{quantity(of['metric'], of['new'])} ({change(of['new'] / of['old'] - 1)})"
    ),
    "machine_moved": lambda of: (
        f"the machine is {'fast' if of['change'] > 0 else 'slow'}: "
        f"{QUANTITIES[of['quantity']][0]} {_speed(of, 'now')} now, {_speed(of, 'baseline')} when "
        f"the baseline was recorded ({change(of['change'])}; normal variation {percent(of['sd'])})"
    ),
    "client_share": _client_share,
    "core_users": _core_users,
    "requests_failed": lambda of: (
        f"{of['count']:,} of {of['of']:,} requests failed ({percent(of['count'] / of['of'])}; "
        f"max_failed allows {percent(of['allowed'])})"
    ),
    "turns": _turns,
    "server_metric_missing": _server_metric,
    "prefix_share": _prefix_share,
    "invalid_by_loadgen": lambda of: (
        f"LoadGen reports INVALID: {of['reasons'] or 'its log does not say why'}"
    ),
    "drafts": lambda of: (
        f"speculative decoding gave {of['tokens']:.2f} tokens per step"
        + (
            ', which the engine entry must declare: techniques = ["speculative-decoding"]'
            if of["undeclared"]
            else ""
        )
    ),
    "answers_missing": lambda of: (
        f"answers to {of['dataset']} are not complete: {of['counts'] or 'scored in part'}"
    ),
    "sign": _sign_sentence,
    "signs": _joined_warnings,
    "of_gpus": _of_gpus,
    "clock_event": lambda of: _templates()["words"].get(
        of["event"], f"the driver limits the clocks (reason {of['event']}): {DURATION_PLACEHOLDER}"
    ),
    "metric": _metric,
    "compared_before": lambda of: (
        f"judged{_by(of)} before this session was added to the baseline: {of['outcome']} "
        f"{sentence(of['headline'])}"
    ),
    "other_count": _other_count,
    "missing": _missing,
    "zero": _zero,
    "fewer_queries": lambda of: (
        f"{of['count']:,} queries per run, {of['needed']:,} are needed"
        + ("" if of["baseline"] is None else f" ({of['baseline']:,} in the baseline)")
    ),
    "not_gated": f"{{metrics:titles}}: not gated, {BUFFERED}",
    "gated_buffered": (
        f"{{metrics:titles}}: gated, but not measured: {BUFFERED}. Turn buffering off there, or "
        'gate a metric that is known: limits = {{ latency_p50 = {{ max_rise = "5%" }} }}'
    ),
    "energy_in_part": lambda of: (
        f"{title(of['metric'])}: energy unknown in {runs_named(of['runs'], of['of'])}"
    ),
    "drop_among": lambda of: (
        ("the only drop" if of["drops"] == 1 else f"one of {of['drops']} drops")
        + f" among {of['among']:,} {of.get('noun', 'pairs')} judged together, p={of['p']:.1g}"
    ),
    "suspect_among": lambda of: (
        f"a drop if judged alone, but not among {of['among']:,} {of.get('noun', 'pairs')} judged "
        f"together, p={of['p']:.1g}"
    ),
    "sessions_unknown": _sessions_unknown,
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
    "unfit_answers": _unfit_answers,
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
        "load may have slowed "
        + ("the run" if of["of"] == 1 else f"one of {of['of']} runs")
        + f" by up to {percent(of['share'])}: {sentence(of['load'])}"
    ),
    "load_not_measured": f"load unknown in {{count}} of {{of:plural run}}: {NOT_MEASURED}",
}
"""Functions and templates of sentences by key; `_templates` has all others."""


def _speed(of: Mapping[str, Any], side: str) -> str:
    return with_prefix(of[side], QUANTITIES[of["quantity"]][1])


def _by(of: Mapping[str, Any]) -> str:
    return "" if of["judged"] >= of["of"] else f" with {of['judged']} of these {of['of']} runs"


def machine_speed(comparisons: Sequence[ControlComparison]) -> str:
    """Return text on the changes of the micro-benchmark, and the least slowdown it can detect."""
    figures = ", ".join(
        f"{QUANTITIES[each.quantity][0]} {change(each.share)}" for each in comparisons
    )
    least = " and ".join(
        dict.fromkeys(percent(each.min_detectable_slowdown) for each in comparisons)
    )
    return f"{figures}; only slowdowns of {least} or more can be detected on this machine"


def search_result(search: SearchOutcome) -> str:
    """Return a search's result as text: rate, limits met and missed, number of runs."""
    low, high = load_text(search.low, search.whole), load_text(search.high, search.whole)
    text = (
        f"{load_text(search.rate, search.whole, ' samples/s')} at {search.at}: limits met at "
        f"{low}, missed at {high} ({search.metric}); {len(search.tried)} runs"
    )
    lacks = f"; the precision of {percent(search.precision)} was not reached"
    return text if search.reached else text + lacks


class _Templates(Formatter):
    """Format templates; the format spec of a field is the name of a function in `_WRITERS`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        kind, _, noun = format_spec.partition(" ")
        if kind == "plural":
            return plural(value, noun)
        write = _WRITERS.get(format_spec)
        return write(value) if write else str(super().format_field(value, format_spec))


_WRITERS: Mapping[str, Callable[[Any], str]] = {
    "": lambda value: sentence(value) if isinstance(value, Note) else str(value),
    "percent": percent,
    "percents": lambda ends: _bounds(ends[0], ends[1], percent),
    "change": change,
    "title": title,
    "time": _time,
    "times": times,
    "duration": duration,
    "short": lambda seconds: f"{seconds:.2g}" if seconds < 99.5 else f"{seconds:,.0f}",
    "clock": lambda time_s: f"{dt.datetime.fromtimestamp(time_s, dt.UTC):%Y-%m-%d %H:%M:%S}",
    "titles": lambda names: ", ".join(dict.fromkeys(title(n.partition("@")[0]) for n in names)),
    "list": lambda parts: ", ".join(map(sentence, parts)),
    "or": lambda parts: " or ".join(map(sentence, parts)),
    "heat": lambda rise: f"{'+' if rise >= 0 else MINUS}{abs(rise):.0f} °C",
    "clauses": lambda parts: "; ".join(map(sentence, parts)),
    "drift": lambda moved: f"{'rose' if moved > 0 else 'fell'} by {abs(moved):.0%}",
    "load": lambda turns: "conversations had a request" if turns else "requests were",
    "word": lambda value: _templates()["words"].get(value, value),
}
_TEMPLATES = _Templates()


def _filled(template: str | Sequence[str], values: Mapping[str, Any]) -> str:
    """Fill a template; if it is a list, omit parts with a None or only with 0 or empty values."""
    if isinstance(template, str):
        return _TEMPLATES.vformat(template, (), values)
    text = ""
    for part in template:
        of = [values[name] for _, name, _, _ in _TEMPLATES.parse(part) if name]
        text += _filled(part, values) if not of or (any(of) and None not in of) else ""
    return text.removeprefix("; ")


def sentence(words: Words) -> str:
    """Convert a note to a sentence; return a text unchanged."""
    if isinstance(words, str):
        return words
    template = _SENTENCES.get(words.key) or _templates()[words.key]
    try:
        if not callable(template):
            return _filled(template, words.values)
        return template(words.values)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, OSError):
        # The values are those of a file, which may lack one.
        return " ".join([words.key, *(f"{name}={value}" for name, value in words.values.items())])
