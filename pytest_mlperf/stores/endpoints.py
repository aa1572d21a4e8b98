"""Read run folders of MLCommons' client for MLPerf Endpoints: one folder per curve point.

The format is that of mlcommons/endpoints at ea3327530376fef63d706f4105612e17c2c80a8d (2026-08-21),
`metrics/report.py`, `config/schema.py` and `commands/benchmark/accuracy.py`; later fields
(n_samples_succeeded, n_samples_dropped) are named as in `run-folder-layout.md` of
mlcommons/endpoints-submission-docs at 0c220a5a. Histograms are ignored: their bins range from the
minimum to the maximum of each run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_mlperf.core.errors import EnvironmentFault, MlperfError
from pytest_mlperf.core.job import MLC_ENDPOINTS
from pytest_mlperf.core.numbers import MAX_COUNT, MAX_RATE, MIN_RATE, quantity
from pytest_mlperf.core.reason import Key, Reason
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.core.untrusted_text import encodable, quoted
from pytest_mlperf.stores.foreign import content_of, lines_of, read_foreign

CONFIG = "config.yaml"
EVENTS_FILE, SAMPLES_FILE = "events.jsonl", "sample_idx_map.json"
SUMMARY_FILE, ACCURACY_FILE = "result_summary.json", "accuracy_results.json"
PLACES = {SUMMARY_FILE: ("performance", ""), ACCURACY_FILE: ("accuracy", "")}
"""Subfolders of a run that may hold a file; submissions of MLPerf Inference v6.1 are flat."""

RESULT_TITLE = "result of MLCommons' endpoints client"

MAX_CONFIG_BYTES = 2**16
BROKEN_YAML = (ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""Exceptions of PyYAML beyond its own types, e.g. for `!!timestamp x` and `!!int ""`."""

START_EVENT, END_EVENT = "session.start_performance_tracking", "session.stop_performance_tracking"

MAX_EVENT_LINE_BYTES = 2**26
MAX_VALUE_CHARACTERS = 200
"""Characters of a value that a fingerprint shows; a longer value is replaced by its hash."""

RATE_SLACK_SHARE = 1e-3
"""Allowed relative difference between a stated rate and that of its counts and time."""

CONCURRENCY_SLACK_SHARE = 0.02
"""Allowed relative difference between the concurrency and, by Little's law, requests/s times mean
latency."""

MIN_SLOT_REQUESTS, MIN_REQUESTS = 2, 10
"""Minimum numbers of requests of a point: per concurrent one, and in all."""

EPOCH_NS = range(10**18, 4 * 10**18)
"""Plausible start times: releases so far write 0 or a monotonic clock instead."""

FACTS = (
    "model_params.",
    "dataset.",
    "submission_ref.",
    "settings.load_pattern.",
    "settings.warmup.",
    "settings.runtime.scheduler_random_seed.",
    "settings.runtime.dataloader_random_seed.",
    "settings.client.stream_all_chunks.",
    "endpoint_config.api_type.",
)
"""Configuration keys that describe load and answers, by prefix; `dataset` is that of speed."""

BY_POINT = {
    "settings.load_pattern.target_concurrency",
    "settings.load_pattern.target_qps",
    "settings.warmup.n_requests",
}
"""Configuration keys that differ between points of one curve."""

LATENCIES, PERCENTILES = ("ttft", "tpot", "latency"), (50.0, 90.0, 99.0)


@dataclass(frozen=True, kw_only=True)
class RecordedPoint:
    """Hold the content of one run folder, which is one point of a curve.

    Attributes:
        facts: Version of the client, and configuration that points of a curve must share.
        metrics: Values in SI units, by name.
        length_se: Relative standard error of the mean answer length; 0 if unknown.
        requests: Number of completed requests.
        duration_s: Time from the first request to the last answer, ramp-up and ramp-down included.
        ended_s: End, seconds since the epoch; the file's time if the client states none.
        digest: Digest of the result, equal for copies of a run folder.
        invalid: Reasons why it may not be judged.
    """

    folder: Path
    concurrency: int
    facts: Mapping[str, str]
    servers: str
    metrics: Mapping[str, float]
    requests: int
    duration_s: float
    ended_s: float
    digest: str
    invalid: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    length_se: float = 0.0


