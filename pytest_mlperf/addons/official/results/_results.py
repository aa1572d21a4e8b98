"""Read one result: value, system and runs, as they appear in the round's table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.results._folders import ResultPlace, Scenarios
from pytest_mlperf.addons.official.results._logs import is_summary, read_log
from pytest_mlperf.addons.official.results._power import power_of
from pytest_mlperf.addons.official.results._reading import object_of
from pytest_mlperf.addons.official.results._rounds import open_workload, since, workload_of
from pytest_mlperf.addons.official.results._values import round_of, value_of
from pytest_mlperf.addons.official.run_rules import least_settings, too_low
from pytest_mlperf.core.untrusted_text import quoted
from pytest_mlperf.extension import Scenario, duration
from pytest_mlperf.rounds import Round
from pytest_mlperf.rounds.published import OfficialResult
from pytest_mlperf.run.logs import Detail

NO_ACCELERATOR_NAMES = ("", "n/a", "none", "0")
MAX_ACCELERATORS = 1_000_000

PER_NODE = "accelerators_per_node"

PERFORMANCE_MODES = ("PerformanceOnly", "SubmissionRun")
"""SubmissionRun contains both runs; its logged results are the performance run's."""

MIN_SHARE = 0.99
"""Share of the minimum duration that a run must last: clocks may be set during it."""

_COUNTS = re.compile(r"\([0-9]{1,9}(, ?[0-9]{1,9})+\)")
"""Matches "(8,4)": nodes of eight accelerators and nodes of four."""

_CLASSIFIERS = re.compile(r"mobilenet|efficientnet|resnet50")
"""Models that the checker counts as ResNet-50 of the open division."""


@dataclass(frozen=True, kw_only=True)
class RecordedResult:
    """Hold a submitted result and its runs.

    Attributes:
        row: The result as a row of the round's table.
        logs: Logs of the performance runs; the first one is the reported run.
        framework: Software of the system's description: "TensorRT 10.2.0, CUDA 12.4".
        official: Whether the round's checker accepts the run's settings.
        unmeasured: Why the result cannot be part of a session; "" if it can.
        notes: Notes to show with the row.
    """

    place: ResultPlace
    row: OfficialResult
    logs: tuple[Detail, ...]
    framework: str
    official: bool
    unmeasured: str
    notes: tuple[str, ...]


def read_result(location: ResultPlace, workload: str | None = None) -> RecordedResult:
    """Read a result; a folder of logs needs `workload`; raise MlperfError for defects."""
    logs = tuple(read_log(run, location.root) for run in location.runs)
    log = logs[0]
    if log.values.get("effective_test_mode") not in PERFORMANCE_MODES:
        mode = quoted(log.values.get("effective_test_mode"))
        raise MlperfError(f"{log.path}: the mode is {mode}; a result needs PerformanceOnly")
    logged = str(log.values.get("effective_scenario"))
    scenario = location.scenario or Scenarios.get(logged.lower())
    if scenario is None:
        raise MlperfError(f"{log.path}: {quoted(logged)} is not a scenario of MLPerf")
    rules = round_of(log)
    model = _model(location, workload or location.model, rules)
    value = value_of(log, model, scenario, rules)
    power = power_of(location, log, scenario, rules)
    system = _system(location) if location.division else {}
    per_node, nodes = (_count(location, system, key) for key in (PER_NODE, "number_of_nodes"))
    product = _text(system, "accelerator_model_name")
    row = OfficialResult(
        round=rules.name if rules else "",
        division=location.division,
        category=_text(system, "system_type"),
        availability=_text(system, "status"),
        submitter=location.submitter,
        system=location.system,
        accelerator="" if product.lower() in NO_ACCELERATOR_NAMES else product,
        count=(per_node or 0) * max(1, nodes or 0),
        nodes=nodes or 0,
        model=model,
        used_model=""
        if model in (location.model, _official(location.model, rules))
        else location.model,
        scenario=scenario,
        value=value.value,
        unit=value.unit,
        statistic=value.statistic,
        inferred=value.inferred,
        harness="loadgen",
        precision=_precision(location) if location.division else "",
        samples_per_s=value.samples_per_s,
        power=power[0] if power else None,
        power_unit=power[1] if power else "",
    )
    broken = [*_broken_rules(log, model, scenario, rules, closed=location.division != "open")]
    notes = [*_notes(log, broken), power[2] if power else ""]
    if per_node is None:
        counts = quoted(system[PER_NODE])
        notes.append(f"{_system_file(location)}: {PER_NODE} is {counts}, not a number")
    return RecordedResult(
        place=location,
        row=row,
        logs=logs,
        framework=_text(system, "framework"),
        official=rules is not None and not broken,
        unmeasured=_unmeasured(logs, inferred=value.inferred, counted=per_node is not None),
        notes=tuple(filter(None, notes)),
    )


