"""Logs of every official round: which figure its table shows, and which rows get a note.

The logs are made here, in the forms in which LoadGen of each round wrote them.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_mlperf import MlperfError
from pytest_mlperf.addons.official.published_table import results_in
from pytest_mlperf.addons.official.results import RecordedResult, read_result, result_folders
from pytest_mlperf.run.logs import CLOCK, DETAIL, parse_text
from pytest_mlperf.stores.results import read_results
from tests.cli.text import Say

SEEDS = {
    "v0.7": 12786827339337101903,
    "v1.0": 7322528924094909334,
    "v1.1": 1624344308455410291,
    "v2.0": 6655344265603136530,
    "v2.1": 14284205019438841327,
    "v3.0": 10003631887983097364,
    "v3.1": 148687905518835231,
    "v4.0": 13281865557512327830,
    "v4.1": 3066443479025735752,
    "v5.0": 6023615788873153749,
}
"""Of the samples (qsl_rng_seed), as mlperf.conf of each round has them."""

BEGIN = dt.datetime(2021, 3, 9, 1, 0, 0, 500_000)


def after(seconds: float) -> str:
    """Return a time as LoadGen and PTDaemon write it, `seconds` after the begin."""
    return (BEGIN + dt.timedelta(seconds=seconds)).strftime(CLOCK)


RATES: Mapping[str, Mapping[str, float]] = {
    "Offline": {
        "result_samples_per_second": 1234.5,
        "result_tokens_per_second": 98_765.0,
    },
    "Server": {
        "result_scheduled_samples_per_sec": 1234.5,
        "result_completed_samples_per_sec": 1230.5,
        "result_completed_tokens_per_second": 98_765.0,
    },
    "SingleStream": {
        "result_qps_with_loadgen_overhead": 40.0,
        "result_qps_without_loadgen_overhead": 41.0,
    },
    "MultiStream": {
        "result_mean_query_latency_ns": 200_000_000,
        **{f"result_{p}.00_percentile_per_query_latency_ns": 215_000_000 for p in (50, 90, 99)},
    },
}
EARLY = {"early_stopping_latency_ss": 26_000_000, "early_stopping_latency_ms": 27_000_000}
QUERIES = {"Offline": 1, "Server": 270_336, "SingleStream": 24_000, "MultiStream": 3000}
SAMPLES = {"Offline": 746_872, "MultiStream": 8}


def values(scenario: str, round_name: str, **others: Any) -> dict[str, Any]:
    """Return what LoadGen of a round logs of a run of 600 s that the round accepts."""
    newer, counts_tokens = round_name >= "v2.0", round_name >= "v4.0"
    rates = {
        key: rate for key, rate in RATES[scenario].items() if counts_tokens or "tokens" not in key
    }
    numbers = (50, 90, 95, 97, 99)
    logged = {
        "loadgen_version": "4.1 @ 1234567890" if newer else ".5a1 @ 6958607d52",
        "effective_scenario": scenario,
        "effective_test_mode": "PerformanceOnly",
        "effective_samples_per_query": SAMPLES.get(scenario, 1),
        "effective_min_duration_ms": 600_000,
        "effective_min_query_count": 1 if scenario == "Offline" else 270_336,
        "effective_performance_sample_count": 204_800,
        "effective_qsl_rng_seed": SEEDS.get(round_name, 1),
        "loaded_qsl_set": list(range(100)),
        "generated_query_count": QUERIES[scenario],
        "generated_samples_per_query": SAMPLES.get(scenario, 1),
        "power_begin": BEGIN.strftime(CLOCK),
        "power_end": after(600),
        "result_validity": "VALID",
        **({"result_query_count": QUERIES[scenario], **EARLY} if newer else {}),
        **rates,
        **{f"result_{number}.00_percentile_latency_ns": 25_000_000 for number in numbers},
    }
    return {**logged, **others, "result_99.90_percentile_latency_ns": 30_000_000}


def text(logged: Mapping[str, Any]) -> str:
    about = {"is_error": False, "is_warning": False}
    lines = ({"key": key, "value": value, "metadata": about} for key, value in logged.items())
    return "".join(f":::MLLOG {json.dumps(line)}\n" for line in lines)


def submission(
    root: Path,
    logged: Mapping[str, Any],
    *,
    model: str = "resnet50",
    scenario: str = "",
    division: str = "closed",
    spl: str = "",
    **system: Any,
) -> Path:
    """Write a result of a submission; return its folder."""
    submitter = root / division / "Somebody"
    folder = submitter / "results/box" / model / (scenario or logged["effective_scenario"])
    run = folder / "performance/run_1"
    run.mkdir(parents=True)
    (run / DETAIL).write_text(text(logged), "utf-8")
    if spl:
        (run / "spl.txt").write_text(spl, "utf-8")
    described = {"accelerator_model_name": "NVIDIA T4", "accelerators_per_node": 4, **system}
    (submitter / "systems").mkdir(exist_ok=True)
    (submitter / "systems/box.json").write_text(json.dumps(described), "utf-8")
    return folder


def result_of(root: Path, logged: Mapping[str, Any], **about: Any) -> RecordedResult:
    (result_folder,) = result_folders(submission(root, logged, **about))
    return read_result(result_folder)


@pytest.mark.parametrize(
    ("round_name", "scenario", "model", "value", "unit", "statistic", "name"),
    [
        ("v0.7", "Offline", "ssd-mobilenet", 1234.5, "samples/s", "", "ssd-small"),
        ("v1.0", "Offline", "resnet50", 1234.5, "samples/s", "", "resnet"),
        ("v1.0", "Server", "ssd-resnet34", 1234.5, "queries/s", "scheduled", "ssd-large"),
        ("v1.0", "SingleStream", "3d-unet-99.9", 25.0, "ms", "p90", "3d-unet-99.9"),
        ("v1.0", "MultiStream", "ssd-small", 8, "streams", "", "ssd-small"),
        ("v1.1", "SingleStream", "rnnt", 25.0, "ms", "p90", "rnnt"),
        ("v1.1", "Server", "dlrm-99", 1234.5, "queries/s", "scheduled", "dlrm-99"),
        ("v2.0", "SingleStream", "bert-99", 26.0, "ms", "p90 with early stopping", "bert-99"),
        ("v2.1", "MultiStream", "retinanet", 27.0, "ms", "p99 with early stopping", "retinanet"),
        ("v2.1", "Server", "somebody's", 1234.5, "queries/s", "scheduled", "somebody's"),
        ("v3.0", "Server", "bert-99.9", 1234.5, "queries/s", "scheduled", "bert-99.9"),
        ("v3.1", "Server", "gptj-99", 1234.5, "queries/s", "scheduled", "gptj-99"),
        ("v4.0", "Offline", "llama2-70b-99", 98_765.0, "tokens/s", "", "llama2-70b-99"),
        ("v4.0", "Server", "llama2-70b-99.9", 1230.5, "queries/s", "", "llama2-70b-99.9"),
        ("v4.0", "Server", "stable-diffusion-xl", 1234.5, "queries/s", "scheduled", ""),
        ("v4.1", "Server", "resnet50", 1230.5, "queries/s", "", "resnet50"),
        ("v5.0", "Server", "llama2-70b-interactive-99", 98_765.0, "tokens/s", "", ""),
        ("v5.0", "Offline", "llama2-70b-interactive-99.9", 98_765.0, "tokens/s", "", ""),
    ],
)
def test_a_row_has_the_figure_of_its_rounds_checker(
    tmp_path: Path,
    round_name: str,
    scenario: str,
    model: str,
    value: float,
    unit: str,
    statistic: str,
    name: str,
) -> None:
    result = result_of(tmp_path, values(scenario, round_name), model=model)
    row = result.row
    assert (row.round, row.model, row.scenario) == (round_name, name or model, scenario)
    assert (row.value, row.unit, row.statistic) == (value, unit, statistic)
    assert not row.inferred
    assert not result.unmeasured
    assert result.notes == ()


@pytest.mark.parametrize(
    ("round_name", "scenario", "logged", "value"),
    [
        ("v1.0", "Offline", "SingleStream", 41.0),
        ("v2.0", "Offline", "MultiStream", 40.0),  # 8 samples a query of 0.2 s
        ("v4.1", "Offline", "MultiStream", 40.0),
        ("v2.1", "MultiStream", "SingleStream", 216.0),  # 8 x 27 ms
        ("v1.0", "MultiStream", "SingleStream", None),
        ("v1.1", "Offline", "MultiStream", None),
        ("v3.0", "Server", "Offline", None),
    ],
)
def test_a_row_is_made_of_another_scenario_where_its_checker_does_it(
    tmp_path: Path, round_name: str, scenario: str, logged: str, value: float | None
) -> None:
    log = values(logged, round_name)
    if value is None:
        with pytest.raises(MlperfError, match=f"this round derives no {scenario} result"):
            result_of(tmp_path, log, scenario=scenario)
    else:
        row = result_of(tmp_path, log, scenario=scenario).row
        assert row.value == pytest.approx(value)
        assert row.inferred


@pytest.mark.parametrize(
    ("model", "round_name", "name"),
    [
        ("mobilenet-v2", "v1.0", "resnet"),
        ("ssdlite-mobilenet", "v1.0", "ssd-small"),
        ("yolo-v3", "v2.1", "ssd-small"),
        ("ssd_resnet50_v1_fpn_1024x1024", "v2.0", "ssd-large"),
        ("ssd-resnet34", "v3.0", "retinanet"),
        ("rcnn-nas-lowproposals-coco", "v2.0", "ssd-large"),
        ("bert-99.9_pruned-large", "v2.1", "bert-99.9"),
    ],
)
def test_models_of_the_open_division_are_of_their_rounds_workload(
    tmp_path: Path, model: str, round_name: str, name: str
) -> None:
    row = result_of(tmp_path, values("Offline", round_name), model=model, division="open").row
    assert (row.model, row.used_model) == (name, model)


@pytest.mark.parametrize(
    ("version", "ends_whole"),
    [
        (".5a1", True),
        ("v0.5", True),
        ("0.5", True),
        ("1.1.dev3", True),
        ("2.0", True),
        ("5.0.15", True),
        ("5.0.16", False),
        ("6.0.17", False),
        ("v6.1", False),
        ("nonsense", False),
        ("", False),
        ("a5.1b", False),
    ],
)
def test_a_version_says_which_key_ends_a_log(
    tmp_path: Path, version: str, ends_whole: bool
) -> None:
    content = text({**values("Offline", "v1.0"), "loadgen_version": f"{version} @ 6958607d52"})
    with pytest.raises(
        MlperfError, match="not write an error count" if ends_whole else "is truncated:"
    ):
        parse_text(tmp_path / DETAIL, content)
    if ends_whole:
        assert parse_text(tmp_path / DETAIL, content, old=True).valid
    else:
        with pytest.raises(MlperfError, match="is truncated:"):
            parse_text(tmp_path / DETAIL, content, old=True)


@pytest.mark.parametrize(
    ("key", "number", "value"),
    [
        ("result_query_count", "24000", 24_000),
        ("result_samples_per_second", "1234.5", 1234.5),
        ("effective_samples_per_query", "746872", 746_872),
        ("effective_qsl_rng_seed", "14284205019438841327", SEEDS["v2.1"]),
        ("result_query_count", "24,000", None),
        ("result_query_count", "NaN", None),
        ("result_query_count", "-1", None),
        ("result_query_count", "many", None),
        ("result_samples_per_second", "1,234.5", None),
        ("result_samples_per_second", "", None),
    ],
)
def test_numbers_in_quotes_are_read_and_other_texts_refused(
    tmp_path: Path, key: str, number: str, value: float | None
) -> None:
    content = text({**values("Offline", "v2.1"), key: number, "num_errors": 0})
    if value is None:
        with pytest.raises(MlperfError, match=rf"is damaged: {key} is '?{number}'?,"):
            parse_text(tmp_path / DETAIL, content, old=True)
    else:
        assert parse_text(tmp_path / DETAIL, content, old=True).values[key] == value
        if key.startswith("result"):
            with pytest.raises(MlperfError, match="is damaged"):
                parse_text(tmp_path / DETAIL, content)


@pytest.mark.parametrize("number", [float("nan"), -1234.5, 0, float("inf"), "1e999"])
def test_a_figure_that_is_no_positive_number_is_refused(tmp_path: Path, number: object) -> None:
    log = values("Offline", "v2.1", result_samples_per_second=number)
    with pytest.raises(MlperfError, match="result_samples_per_second"):
        result_of(tmp_path, log)


@pytest.mark.parametrize(
    ("round_name", "scenario", "samples", "queries"),
    [
        ("v1.0", "Offline", 746_872, 746_872),
        ("v2.1", "Offline", 746_872, 746_872),
        ("v2.1", "MultiStream", 24_000, 3000),
        ("v2.1", "SingleStream", 24_000, 24_000),
        ("v1.0", "SingleStream", 24_000, 24_000),  # 40 a second for 600 s
        ("v1.0", "Server", 738_300, 738_300),  # 1,230.5 a second
    ],
)
def test_samples_of_a_session_are_samples(
    say: Say,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    round_name: str,
    scenario: str,
    samples: int,
    queries: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    submission(tmp_path / "tree", values(scenario, round_name))
    say.ends(0, "import", "mlperf", "tree", "-o", "s.json")
    (case,) = read_results(Path("s.json")).cases
    (run,) = case.verdict.runs
    assert (run.samples, run.queries, run.duration_s) == (samples, queries, 600.0)
    assert (case.round, case.profile) == (round_name, "official")


@pytest.mark.parametrize(
    ("round_name", "scenario", "changed", "note"),
    [
        ("v2.1", "Offline", {"effective_samples_per_query": 100}, "samples_per_query is 100"),
        ("v5.0", "Offline", {"effective_samples_per_query": 100}, "samples_per_query is 100"),
        ("v2.1", "Offline", {"effective_min_duration_ms": 200}, "min_duration_ms is 200"),
        ("v2.1", "Server", {"effective_performance_sample_count": 9}, "sample_count is 9"),
        ("v1.0", "Server", {"effective_min_query_count": 100}, "min_query_count is 100"),
        ("v0.7", "Server", {"effective_min_duration_ms": 60_000}, ""),
        ("v1.0", "Server", {"effective_min_duration_ms": 60_000}, "min_duration_ms is 60000"),
        ("v2.1", "Server", {"effective_min_query_count": 100}, ""),
        (
            "v2.1",
            "Server",
            {"power_end": after(0.2)},
            "the run lasted 0.2 s; it must last at least 600 s",
        ),
        ("v4.1", "Server", {"power_end": after(599.9)}, ""),
    ],
)
def test_a_row_that_no_round_accepts_names_the_rule(
    tmp_path: Path, round_name: str, scenario: str, changed: dict[str, Any], note: str
) -> None:
    result = result_of(tmp_path, values(scenario, round_name, **changed))
    assert [note in text for text in result.notes] == ([True] if note else [])
    assert result.official == (not note)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"result_50.00_percentile_latency_ns": 0}, "result_50.00_percentile_latency_ns is 0"),
        ({"effective_target_qps": float("inf")}, "target_qps"),
        ({"effective_samples_per_query": 2**62}, "samples: must be at most"),
    ],
)
def test_a_run_that_no_session_can_hold_is_listed_with_the_others(
    say: Say,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    submission(tmp_path / "tree/a", values("Server", "v2.1", **changed))
    submission(tmp_path / "tree/b", values("Offline", "v2.1"))
    output = say.ends(0, "import", "mlperf", "tree", "-o", "s.json", "--rows", "r.json")
    (line,) = [line for line in output.splitlines() if line.startswith("not in the session")]
    assert message in line
    results_in.cache_clear()
    assert len(results_in(Path("r.json").absolute())) == 2
    assert len(read_results(Path("s.json")).cases) == 1


def test_a_setting_that_is_hostile_reaches_no_terminal(tmp_path: Path) -> None:
    log = values("Offline", "v2.1", effective_min_duration_ms="\x1b[2J")
    (note,) = result_of(tmp_path, log).notes
    assert "min_duration_ms is '\\x1b[2J'" in note


@pytest.mark.parametrize(("seconds", "words"), [(-3000, "50 min before"), (0, "it lasted 0 s")])
def test_a_run_that_ends_before_it_begins_is_a_row_with_a_note_and_no_case(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    submission(tmp_path / "tree", values("Offline", "v2.1", power_end=after(seconds)))
    output = say.ends(0, "import", "mlperf", "tree", "-o", "s.json", "--rows", "r.json")
    assert "not in the session: 1 result whose logs end before they begin" in output
    assert not Path("s.json").exists()
    results_in.cache_clear()
    assert [row.value for row in results_in(Path("r.json").absolute())] == [1234.5]
    (row,) = json.loads(Path("r.json").read_text("utf-8"))["results"]
    assert [words in note for note in row["notes"]] == [True]


def spl(seconds: range, watts: float = 2000.0) -> str:
    return "".join(f"Time,{after(second + 0.2)},Watts,{watts},Volts\n" for second in seconds)


@pytest.mark.parametrize(
    ("seconds", "note"),
    [
        (range(-5, 605), ""),
        (range(0, 600, 4), ""),
        (range(60), "60 power samples cover only 60 of 600 s"),
        (range(0, 600, 30), "20 power samples cover only 20 of 600 s"),
        (range(300, 301), "1 power sample covers only 1 of 600 s"),
        (range(540, 600), "60 power samples cover only 60 of 600 s"),
    ],
)
def test_a_power_log_with_holes_says_what_it_covers(
    tmp_path: Path, seconds: range, note: str
) -> None:
    result = result_of(tmp_path, values("Offline", "v3.0"), spl=spl(seconds))
    assert (result.row.power, result.row.power_unit) == (2000.0, "W")
    assert [text.partition("spl.txt: ")[2] for text in result.notes] == ([note] if note else [])


@pytest.mark.parametrize(
    ("round_name", "scenario", "energy_mj"),
    [
        ("v2.1", "SingleStream", 2000.0 * 600 * 1e3 / 24_000),
        ("v2.1", "MultiStream", 2000.0 * 600 * 1e3 / 3000),
        ("v1.1", "SingleStream", 2000.0 * 600 * 1e3 / (40 * 600)),
        ("v1.0", "MultiStream", 2000.0 * 600 * 1e3 / (3000 * 8)),
    ],
)
def test_energy_is_of_a_query_as_the_round_counts_them(
    tmp_path: Path, round_name: str, scenario: str, energy_mj: float
) -> None:
    row = result_of(tmp_path, values(scenario, round_name), spl=spl(range(600))).row
    assert row.power == pytest.approx(energy_mj)
    assert row.power_unit == "mJ"


def test_accelerators_of_several_kinds_of_nodes_are_not_counted(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = values("Offline", "v2.1")
    submission(tmp_path / "tree", log, accelerators_per_node="(8,4)", number_of_nodes=6)
    output = say.ends(0, "import", "mlperf", "tree", "-o", "s.json", "--rows", "r.json")
    assert "accelerators_per_node is '(8,4)', not a number" in output
    assert "not in the session: 1 result without a number of accelerators" in output
    results_in.cache_clear()
    (row,) = results_in(Path("r.json").absolute())
    assert (row.count, row.nodes, row.accelerator) == (0, 6, "NVIDIA T4")


@pytest.mark.parametrize(
    ("mode", "read"), [("SubmissionRun", True), ("FindPeakPerformance", False)]
)
def test_a_result_is_of_a_run_that_measures_performance(
    tmp_path: Path, mode: str, read: bool
) -> None:
    log = values("Offline", "v2.1", effective_test_mode=mode)
    if read:
        assert result_of(tmp_path, log).row.value == 1234.5
    else:
        with pytest.raises(MlperfError, match=rf"the mode is '{mode}'"):
            result_of(tmp_path, log)


def test_a_description_may_have_a_key_twice(tmp_path: Path) -> None:
    """As those of 22 results of v4.1; the last counts."""
    folder = submission(tmp_path, values("Offline", "v2.1"))
    described = '{"accelerators_per_node": 4, "accelerators_per_node": 8}'
    (folder.parents[3] / "systems/box.json").write_text(described, "utf-8")
    (result_folder,) = result_folders(folder)
    assert read_result(result_folder).row.count == 8


def test_a_result_keeps_no_list_of_its_log(tmp_path: Path) -> None:
    """Lists of samples and hashes of files were nine tenths of the memory of an import."""
    result = result_of(tmp_path, values("Offline", "v2.1"))
    kept = result.logs[0].values
    assert not [key for key, value in kept.items() if isinstance(value, list | dict)]
    assert "loaded_qsl_set" not in kept


SUMMARY = """\
================================================
MLPerf Results Summary
================================================
Scenario : {scenario}
Mode     : {mode}
{result}
Result is : VALID
min_duration (ms) : {duration}
samples_per_query : {samples}
qsl_rng_seed : {seed}
performance_sample_count : 1024