def file_of(folder: Path, name: str) -> Path | None:
    """Return the path of SUMMARY_FILE or ACCURACY_FILE in a run folder; None if it is missing."""
    places = (folder / place / name for place in PLACES[name])
    return next((place for place in places if place.exists()), None)


def read_point(folder: Path) -> RecordedPoint:
    """Read a run folder; raise MlperfError if it is incomplete or inconsistent."""
    path = file_of(folder, SUMMARY_FILE)
    if path is None:
        raise MlperfError(
            f"{folder}: incomplete: it has {CONFIG} and no {SUMMARY_FILE}, so the run did not "
            "end; leave it out"
        )
    raw = read_foreign(path, RESULT_TITLE)
    summary = _Block(path, raw, "")
    config = read_configuration(folder)
    concurrency = _concurrency(folder, config, summary)
    requests, duration_s = summary.count("n_samples_completed"), summary.seconds("duration_ns")
    metrics, notes = _metrics(summary, requests, duration_s) if duration_s else ({}, ())
    scores = file_of(folder, ACCURACY_FILE)
    unscored, accuracy = _client_accuracy(folder, scores) if scores else ((), ())
    invalid = (
        *_failures(summary, config, concurrency),
        *_doubts(summary, concurrency, requests, duration_s),
    )
    facts = {
        "harness": MLC_ENDPOINTS,
        "harness.version": _short(str(raw.get("version"))),
        "harness.git_sha": _short(str(raw.get("git_sha") or "unknown")),
        **{k: v for k, v in config.items() if f"{k}.".startswith(FACTS) and k not in BY_POINT},
    }
    at = f"at {concurrency:,}: "
    return RecordedPoint(
        folder=folder,
        concurrency=concurrency,
        facts=facts,
        servers=config.get("endpoint_config.endpoints", ""),
        metrics=metrics,
        requests=requests,
        duration_s=duration_s,
        ended_s=_ended_s(path, summary, duration_s),
        digest=hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest(),
        invalid=tuple(
            Reason.of(reason.key, "at", point=concurrency, note=reason.text)
            for reason in (*invalid, *unscored)
        ),
        notes=tuple(at + note for note in (*notes, *accuracy)),
        length_se=_length_se(summary, requests),
    )


def version_of(facts: Mapping[str, str]) -> str:
    """Return the client's version: "MLCommons endpoints 0.1.0 (ea33275)"."""
    return f"{facts['harness']} {facts['harness.version']} ({facts['harness.git_sha']})"


def _ended_s(path: Path, summary: _Block, duration_s: float) -> float:
    begun = summary.number("test_started_at")
    if begun is not None and EPOCH_NS.start <= begun < EPOCH_NS.stop:
        return begun / 1e9 + duration_s
    return path.stat().st_mtime


# --- config.yaml ---------------------------------------------------------------------------


def read_configuration(folder: Path) -> dict[str, str]:
    """Return all values of a run's configuration by key: {"model_params.name": "llama"}."""
    path = folder / CONFIG
    yaml = _yaml(str(path))
    text = content_of(path, "configuration of endpoints", MAX_CONFIG_BYTES)
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError("it has YAML aliases, which the client never writes")
        content = yaml.safe_load(text)
        if not isinstance(content, dict):
            raise MlperfError(f"{path}: not a configuration of endpoints: {quoted(content)}")
        # A TypeError if it is no list.
        tables = [each for each in content.pop("datasets", None) or [] if isinstance(each, dict)]
        timed = (table for table in tables if table.get("type", "performance") == "performance")
        dataset = next(timed, tables[0] if tables else {})
        return encodable(dict(sorted(_flat({**content, "dataset": dataset}, ""))))
    except (yaml.YAMLError, *BROKEN_YAML) as error:
        line = " ".join(str(error).split())
        raise MlperfError(
            f"{path}: not a configuration of endpoints: {line[:MAX_VALUE_CHARACTERS]}"
        ) from None


def yaml_text(content: Mapping[str, Any]) -> bytes:
    """Return plain JSON content as YAML for the client."""
    plain = json.loads(json.dumps(content))
    text: str = _yaml("export endpoints").safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text.encode()


