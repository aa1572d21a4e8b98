"""Test LoadGen's figures of a run, with the observations of its client and its machine."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf.bench.bench import energy_notes
from pytest_mlperf.core.energy import Source
from pytest_mlperf.core.energy.exporter import ExportedGpu, ExporterLook
from pytest_mlperf.core.energy.host import Counted
from pytest_mlperf.core.energy.readings import Reading
from pytest_mlperf.core.measurement import Run, Subject
from pytest_mlperf.core.metrics import RESOURCES
from pytest_mlperf.core.reason import Key
from pytest_mlperf.hardware.machine import detect
from pytest_mlperf.reports.sentences import sentence
from pytest_mlperf.run.conditions import Conditions, ControlRun
from pytest_mlperf.run.figures import Figures
from pytest_mlperf.run.logs import DETAIL
from pytest_mlperf.run.power._gpu import GpuLog
from pytest_mlperf.run.power.exporter import ExporterLog
from pytest_mlperf.run.power.figures import Meter, sampled
from pytest_mlperf.run.power.sampling import PowerLog
from pytest_mlperf.run.reading import (
    Evidence,
    TimedWindow,
    energy_findings,
    read_run,
    untimed_input,
)
from tests.run.harness import entry, result_of, settings
from tests.run.sentences import notes_of
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
    run_evidence = evidence(folder, result, host=host or {}, build_s=build_s, input_s=input_s)
    run = read_run(run_evidence, job(folder, SERVED), conditions)
    assert run is not None
    return run


def test_the_hosts_use_is_recorded_and_in_no_metric(tmp_path: Path) -> None:
    window = {"power_begin": "01-01-2026 00:00:10.000", "power_end": "01-01-2026 00:00:20.000"}
    began_s = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()
    readings = (Reading(time_s=began_s + n, value=130.0 * n) for n in range(31))
    counted = Counted(range_j=65e3, readings=tuple(readings))
    run = read(tmp_path, {**MISSED, **window}, host={"package-0": counted})
    plain = read(tmp_path, {**MISSED, **window})

    assert run.energy[Source.HOST].joules == pytest.approx(1300.0)
    assert run.metrics == plain.metrics
    assert energy_notes([run]) == [
        "1,300 J (± 0) in 10.0 s, 130 W: the host's processors and memory by RAPL, beside the "
        "GPUs and in no metric"
    ]
    assert (plain.energy, energy_notes([plain])) == ({}, [])


def test_a_missed_limit_does_not_make_a_run_invalid_and_early_stopping_has_its_own_key(
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
    assert run.load.contention is not None
    assert (run.energy.get(Source.NVML), run.energy.get(Source.METER), run.light, run.zero) == (
        None,
        None,
        (),
        (),
    )

    built, plain = read(tmp_path, MISSED, build_s=600.0), read(tmp_path, MISSED)
    taken = {name: value for name, value in built.metrics.items() if name in RESOURCES}
    assert taken == {"peak_host_memory": 3.0 * 2**30, "load_time": 12.5, "build_time": 600.0}
    assert "build_time" not in plain.metrics


def test_untimed_preprocessing_is_noted_from_a_tenth_of_a_sample_on() -> None:
    """For a batch, a query of several samples or a curve per sample; never for microseconds."""
    single, batch, many = {"latency_p50": 0.002}, {"throughput": 12.5}, {"latency_p50": 0.08}
    server = {"latency_p50": 0.05, "throughput": 1000.0}
    curve = {"latency_p50@1": 0.1, "latency_p50@64": 0.9}
    cases: list[tuple[str, dict[str, float], float | None, str]] = [
        (
            "SingleStream",
            single,
            1.1e-3,
            "1.1 ms per sample outside the timed part; the engine 2 ms",
        ),
        ("SingleStream", single, 0.19e-3, ""),
        ("SingleStream", single, None, ""),
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
        findings_of_input = untimed_input(input_s, settings(scenario), figures)
        assert [text in note for note in notes_of(findings_of_input)] == [True] * bool(text)
        assert notes_of(findings_of_input) == tuple(
            sentence(sign.text) for sign in findings_of_input.signs
        )


def test_untimed_preprocessing_is_noted_once_for_all_runs(tmp_path: Path) -> None:
    valid = {"result_validity": "VALID", "result_query_count": 120}
    runs = [read(tmp_path, valid, input_s=input_s) for input_s in (0.02, 0.021)]

    (note,) = [note for note in map(sentence, energy_notes(runs)) if "timed part" in note]

    assert note == (
        "input() took 21 ms per sample outside the timed part; the engine 50 ms: "
        "docs/own-model.md explains how to time preprocessing"
    )


class Load:
    """What a run's sampler, host, exporter and meter read of a steady load, by the wall clock."""

    def __init__(self, folder: Path, moved_s: float) -> None:
        self.timed = TimedWindow((1000.0, 1030.0 + moved_s))
        moments = [900 + n / 10 for n in range(2000)]
        trace = [Reading(time_s=t, value=300.0) for t in moments]
        counter = [Reading(time_s=t, value=300.0 * t) for t in moments]
        gpu = GpuLog(uuid="GPU-0", facts={"covers": True}, trace=trace, counter=counter)
        looks = [
            ExporterLook(time_s=t, gpus={"GPU-0": ExportedGpu(uuid="GPU-0", joules=300.0 * t)})
            for t in moments
        ]
        self.meter = folder / "meter.csv"
        self.meter.write_text("time,watts\n" + "".join(f"{1e9 + t},400\n" for t in moments))
        self.seen = evidence(
            folder,
            {},
            power=PowerLog(gpus=(gpu,), ended=True, offsets_s=(0.0, 0.0)),
            host={"package-0": Counted(range_j=1e9, readings=tuple(counter))},
            exporter=ExporterLog(looks=looks),
        )