def _notes(log: Detail, broken_rules: Sequence[str]) -> Iterator[str]:
    if is_summary(log):
        yield f"{log.path}: the summary was read, as there is no detail log of JSON lines"
    if broken_rules:
        yield f"{log.path}: breaks the round's rules: {'; '.join(broken_rules)}"
    if (lasted_s := _lasted_s(log)) <= 0:
        order = f"power_end is {duration(-lasted_s)} before power_begin"
        yield f"{log.path}: {order if lasted_s else 'it lasted 0 s'}"


def _unmeasured(logs: Sequence[Detail], *, inferred: bool, counted: bool) -> str:
    reasons = {
        "derived from another scenario's run": inferred,
        "read from summaries, which have no time": not all(map(_timed, logs)),
        "whose logs end before they begin": any(_lasted_s(log) <= 0 for log in logs),
        "without a number of accelerators": not counted,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _timed(log: Detail) -> bool:
    return {"power_begin", "power_end"} <= log.values.keys()


def _lasted_s(log: Detail) -> float:
    begin_s, end_s = log.window_s if _timed(log) else (-math.inf, 0.0)
    return end_s - begin_s


def _broken_rules(
    log: Detail, model: str, scenario: Scenario, rules: Round | None, *, closed: bool
) -> Iterator[str]:
    """Yield the settings in a log that break rules of the round's checker."""
    workload = workload_of(rules, model)
    constants = workload.scenarios.get(scenario) if workload else None
    if rules and workload and constants:
        logged = log.values.get("effective_scenario")
        logged = Scenario.SERVER if scenario is Scenario.INTERACTIVE else logged
        least = least_settings(rules, workload, constants, str(logged), closed=closed)
        if not since(rules, "v4.1") and scenario == logged != Scenario.OFFLINE:
            least["min_query_count"] = constants.min_query_count
        yield from too_low(
            log.values, {key: low for key, low in least.items() if f"effective_{key}" in log.values}
        )
        if 0 < (lasted_s := _lasted_s(log)) < MIN_SHARE * constants.min_duration_ms / 1e3:
            least_s = constants.min_duration_ms / 1e3
            yield f"the run lasted {lasted_s:.3g} s; it must last at least {least_s:,.0f} s"


def _model(at: ResultPlace, name: str, rules: Round | None) -> str:
    """Return the workload's name as in the round's table."""
    if rules and rules.name == "v4.1" and at.division:
        return name
    official = _official(name, rules)
    if official is None and at.division == "open":
        mapped = _mapping(at.submission, at.root).get(name)
        official = _official(str(mapped), rules) if mapped else _guessed(name, rules)
    return official or name


def _guessed(name: str, rules: Round | None) -> str | None:
    if rules and (workload := open_workload(name, rules)):
        return workload
    if _CLASSIFIERS.search(name):
        return _official("resnet50", rules)
    names = rules.names if rules else ()
    ends = [one for one in names if name.endswith(f"-{one}")]
    return _official(max(ends, key=len), rules) if ends else None


def _official(name: str, rules: Round | None) -> str | None:
    workload = workload_of(rules, name)
    if workload is None:
        return None
    return name.replace(workload.name, workload.checker, 1) if name else None


@lru_cache(maxsize=256)
def _mapping(submission: Path, root: Path) -> Mapping[str, Any]:
    path = submission / "model_mapping.json"
    return object_of(path, root) if path.exists() else {}


_described = lru_cache(maxsize=256)(object_of)


def _system_file(at: ResultPlace) -> Path:
    return at.submission / "systems" / f"{at.system}.json"


def _system(at: ResultPlace) -> Mapping[str, Any]:
    path = _system_file(at)
    if not path.exists():
        raise MlperfError(f"{path} is missing; it must say which accelerators were used")
    return _described(path, at.root)


def _count(at: ResultPlace, system: Mapping[str, Any], key: str) -> int | None:
    text = str(system.get(key, "")).strip()
    if text.lower() in NO_ACCELERATOR_NAMES:
        return 0
    if _COUNTS.fullmatch(text):
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) > MAX_ACCELERATORS:
        raise MlperfError(f"{_system_file(at)}: {key} is {quoted(text)}, not a whole number")
    return int(text)


def _text(described: Mapping[str, Any], key: str) -> str:
    value = described.get(key)
    return " ".join(value.split()) if isinstance(value, str) else ""


def _precision(at: ResultPlace) -> str:
    inside = at.folder / "measurements.json"
    folder = at.submission / "measurements" / at.system / at.model / at.folder.name
    files = [inside] if inside.exists() else sorted(folder.glob(f"{at.system}*.json"))
    described = object_of(files[0], at.root) if files else {}
    types = described.get("weight_data_types")
    return str(types) if isinstance(types, dict) else _text(described, "weight_data_types")