def _yaml(who: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise EnvironmentFault(
            f"{who} needs PyYAML, which is not installed; try: "
            "pip install 'pytest-mlperf[endpoints]'"
        ) from None
    return yaml


def _flat(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield (key path, text) of each leaf of a tree; a list of plain values is one leaf."""
    several = isinstance(value, list)
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}".removeprefix("."))
    elif several and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value):
            yield from _flat(item, f"{name}.{number}")
    elif value is not None:
        yield name, _short(", ".join(map(str, value)) if several else str(value))


def _short(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"sha256 {digest[:16]}"


def _concurrency(folder: Path, config: Mapping[str, str], summary: _Block) -> int:
    pattern = config.get("settings.load_pattern.type", "")
    if pattern != "concurrency":
        raise MlperfError(
            f"{folder}: its load pattern is {quoted(pattern)}; only runs with the load pattern "
            "'concurrency' can be imported, as points of a curve"
        )
    text = config.get("settings.load_pattern.target_concurrency", "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if not 1 <= number < 10**7:
        raise MlperfError(
            f"{folder / CONFIG}: target_concurrency is {quoted(text)}; must be a whole number from "
            "1 to 9,999,999"
        )
    stated = summary.block("run_config").block("load_pattern").number("target_concurrency")
    if stated is not None and stated != number:
        raise MlperfError(
            f"{folder}: {CONFIG} has concurrency {number}, {SUMMARY_FILE} has {stated:g}: "
            "they are of two runs"
        )
    return number


# --- result_summary.json -------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """Hold a JSON object of a result file; messages name `path` and `where`, the key path."""

    path: Path
    raw: Any
    where: str

    def __post_init__(self) -> None:
        if not isinstance(self.raw, dict):
            raise self.wrong("", f"must be an object, not {quoted(self.raw)}")

    def wrong(self, key: str, problem: str) -> MlperfError:
        key_path = ".".join(filter(None, (self.where, key)))
        return MlperfError(f"{self.path}: {key_path} {problem}".replace(":  ", ": "))

    def block(self, key: str) -> _Block:
        """Return the nested object at a key, as a `_Block`; an empty one if it is missing."""
        return _Block(self.path, self.raw.get(key) or {}, ".".join(filter(None, (self.where, key))))

    def number(self, key: str) -> float | None:
        """Return a number, or None if it is null or missing."""
        value = self.raw.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, f"must be a number, not {quoted(value)}")
        if not abs(value) <= MAX_RATE:
            raise self.wrong(key, f"is {value!r}, which cannot be measured")
        return float(value)

    def count(self, key: str) -> int:
        value = self.number(key)
        if value is None:
            raise self.wrong(
                key, f"is missing: this is not a {RESULT_TITLE}, or of an unknown release"
            )
        if not 0 <= value <= MAX_COUNT or value != int(value):
            raise self.wrong(key, f"is {value!r}, which is not a count")
        return int(value)

    def seconds(self, key: str) -> float:
        """Return a time that is written in nanoseconds; 0 if it is null."""
        if key not in self.raw:
            raise self.wrong(
                key, "is missing: the client of this version writes its times in nanoseconds"
            )
        value = self.number(key) or 0.0
        if not 0 <= value < 1e18:
            raise self.wrong(key, f"is {value!r}, which is not a time in nanoseconds")
        return value / 1e9

    def percentile(self, percent: float) -> float | None:
        """Return a percentile by its key, "90.0" or in some releases "90"; None if missing."""
        values = self.block("percentiles")
        names = [key for key in values.raw if _float(key) == percent]
        return values.number(names[0]) if names else None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _distribution(summary: _Block, key: str, unit: str) -> _Block:
    block = summary.block(key)
    stated = block.raw.get("unit", block.raw.get("units", unit))
    if stated != unit:
        raise block.wrong("unit", f"is {quoted(stated)}; only {unit} is supported")
    return block


def _metrics(
    summary: _Block, requests: int, duration_s: float
) -> tuple[dict[str, float], tuple[str, ...]]:
    metrics, notes = {}, []
    tokens = _distribution(summary, "output_sequence_lengths", "tokens").number("total")
    _require_agreement(summary, "qps", requests, duration_s)
    _require_agreement(summary, "tps", tokens, duration_s)
    values = {"throughput": requests / duration_s}
    if tokens and requests:
        values["tokens_per_second"] = tokens / duration_s
        values["tokens_per_sample"] = tokens / requests
    for base in LATENCIES:
        block = _distribution(summary, base, "ns")
        for percent in PERCENTILES:
            value = block.percentile(percent)
            if value is not None:
                values[f"{base}_p{percent:.0f}"] = value / 1e9
    for name, value in values.items():
        if MIN_RATE <= value <= MAX_RATE:
            metrics[name] = value
        elif requests:
            shown_value = quantity(name, value)
            notes.append(f"{name} is left out: by the client's time stamps it is {shown_value}")
    if "tpot_p90" in metrics:
        metrics["tps_per_user"] = 1 / metrics["tpot_p90"]
    return metrics, tuple(notes)


def _length_se(summary: _Block, requests: int) -> float:
    lengths = _distribution(summary, "output_sequence_lengths", "tokens")
    mean, deviation = lengths.number("avg"), lengths.number("std_dev")
    if not mean or not deviation or requests < 2 or min(mean, deviation) < 0:
        return 0.0
    return deviation / mean / math.sqrt(requests)


def _require_agreement(summary: _Block, key: str, amount: float | None, duration_s: float) -> None:
    stated = summary.number(key)
    if stated is None or amount is None:
        return
    if not math.isclose(stated, amount / duration_s, rel_tol=RATE_SLACK_SHARE):
        raise summary.wrong(
            key,
            f"is {stated:.6g}, but the counts give {amount:,.0f} / {duration_s:.6g} s = "
            f"{amount / duration_s:.6g}: the unit differs, or the file was changed",
        )


def _failures(summary: _Block, config: Mapping[str, str], concurrency: int) -> Iterator[Reason]:
    """Yield reasons why a run is invalid: it is incomplete or lost requests.

    An interrupted run is marked complete, but issued fewer requests than configured; a run that
    ended by its time limit leaves its requests in flight unanswered.
    """
    state = summary.raw.get("state")
    if state != "complete" or summary.raw.get("complete") is not True:
        yield Reason.of(Key.NOT_COMPLETE, "not_complete", state=quoted(state))
    issued, completed = summary.count("n_samples_issued"), summary.count("n_samples_completed")
    configured = _float(config.get("settings.runtime.n_samples_to_issue", ""))
    limited = any(k.startswith("settings.runtime.max_") and v != "0" for k, v in config.items())
    if issued < configured and not limited:
        yield Reason.of(Key.NOT_COMPLETE, "ended_early", count=issued, of=round(configured))
    succeeded, open_at_end = summary.number("n_samples_succeeded"), issued - completed
    if limited and open_at_end <= concurrency:
        open_at_end = 0
    lost = {
        "failed": summary.count("n_samples_failed"),
        "were dropped": summary.number("n_samples_dropped") or 0,
        "did not end": open_at_end,
        "did not succeed": 0 if succeeded is None else completed - succeeded,
    }
    for words, count in lost.items():
        if count:
            values = {"count": round(count), "of": issued, "how": words}
            yield Reason.of(Key.REQUESTS_FAILED, "requests_lost", **values)
            return


def _doubts(
    summary: _Block, concurrency: int, requests: int, duration_s: float
) -> Iterator[Reason]:
    least = max(MIN_REQUESTS, MIN_SLOT_REQUESTS * concurrency)
    latency = _distribution(summary, "latency", "ns").number("avg")
    if requests < least or not duration_s or not latency:
        values = {"count": requests, "duration_s": duration_s, "needed": least}
        yield Reason.of(Key.TOO_FEW_REQUESTS, "few_requests", **values)
        return
    under_way = requests * latency / 1e9 / duration_s
    if abs(under_way / concurrency - 1) > CONCURRENCY_SLACK_SHARE:
        values = {"seen": under_way, "of": concurrency}
        yield Reason.of(Key.CONCURRENCY_NOT_HELD, "not_held_by_rate", **values)


# --- events.jsonl --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RecordedEvents:
    """Hold the times of a run's performance phase [ns], by a monotonic clock.

    Attributes:
        completed_ns: End of each request.
        warm_ns: Length of the warm-up before the phase.
    """

    begin_ns: int
    end_ns: int
    completed_ns: tuple[int, ...]
    warm_ns: int


def read_events(folder: Path) -> RecordedEvents:
    """Read begin and end of the performance phase of a run, and the end of each request."""
    edges, completed = dict[str, int](), list[int]()
    for event in events_of(folder, b'"session.', b'"sample.complete"'):
        kind, at_ns = event.get("event_type"), event.get("timestamp_ns")
        if not isinstance(at_ns, int) or not isinstance(kind, str):
            raise MlperfError(f"{folder / EVENTS_FILE}: an event has no time: {quoted(event)}")
        if kind.startswith("session."):
            edges[kind] = at_ns
        else:
            completed.append(at_ns)
    begin_ns, end_ns = edges.get(START_EVENT, 0), edges.get(END_EVENT, 0)
    if not 0 < begin_ns < end_ns:
        lost = [event for event in (START_EVENT, END_EVENT) if event not in edges]
        defect = f"has no event {' or '.join(lost)}" if lost else f"{END_EVENT} is not the later"
        raise MlperfError(f"{folder / EVENTS_FILE}: {defect}; the run is incomplete: measure again")
    inside = tuple(at_ns for at_ns in completed if begin_ns <= at_ns <= end_ns)
    return RecordedEvents(
        begin_ns=begin_ns,
        end_ns=end_ns,
        completed_ns=inside,
        warm_ns=begin_ns - min(edges.values()),
    )


def events_of(folder: Path, *kinds: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of a run folder whose lines contain one of these words."""
    path = folder / EVENTS_FILE
    try:
        for line in lines_of(path, MAX_EVENT_LINE_BYTES):
            if not any(kind in line for kind in kinds):
                continue
            event = parse_json(line)
            if not isinstance(event, dict):
                raise ValueError("an event is not an object")
            yield event
    except OSError as error:
        raise MlperfError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise MlperfError(f"{path}: incomplete, or not events of endpoints: {error}") from None


def accuracy_records(folder: Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """Return (samples by data set and request id, events of sent requests and of answers).

    Raises MlperfError if a file is missing or malformed; for the events when they are read.
    """
    for name in (SAMPLES_FILE, EVENTS_FILE):
        if not (folder / name).exists():
            raise MlperfError(
                f"{folder}: has no {name}, so answers cannot be matched to samples, and scores "
                "cannot be judged"
            )
    path = folder / SAMPLES_FILE
    samples = _Block(path, read_foreign(path, RESULT_TITLE), "").raw
    return samples, events_of(folder, b'"sample.issued"', b'"sample.complete"')


# --- accuracy_results.json -----------------------------------------------------------------


def _client_accuracy(folder: Path, path: Path) -> tuple[tuple[Reason, ...], tuple[str, ...]]:
    """Return reasons to reject the run (lost answers), and texts with the client's own scores."""
    advice = "not judged here; a suite with engine recorded scores the answers, sample by sample"
    if missing := [name for name in (EVENTS_FILE, SAMPLES_FILE) if not (folder / name).exists()]:
        names = " and ".join(missing)
        advice = f"not judged: without {names} answers cannot be matched to samples"
    entries = _Block(path, read_foreign(path, RESULT_TITLE), "").raw.get("accuracy_scores")
    if not isinstance(entries, list):
        raise MlperfError(f"{path}: accuracy_scores must be a list, not {quoted(entries)}")
    invalid, notes = [], []
    for number, raw in enumerate(entries):
        entry = _Block(path, raw, f"accuracy_scores[{number}]")
        name, counts = quoted(str(raw.get("dataset_name"))), entry.block("response_counts")
        lost = {key: int(counts.number(key) or 0) for key in ("empty", "missing")}
        if any(lost.values()) or raw.get("complete") is False:
            counted = ", ".join(f"{count:,} {key}" for key, count in lost.items() if count)
            values = {"dataset": name, "counts": counted}
            invalid.append(Reason.of(Key.ANSWERS_MISSING, "answers_missing", **values))
        score, of = raw.get("score"), entry.number("total_samples") or 0
        is_number = isinstance(score, int | float)  # ROUGE has a table of scores
        text = f"{entry.number('score'):.4g}" if is_number else quoted(score)
        notes.append(f"accuracy by the client: {name} {text} on {of:,.0f} samples, {advice}")
    return tuple(invalid), tuple(notes)
