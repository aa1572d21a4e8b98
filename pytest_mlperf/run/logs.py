"""Read LoadGen's log files; an incomplete log is an error."""

from __future__ import annotations

import datetime as dt
import math
import re
import reprlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_mlperf.core.case import Scenario
from pytest_mlperf.core.errors import RunError
from pytest_mlperf.core.untrusted import parse_json
from pytest_mlperf.run.worker.clocks import QUANTILES
from pytest_mlperf.stores.foreign import MAX_LOG_BYTES, UnfitError, read_regular

if TYPE_CHECKING:
    from pytest_mlperf.core.reason import Reason

DETAIL = "mlperf_log_detail.txt"

PREFIX = ":::MLLOG "

FULL_BYTES = 1 << 20
"""Free space below which the message about a cut log names the full disk."""
END_KEY = {"AccuracyOnly": "power_end"}
"""Last key of a complete log by test mode; "num_errors" in all others.

Only warnings may follow it: LoadGen logs one when a thread that completed many samples ended early.
An accuracy run has no "num_errors"; the end of the accuracy log also shows whether it is complete.
"""

COUNTS_ERRORS = (5, 0, 16)
"""First version of LoadGen that writes "num_errors"."""

LAST_TIME, LAST_RATE = (
    "result_99.90_percentile_latency_ns",
    re.compile(r"result_(inferred_)?(completed_)?tokens_per_second"),
)
"""Last keys of older performance logs: the last percentile, or the token rate if tokens were
counted, by answers or, for GPT-J, by LoadGen itself."""

_RELEASE = re.compile(r"v?([0-9]{0,9}(?:\.[0-9]{1,9})+)")
"""Leading numbers of a LoadGen version: "6.0.17", "v0.5", ".5a1"."""

_NUMBERS_AS_TEXT = re.compile(
    r"num_errors|(?:result|effective|requested|generated|early_stopping)_\w[\w.]*"
)
"""Keys whose numbers some LoadGens of v2.0 and v2.1 wrote in quotes."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,29})(?:\.[0-9]{1,30})?(?:[eE][-+]?[0-9]{1,3})?")

CLOCK = "%m-%d-%Y %H:%M:%S.%f"
"""Format of LoadGen's power_begin and power_end, in UTC."""

KEPT_ERRORS = 20
"""Maximum number of error texts; `Detail.num_errors` counts all."""

Timed = Literal["latency", "query_latency", "ttft", "tpot"]


class TimedLog(Protocol):
    """Define a log that states when the timed part of a run began and ended."""

    @property
    def window_s(self) -> tuple[float, float]:
        """Begin and end of the timed part, seconds since the epoch."""
        ...


_PERCENTILE_KEYS: dict[Timed, str] = {
    "latency": "result_{}_percentile_latency_ns",
    "query_latency": "result_{}_percentile_per_query_latency_ns",
    "ttft": "result_first_token_{}_percentile_latency_ns",
    "tpot": "result_time_per_output_token_{}_percentile_ns",
}

_LOGGED_PERCENTILES = (0.5, 0.9, 0.95, 0.97, 0.99, 0.999)

_THROUGHPUT_KEYS = {
    Scenario.OFFLINE: ("result_samples_per_second", "result_tokens_per_second"),
    Scenario.SERVER: ("result_completed_samples_per_sec", "result_completed_tokens_per_second"),
    Scenario.SINGLE_STREAM: (None, "result_completed_tokens_per_second"),
    Scenario.MULTI_STREAM: (None, "result_completed_tokens_per_second"),
}


def _wall_s(text: str) -> float:
    return dt.datetime.strptime(text, CLOCK).replace(tzinfo=dt.UTC).timestamp()


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < 2**64


def _is_rate(value: object) -> bool:
    """Check that a value is a number, or None: LoadGen's rate of a single query is undefined."""
    return value is None or type(value) is float or _is_whole(value)


def _is_time(value: object) -> bool:
    try:
        return type(value) is str and math.isfinite(_wall_s(value))
    except (ValueError, OverflowError):
        return False