@pytest.mark.parametrize("moved_s", [1.0, -1.0, 3600.0, -3600.0, 0.1])
def test_no_energy_is_known_of_a_window_in_which_the_wall_clock_was_set_or_slewed(
    tmp_path: Path, moved_s: float
) -> None:
    """It was set back before sampling ended, so that the clocks at both ends of that agree."""
    load = Load(tmp_path, moved_s)
    conditions = Conditions(
        folder=tmp_path,
        session="s",
        machine=detect(gpus=False),
        watched=True,
        meter=Meter(path=load.meter),
    )
    figures = Figures(samples=10, queries=10, duration_s=30.0)

    def findings(moved_s: float) -> list[Any]:
        arguments = load.seen, job(tmp_path, SERVED), conditions, load.timed, figures
        return energy_findings(*arguments, moved_s)

    power, host, displayed, wall = findings(moved_s)
    text = "the wall clock was set during the run"

    assert (power.energy.get(Source.NVML), power.energy_unknown.startswith(text)) == (None, True)
    for finding in (host, displayed, wall):
        (energy,) = finding.energy.values()
        assert (energy.joules, text in sentence(energy.notes[0])) == (None, True)
    assert not any(one.metrics for one in (power, host, displayed, wall))

    load = Load(tmp_path, 0.0)
    power, host, displayed, _ = findings(0.01)

    assert power.energy[Source.NVML].joules == pytest.approx(9000)
    assert host.energy[Source.HOST].joules == pytest.approx(9000)
    assert displayed.energy[Source.EXPORTER].joules == pytest.approx(9000)


@pytest.mark.parametrize(
    ("rate_hz", "notes"), [(5, ["GPUs were read at 5.0 Hz, not 50 Hz"]), (50, [])]
)
def test_a_run_whose_power_was_seldom_read_has_a_note_with_the_rate(
    rate_hz: int, notes: list[str]
) -> None:
    trace = [Reading(time_s=n / rate_hz, value=300.0) for n in range(60 * rate_hz)]
    log = PowerLog(gpus=(GpuLog(uuid="GPU-0", trace=trace),), ended=True, offsets_s=(0.0, 0.0))
    figures = Figures(samples=10, queries=10, duration_s=30.0)
    run = sampled(figures, log, TimedWindow((10.05, 40.05)), warm_s=5.0)

    assert [note.partition(":")[0] for note in notes_of(run) if "Hz" in note] == notes
