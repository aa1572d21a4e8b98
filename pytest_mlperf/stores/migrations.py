"""Convert the content of a results file to the next schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_mlperf.stores.foreign import Migration

Places = Mapping[str, str]
"""New key by former key: "key", or "group.key" for a key in a nested object."""

VERDICT_PLACES: Places = {
    "baseline_file": "baseline.file",
    "baseline_set": "baseline.source",
    "baseline_id": "baseline.id",
    "changed": "baseline.changed",
    "unknown": "baseline.unknown",
    "promise": "baseline.guarantee",
    "folder": "logs.folder",
    "log": "logs.file",
    "log_tail": "logs.tail",
    "turns": "interleaved",
}
METRIC_PLACES: Places = {
    "baseline": "baseline.value",
    "runs_baseline": "baseline.runs",
    "sessions_baseline": "baseline.days",
    "detectable": "baseline.detectable",
    "lacking": "baseline.lacks",
    "sessions": "baseline.sessions",
    "leans": "direction",
    "holds_to": "robust_to",
    "stands": "robust",
    "strays": "outliers",
    "looks": "analyses",
}
RUN_PLACES: Places = {
    "power": "energy.nvml",
    "wall": "energy.meter",
    "exported": "energy.exporter",
    "host": "energy.host",
    "power_unknown": "energy_unknown",
    **{name: f"load.{name}" for name in ("client", "contention", "waited_s")},
    **{name: f"hardware.{name}" for name in ("state", "control", "gpus", "warmed")},
    "machine": "hardware.ids",
    **{n: f"serving.{n}" for n in ("server", "requests", "lengths", "finishes", "salt")},
}
ENERGY_PLACES: Places = {
    "by_gpu": "parts",
    "by_domain": "parts",
    "gpus": "devices",
    "source": "method",
}


def rename_keys(content: Any, new_keys: Places) -> Any:
    """Rename keys of a JSON object ("GROUP.NAME" into object GROUP); return other content as is."""
    if not isinstance(content, dict):
        return content
    present: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in content.items():
        group, _, name = new_keys.get(key, key).rpartition(".")
        (groups.setdefault(group, {}) if group else present)[name] = value
    return {**present, **groups}


def _in_each(content: Any, key: str, change: Callable[[Any], Any]) -> Any:
    if not isinstance(content, dict) or not isinstance(content.get(key), list):
        return content
    return {**content, key: [change(item) for item in content[key]]}


def _verdicts(content: Any, change: Callable[[Any], Any]) -> Any:
    def changed(case: Any) -> Any:
        verdict = isinstance(case, dict) and "verdict" in case
        return {**case, "verdict": change(case["verdict"])} if verdict else case

    return _in_each(content, "cases", changed)


def _to_2(content: dict[str, Any]) -> Any:
    def changed(verdict: Any) -> Any:
        return _in_each(
            rename_keys(verdict, VERDICT_PLACES),
            "metrics",
            lambda metric: rename_keys(metric, METRIC_PLACES),
        )

    return _verdicts(content, changed)


def _to_3(content: dict[str, Any]) -> Any:
    def changed(verdict: Any) -> Any:
        for key in ("runs", "invalid_runs"):
            verdict = _in_each(verdict, key, _run)
        return verdict

    return _verdicts(content, changed)


def _run(content: Any) -> Any:
    run = rename_keys(content, RUN_PLACES)
    if not isinstance(run, dict) or not isinstance(run.get("energy"), dict):
        return run
    energy = {
        source: {**rename_keys(reading, ENERGY_PLACES), "source": source}
        if isinstance(reading, dict)
        else reading
        for source, reading in run["energy"].items()
        if reading is not None
    }
    return {**run, "energy": energy}


MIGRATIONS: Mapping[int, Migration] = {1: _to_2, 2: _to_3}
"""Function to the next schema, by older schema."""