_TYPES: tuple[tuple[re.Pattern[str], Callable[[Any], bool], str], ...] = (
    (re.compile("num_errors|result_query_count"), lambda v: _is_whole(v) and v >= 0, "a count"),
    (re.compile(r"result_.*_percentile_\w*ns|result_min_latency_ns"), _is_whole, "whole ns"),
    (re.compile(r"result_\w+_(samples|tokens)_per_sec(ond)?"), _is_rate, "a number"),
    (re.compile("result_(samples|tokens)_per_second"), _is_rate, "a number"),
    (re.compile(r"result_\w+_met|early_stopping_met"), lambda v: type(v) is bool, "true or false"),
    (re.compile("effective_test_mode|loadgen_version"), lambda v: type(v) is str, "a text"),
    (re.compile("power_begin|power_end"), _is_time, "a time as 12-31-2025 23:59:59.123"),
)
"""Checks of the values that this package reads, by key."""


@dataclass(frozen=True, kw_only=True)
class Detail:
    """Hold LoadGen's `mlperf_log_detail.txt`; `values` has the last value of each key."""

    path: str
    values: Mapping[str, Any]
    errors: tuple[str, ...]
    num_errors: int
    invalid_reasons: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """Whether LoadGen's result is VALID; the result of an accuracy run never is."""
        return bool(self.values.get("result_validity") == "VALID")

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Reasons why LoadGen rejects the run; empty if it accepts it."""
        # A worker in another Python loads this module, and need not have pydantic.
        from pytest_mlperf.core.reason import Key, Reason

        reasons = []
        if not self.valid:
            texts = "; ".join(self.invalid_reasons)
            reasons.append(Reason.of(Key.LOADGEN, "invalid_by_loadgen", reasons=texts))
        if self.num_errors:
            reasons.append(Reason.of(Key.LOADGEN, "loadgen_errors", count=self.num_errors))
        return tuple(reasons)

    @property
    def window_s(self) -> tuple[float, float]:
        """Begin and end of the timed part in wall clock, seconds since the epoch."""
        if missing := {"power_begin", "power_end"} - self.values.keys():
            raise RunError(
                "loadgen",
                f"{self.path} has no {' and no '.join(sorted(missing))}, so the begin or end of "
                "the timed part is unknown",
                self.path,
            )
        return _wall_s(self.values["power_begin"]), _wall_s(self.values["power_end"])

    def require_no_errors(self) -> None:
        """Raise RunError if LoadGen logged errors; its result may be VALID nevertheless."""
        if self.num_errors:
            first = self.errors[0] if self.errors else "not named"
            raise RunError(
                "loadgen", f"LoadGen logged {self.num_errors} errors, first: {first}", self.path
            )

    def percentile_ns(self, timed: Timed, percentile: float) -> int | None:
        """Return this percentile of `timed` [ns], or the next higher logged; None if none is."""
        logged_above = (logged for logged in _LOGGED_PERCENTILES if logged >= percentile - 1e-9)
        value: int | None = self.values.get(
            _PERCENTILE_KEYS[timed].format(f"{100 * next(logged_above, 0.999):.2f}")
        )
        return value

    def metrics(self, scenario: Scenario) -> dict[str, float]:
        """Return the metrics of a performance run by name, in SI units."""
        samples_key, tokens_key = _THROUGHPUT_KEYS[scenario]
        metrics: dict[str, float] = {}
        if samples_key is not None:
            metrics["throughput"] = self._number(samples_key)
        if tokens_key in self.values:
            metrics["tokens_per_second"] = self._number(tokens_key)
        if scenario == Scenario.OFFLINE:
            return metrics
        multi = scenario == Scenario.MULTI_STREAM
        times: dict[str, Timed] = {"latency": "query_latency" if multi else "latency"}
        if tokens_key in self.values:
            times |= {"ttft": "ttft", "tpot": "tpot"}
        for name, timed in times.items():
            for label, percentile in QUANTILES.items():
                key = _PERCENTILE_KEYS[timed].format(f"{100 * percentile:.2f}")
                metrics[f"{name}_{label}"] = self._number(key) / 1e9
        return metrics

    def _number(self, key: str) -> float:
        value = self.values.get(key)
        if value is None or not 0 < value < math.inf:
            raise RunError(
                "loadgen", f"{key} is {value!r} in {self.path}; it must be positive", self.path
            )
        return float(value)


def parse_detail(path: Path) -> Detail:
    """Parse LoadGen's detail log."""
    return parse_text(path, _read(path))