No errors encountered during test.
"""


@pytest.mark.parametrize(
    ("scenario", "mode", "result", "value", "unit", "statistic"),
    [
        ("Offline", "Performance", "Samples per second: 1234.5", 1234.5, "samples/s", ""),
        ("Offline", "Submission", "Samples per second: 1234.5", 1234.5, "samples/s", ""),
        (
            "Server",
            "Performance",
            "Scheduled samples per second : 1234.5",
            1234.5,
            "queries/s",
            "scheduled",
        ),
        (
            "Single Stream",
            "Performance",
            "90th percentile latency (ns) : 25000000",
            25.0,
            "ms",
            "p90",
        ),
        ("Multi Stream", "Performance", "Samples per query : 8", 8.0, "streams", ""),
    ],
)
def test_summaries_of_the_first_rounds_have_the_same_figures(
    tmp_path: Path,
    scenario: str,
    mode: str,
    result: str,
    value: float,
    unit: str,
    statistic: str,
) -> None:
    folder = submission(tmp_path, values("Offline", "v0.7"), scenario=scenario.replace(" ", ""))
    run = folder / "performance/run_1"
    (run / DETAIL).unlink()
    settings = {"samples": 8, "seed": SEEDS["v0.7"], "duration": 60_000}
    about = {"scenario": scenario, "mode": mode, "result": result, **settings}
    (run / "mlperf_log_summary.txt").write_text(SUMMARY.format(**about), "utf-8")
    (result_folder,) = result_folders(folder)
    recorded = read_result(result_folder)
    row = recorded.row
    assert (row.round, row.value, row.unit, row.statistic) == ("v0.7", value, unit, statistic)
    assert recorded.unmeasured.startswith("read from summaries")
