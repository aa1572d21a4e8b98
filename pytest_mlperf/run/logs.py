"""Read LoadGen's log files; a log that is not complete is an error, never a result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_mlperf.core.errors import RunError

DETAIL = "mlperf_log_detail.txt"

PREFIX = ":::MLLOG "
LAST_KEY = {"AccuracyOnly": "power_end"}
"""The key LoadGen writes after everything else, by test mode; in all others it is "num_errors".

An accuracy run has no "num_errors"; whether it is whole shows in the accuracy log's end as well.
"""

KEPT_ERRORS = 20
"""Error texts kept; `Detail.num_errors` counts all."""

Timed = Literal["latency", "query_latency", "ttft", "tpot"]

_PERCENTILE_KEYS: dict[Timed, str] = {
    "latency": "result_{}_percentile_latency_ns",
    "query_latency": "result_{}_percentile_per_query_latency_ns",
    "ttft": "result_first_token_{}_percentile_latency_ns",
    "tpot": "result_time_per_output_token_{}_percentile_ns",
}

_LOGGED_PERCENTILES = (0.5, 0.9, 0.95, 0.97, 0.99, 0.999)

_THROUGHPUT_KEYS = {
    "Offline": ("result_samples_per_second", "result_tokens_per_second"),
    "Server": ("result_completed_samples_per_sec", "result_completed_tokens_per_second"),
    "SingleStream": (None, "result_completed_tokens_per_second"),
    "MultiStream": (None, "result_completed_tokens_per_second"),
}


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What `mlperf_log_detail.txt` says.

    Attributes:
        path: The file.
        values: The value of each key; of repeated keys the last.
        errors: The first errors LoadGen logged.
        num_errors: How many it logged.
        invalid_reasons: Why LoadGen says INVALID.
    """

    path: str
    values: Mapping[str, Any]
    errors: tuple[str, ...]
    num_errors: int
    invalid_reasons: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """LoadGen says VALID; an accuracy run never does."""
        return bool(self.values.get("result_validity") == "VALID")

    @property
    def perf_constraints_met(self) -> bool | None:
        """The latency limits of Server were met; None in other scenarios."""
        return self.values.get("result_perf_constraints_met")

    @property
    def min_duration_met(self) -> bool | None:
        """The run lasted as long as was asked for."""
        return self.values.get("result_min_duration_met")

    @property
    def min_queries_met(self) -> bool | None:
        """The run had as many queries as were asked for."""
        return self.values.get("result_min_queries_met")

    @property
    def early_stopping_met(self) -> bool | None:
        """There were queries enough for the percentile to be trusted."""
        return self.values.get("early_stopping_met")

    def require_no_errors(self) -> None:
        """Refuse a run during which LoadGen logged errors: it may call such a run VALID.

        Raises:
            RunError: There were errors.
        """
        if self.num_errors:
            first = self.errors[0] if self.errors else "not named"
            raise RunError(
                "loadgen", f"LoadGen logged {self.num_errors} errors, first: {first}", self.path
            )

    def percentile_ns(self, timed: Timed, percentile: float) -> int | None:
        """Return a logged percentile, the next higher one where this one is not logged."""
        known = (logged for logged in _LOGGED_PERCENTILES if logged >= percentile - 1e-9)
        value = self.values.get(_PERCENTILE_KEYS[timed].format(f"{100 * next(known, 0.999):.2f}"))
        return None if value is None else int(value)

    def metrics(self, scenario: str) -> dict[str, float]:
        """Return the metrics of a performance run, by the names of the metric table, SI units.

        Args:
            scenario: LoadGen's scenario.

        Raises:
            RunError: A figure the scenario must have is missing, or a time is not positive.
        """
        samples_key, tokens_key = _THROUGHPUT_KEYS[scenario]
        found: dict[str, float] = {}
        if samples_key is not None:
            found["throughput"] = self._number(samples_key)
        if tokens_key in self.values:
            found["tokens_per_second"] = self._number(tokens_key)
        if scenario == "Offline":
            return found
        latency: Timed = "query_latency" if scenario == "MultiStream" else "latency"
        for name, percentile in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            found[f"latency_{name}"] = self._time_s(latency, percentile)
        if tokens_key in self.values:
            for timed in ("ttft", "tpot"):
                for name, percentile in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
                    found[f"{timed}_{name}"] = self._time_s(timed, percentile)
        return found

    def _number(self, key: str) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise RunError(
                "loadgen", f"{key} is {value!r} in {self.path}; it must be positive", self.path
            )
        return float(value)

    def _time_s(self, timed: Timed, percentile: float) -> float:
        return self._number(_PERCENTILE_KEYS[timed].format(f"{100 * percentile:.2f}")) / 1e9


def parse_detail(path: Path) -> Detail:
    """Parse LoadGen's detail log.

    Raises:
        RunError: It is missing, damaged, or ends before its last key.
    """
    values: dict[str, Any] = {}
    errors: list[str] = []
    reasons: list[str] = []
    key = None
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if not line.startswith(PREFIX):
            continue
        key, value, is_error = _entry(path, number, line)
        values[key] = value
        if key == "result_invalid_reason" and value:
            reasons.append(" ".join(str(value).split()))
        elif is_error:
            errors.append(str(value))
    last = LAST_KEY.get(values.get("effective_test_mode", ""), "num_errors")
    if key != last:
        raise RunError(
            "loadgen",
            f"{path} is cut: LoadGen ends it with {last!r}, here the last key is {key!r}; "
            "the run did not end in order",
            str(path),
        )
    return Detail(
        path=str(path),
        values=values,
        errors=tuple(errors[:KEPT_ERRORS]),
        num_errors=int(values.get("num_errors", len(errors))),
        invalid_reasons=tuple(reasons),
    )


def _entry(path: Path, number: int, line: str) -> tuple[str, Any, bool]:
    try:
        entry = json.loads(line[len(PREFIX) :])
        return str(entry["key"]), entry["value"], bool(entry["metadata"]["is_error"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            "loadgen", f"{path}:{number} is no log entry of LoadGen: {error}", str(path)
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunError("loadgen", f"cannot read {path}: {error.strerror}", str(path)) from error
    except UnicodeDecodeError as error:
        raise RunError("loadgen", f"{path} is not UTF-8: {error.reason}", str(path)) from error