def parse_text(path: Path, content: str, *, old: bool = False) -> Detail:
    """Parse the text of a detail log; messages name its `path`.

    `old` also accepts logs of old LoadGen releases, which have no error count and quote numbers.
    """
    values: dict[str, Any] = {}
    errors: list[str] = []
    reasons: list[str] = []
    last = None
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.startswith(PREFIX):
            continue
        key, value, metadata = _entry(path, number, line, old=old)
        values[key] = value
        if key == "result_invalid_reason" and value:
            reasons.append(" ".join(_shown(value).split()))
        elif metadata["is_error"]:
            errors.append(_shown(value))
        if metadata.get("is_warning") is not True:
            last = key
    _require_end(path, values, last, old=old)
    return Detail(
        path=str(path),
        values=values,
        errors=tuple(errors[:KEPT_ERRORS]),
        num_errors=max(values.get("num_errors", 0), len(errors)),
        invalid_reasons=tuple(reasons),
    )


def _require_end(path: Path, values: Mapping[str, Any], last_key: str | None, *, old: bool) -> None:
    """Raise RunError unless a log ends with LoadGen's end key, which `old` releases may lack."""
    end = END_KEY.get(values.get("effective_test_mode", ""), "num_errors")
    if last_key == end:
        return
    version = str(values.get("loadgen_version", "")).split(" ")[0]
    numbers = _RELEASE.match(version)  # (0, 5) of ".5a1"
    written = tuple(int(part or 0) for part in numbers[1].split(".")) if numbers else ()
    if end in values:
        problem = (
            f"continues with {last_key!r} after {end!r}, which ends a log: it holds more than one "
            "run, or was changed"
        )
    elif end == "num_errors" and written and written < COUNTS_ERRORS and old:
        rated = last_key and LAST_RATE.fullmatch(last_key)
        if rated or (last_key == LAST_TIME and not values.get("requested_use_token_latencies")):
            return  # complete: these releases had no end key
        problem = (
            f"is truncated: LoadGen {version} ends it with {LAST_TIME!r} or a token rate, but "
            f"the last key is {last_key!r}; the run did not end normally"
        )
    elif end == "num_errors" and written and written < COUNTS_ERRORS:
        first = ".".join(map(str, COUNTS_ERRORS))
        problem = (
            f"was written by LoadGen {version}, which does not write an error count, so it is "
            f"unknown whether the log is complete; LoadGen {first} and newer end it with {end!r}"
        )
    else:
        problem = (
            f"is truncated: LoadGen ends it with {end!r}, but the last key is {last_key!r}; the "
            "run did not end normally"
        )
    raise RunError("loadgen", f"{path} {problem}{_disk_cause(path)}", str(path))


def _disk_cause(path: Path) -> str:
    """Return a note if the disk is full, which explains a damaged log; else ""."""
    free = shutil.disk_usage(path.parent).free
    if free >= FULL_BYTES:
        return ""
    return f"; the disk is full ({free >> 10:,} KiB free); free some space and run again"


def _entry(path: Path, number: int, line: str, *, old: bool) -> tuple[str, Any, Mapping[str, Any]]:
    """Parse a line of a LoadGen log to key, value, metadata; `old`: numbers may be text."""
    try:
        entry = parse_json(line[len(PREFIX) :])
        key, value, metadata = str(entry["key"]), entry["value"], entry["metadata"]
        metadata["is_error"]
    except (ValueError, KeyError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        text = f"{path}:{number} is not an entry of LoadGen's log: {reason}{_disk_cause(path)}"
        raise RunError("loadgen", text, str(path)) from error
    quoted = old and type(value) is str and _NUMBERS_AS_TEXT.fullmatch(key)
    if quoted and _NUMBER.fullmatch(value):
        value = parse_json(value)
    for keys, fits, words in _TYPES:
        if keys.fullmatch(key) and not fits(value):
            damage = f"{path}:{number} is damaged: {key} is {reprlib.repr(value)}, not {words}"
            raise RunError("loadgen", damage, str(path))
    return key, value, metadata


def _shown(value: object) -> str:
    return value if isinstance(value, str) else reprlib.repr(value)


def _read(path: Path) -> str:
    try:
        return read_regular(path, MAX_LOG_BYTES).decode("utf-8")
    except UnfitError as error:
        raise RunError(
            "loadgen", f"{path} cannot be read as a log: it is {error}", str(path)
        ) from None
    except OSError as error:
        raise RunError("loadgen", f"cannot read {path}: {error.strerror}", str(path)) from error
    except UnicodeDecodeError as error:
        raise RunError("loadgen", f"{path} is not UTF-8: {error.reason}", str(path)) from error
