"""What LoadGen says of a run, beside what was seen of its client and of its machine."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.bench import energy_notes
from pytest_mlperf.core.energy.host import Counted
from pytest_mlperf.core.energy.readings import Reading
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import RESOURCES
from pytest_mlperf.core.reason import Key
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.run.conditions import Conditions, ControlRun
from pytest_mlperf.run.figures import Figures
from pytest_mlperf.run.logs import DETAIL
from pytest_mlperf.run.reading import Evidence, read_run, untimed_input
from tests.run.harness import entry, result_of, settings
from tests.run.test_figures import QUERIES, RATE, SEEN, SERVED, job

MISSED = {
    "result_validity": "INVALID",
    "result_perf_constraints_met": False,
    "result_min_duration_met": True,
    "result_min_queries_met": True,
    "early_stopping_met": False,
}
"""What LoadGen logs of a run of Server whose queries were late."""

LATE = {"issue_p99": 0.0, "loop_p99": 0.04}
"""Of a latency of 50 ms: this client was measured, not its server."""

BUSY = {**SEEN, "foreign_s": 18.0, "waited_s": 8.0, "own_s": 1.0}


def evidence(
    folder: Path, result: dict[str, Any], *, input_s: float | None = None, **changes: Any
) -> Evidence:
    """Return what is left of a run whose log lies in a folder."""
    usual: dict[str, Any] = {
        "settings": settings("Server"),
        "loaded": {
            "event": "loaded",
            "engine": {},
            "load_s": 12.5,
            "dataset": {"sizes": {}, "input_s": input_s},
        },
        "finished": {"event": "finished", "folder": str(folder), "result": result},
        "subject": Subject(identity={}, fingerprint={}),
        "target_qps": 12.5,
        "started": "2026-01-01T00:00:00+00:00",
        "power": None,
        "warm_s": 0.0,
        "control": ControlRun(),
        "warmed": None,
        "notes": (),
    }
    return Evidence(**{**usual, **changes})


def read(
    folder: Path,
    values: dict[str, Any],
    *,
    host: dict[str, Counted] | None = None,
    build_s: float | None = None,
    input_s: float | None = None,
    **seen: Any,
) -> Run:
    """Read a run of Server with this log, of which this was seen besides."""
    entries = {**RATE, **QUERIES, **values, "num_errors": 0}
    (folder / DETAIL).write_text("".join(map(entry, entries, entries.values())), "utf-8")
    result = result_of(peak_bytes=3 * 2**30, **seen)
    here = detect(gpus=False)
    conditions = Conditions(folder=folder, session="s", machine=here, watched=True)
    told = evidence(folder, result, host=host or {}, build_s=build_s, input_s=input_s)
    run = read_run(told, job(folder, SERVED), conditions)
    assert run is not None
    return run


def test_what_the_host_used_stands_beside_and_is_in_no_metric(tmp_path: Path) -> None:
    window = {"power_begin": "01-01-2026 00:00:10.000", "power_end": "01-01-2026 00:00:20.000"}
    began_s = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()
    readings = (Reading(time_s=began_s + n, value=130.0 * n) for n in range(31))
    counted = Counted(range_j=65e3, readings=tuple(readings))
    run = read(tmp_path, {**MISSED, **window}, host={"package-0": counted})
    plain = read(tmp_path, {**MISSED, **window})

    assert run.host is not None
    assert run.host.joules == pytest.approx(1300.0)
    assert run.metrics == plain.metrics
    assert energy_notes([run]) == [
        "1,300 J (± 0) in 10.0 s, 130 W: the host's processors and memory by RAPL, beside the "
        "GPUs and in no metric"
    ]
    assert (plain.host, energy_notes([plain])) == (None, [])


def test_a_missed_limit_is_no_invalid_run_and_early_stopping_has_a_key_of_its_own(
    tmp_path: Path,
) -> None:
    """A search goes on below a rate that is only stopped early, and reads no log for it."""
    cases: list[dict[str, Any]] = [{}, {"client": LATE}, {"contention": BUSY}]
    for seen in cases:
        run = read(tmp_path, MISSED, **seen)
        assert run.invalid == ()
        assert run.limit_missed

    early = {"early_stopping_met": False}
    for values, key in (
        (early, Key.EARLY_STOPPING),
        ({**early, "result_min_duration_met": True}, Key.EARLY_STOPPING),
        ({**early, "result_min_duration_met": False}, Key.LOADGEN),
        ({**early, "result_min_queries_met": False}, Key.LOADGEN),
        ({"early_stopping_met": True}, Key.LOADGEN),
        ({}, Key.LOADGEN),
    ):
        run = read(tmp_path, {"result_validity": "INVALID", **values})
        assert {reason.key for reason in run.invalid} == {key}
        assert not run.limit_missed


def test_every_witness_fills_in_fields_of_the_run(tmp_path: Path) -> None:
    run = read(tmp_path, {"result_validity": "VALID", "result_query_count": 120}, contention=SEEN)
    assert (run.samples, run.queries, run.duration_s, run.target_qps) == (125, 120, 10.0, 12.5)
    assert run.metrics["latency_p99"] == 0.05
    assert run.contention is not None
    assert (run.power, run.wall, run.light, run.zero) == (None, None, (), ())

    built, plain = read(tmp_path, MISSED, build_s=600.0), read(tmp_path, MISSED)
    taken = {name: value for name, value in built.metrics.items() if name in RESOURCES}
    assert taken == {"peak_host_memory": 3.0 * 2**30, "load_time": 12.5, "build_time": 600.0}
    assert "build_time" not in plain.metrics


def test_preprocessing_that_nobody_times_is_told_from_a_tenth_of_a_sample_on() -> None:
    """Of a batch, a query of several samples or a curve by what one sample takes; never of µs."""
    one, batch, many = {"latency_p50": 0.002}, {"throughput": 12.5}, {"latency_p50": 0.08}
    server = {"latency_p50": 0.05, "throughput": 1000.0}
    curve = {"latency_p50@1": 0.1, "latency_p50@64": 0.9}
    cases: list[tuple[str, dict[str, float], float | None, str]] = [
        ("SingleStream", one, 1.1e-3, "1.1 ms a sample, untimed; the engine 2 ms"),
        ("SingleStream", one, 0.19e-3, ""),
        ("SingleStream", one, None, ""),
        ("SingleStream", {"latency_p50": 1e-6}, 9e-6, ""),
        ("Server", server, 5.1e-3, "the engine 50 ms"),
        ("Server", server, 4.9e-3, ""),
        ("MultiStream", many, 1.1e-3, "the engine 10 ms"),
        ("MultiStream", many, 0.9e-3, ""),
        ("Offline", batch, 9e-3, "the engine 80 ms"),
        ("Offline", batch, 7e-3, ""),
        ("Concurrency", curve, 0.011, "the engine 100 ms"),
        ("Concurrency", curve, 0.009, ""),
    ]
    for scenario, metrics, input_s, text in cases:
        figures = Figures(metrics=metrics, samples=125, queries=125, duration_s=10.0)
        found = untimed_input(input_s, settings(scenario), figures)
        assert [text in note for note in found.notes] == [True] * bool(text)
        assert found.notes == tuple(sign.text for sign in found.signs)


def test_untimed_preprocessing_is_noted_once_for_all_runs(tmp_path: Path) -> None:
    valid = {"result_validity": "VALID", "result_query_count": 120}
    runs = [read(tmp_path, valid, input_s=input_s) for input_s in (0.02, 0.021)]

    (note,) = [note for note in energy_notes(runs) if "untimed" in note]

    assert note == (
        "input() took 21 ms a sample, untimed; the engine 50 ms: docs/own-model.md says how "
        "to time preprocessing"
    )
